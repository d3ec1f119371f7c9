"""Files of a lake, its lock and its manifest: the same on this machine and in an object store."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from eventer_bridge.model import INT64_MAX
from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake import lock, manifest
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import Manifest, Position, Segment

SEGMENT = Segment("date=2025-01-01/events-" + 32 * "0" + ".parquet", 1, 2, 3, 4, 5)


def test_a_file_is_there_whole_or_not_at_all(root: str) -> None:
    files = Files(root)
    assert files.read("a/b", 10) is None
    with files.create("a/b") as file:
        file.write(b"one")
        assert files.read("a/b", 10) is None
    with files.create("a/b") as file:
        file.write(b"two!")
    assert files.read("a/b", 10) == b"two!"
    assert [(i.path, i.size_bytes) for i in files.walk()] == [("a/b", 4)]
    assert files.sizes(["a/b", "a/c"]) == {"a/b": 4, "a/c": None}
    with pytest.raises(LakeError, match=r"a/b: is larger than 3 bytes"):
        files.read("a/b", 3)
    files.delete("a/b")
    files.delete("a/b")
    assert files.walk() == []


def test_a_file_whose_writing_fails_is_not_there(root: str) -> None:
    files = Files(root)

    def fail() -> None:
        with files.create("a") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert files.walk() == []


def test_no_update_of_the_manifest_is_lost(root: str) -> None:
    files = Files(root)
    assert manifest.find(files) is None

    def count() -> None:
        for _ in range(5):
            manifest.update(files, lambda old: old.changed(queries={"n": 1 + old.queries["n"]}))

    manifest.update(files, lambda old: old.changed(queries={"n": 0}))
    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = manifest.load(files)
    assert (found.version, found.queries) == (16, {"n": 15})
    assert not [i for i in files.walk() if i.path not in {manifest.MANIFEST, lock.LOCK}]


def test_an_update_that_changes_nothing_writes_nothing(root: str) -> None:
    files = Files(root)
    assert manifest.update(files, lambda old: old).version == 1
    assert manifest.update(files, lambda old: old).version == 1


def test_who_waits_too_long_for_the_lock_is_told(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(root)
    monkeypatch.setattr(limits, "LOCK_WAIT_S", 0.1)
    with lock.locked(files), pytest.raises(LakeError, match="another process holds the lock"):
        manifest.update(files, lambda old: old)
    assert manifest.find(files) is None


_HOLDER = """
import sys, time
from mariner_spark.lake.files import Files
from mariner_spark.lake.lock import locked
with locked(Files(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_process_that_was_killed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"locked\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    files = Files(root)
    monkeypatch.setattr(limits, "LOCK_LEASE_S", 2.0)  # object stores tell whole seconds
    assert manifest.update(files, lambda old: old).version == 1


def test_who_held_the_lock_for_too_long_changes_nothing(
    object_store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = Files(f"{object_store}{tmp_path}")

    def slow(old: Manifest) -> Manifest:
        monkeypatch.setattr(limits, "LOCK_LEASE_S", 0.0)
        return old

    with pytest.raises(LakeError, match="the lock may have been taken over"):
        manifest.update(files, slow)
    assert manifest.find(files) is None


def test_a_manifest_comes_back_as_it_was(root: str) -> None:
    files = Files(root)
    positions = {-5: Position(1, 2), INT64_MAX: Position(INT64_MAX, 0)}
    made = manifest.update(files, lambda old: old.changed(added=(SEGMENT,), positions=positions))
    assert manifest.load(files) == made
    assert made.segments == (SEGMENT,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a manifest: .*truncated"),
        (b"\xff", "not a manifest: "),
        (b'{"segments": [{"path": "../../etc/passwd"}]}', r"not a manifest: .*segments\[0\]"),
        (b'{"format": 2}', "format 2, this version knows 1"),
    ],
)
def test_a_damaged_manifest_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / manifest.MANIFEST).write_bytes(content)
    with pytest.raises(LakeError, match=message):
        manifest.load(Files(str(tmp_path)))


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("hdfs://x/y", "hdfs://x/y: a lake is on a local path or in an object store, as abfs"),
        ("/nowhere", "/nowhere: no lake: it has no _manifest.json"),
    ],
)
def test_what_is_no_lake_is_told(root: str, message: str) -> None:
    with pytest.raises(LakeError, match=message):
        manifest.load(Files(root))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LakeError, match="/file: File exists"):
        manifest.update(Files(str(tmp_path / "file" / "lake")), lambda old: old)


def test_a_manifest_is_a_plain_json_object(tmp_path: Path) -> None:
    """What the README tells others to read."""
    files = Files(str(tmp_path))
    manifest.update(
        files, lambda old: old.changed(added=(SEGMENT,), positions={1: Position(2, 3, 4)})
    )
    assert msgspec.json.decode((tmp_path / "_manifest.json").read_bytes()) == {
        "format": 1,
        "version": 1,
        "value_path": "$.value",
        "segments": [
            {"path": SEGMENT.path, "rows": 1, "bytes": 2, "first": 3, "last": 4, "raw_bytes": 5}
        ],
        "positions": {"1": {"session": 2, "instance": 3, "timestamp": 4, "history": None}},
        "queries": {},
        "replaced": [],
    }
