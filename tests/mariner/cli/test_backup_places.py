"""``mariner backup --to`` and ``restore --from``: directories and object stores."""

import asyncio
import contextlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import obstore.store
import pytest
from click.testing import CliRunner

from eventer_bridge.errors import StorageError
from mariner.cli import backup_places, main
from mariner.cli.backup_places import ObjectPlace, Place
from tests.mariner.cli.test_store_commands import fails, registering, run
from tests.support.gateway import gateway
from tests.support.object_store import object_store
from tests.support.peer import RawPeer

OLD: Final = "20200101T000000Z"
HAS_MOTO: Final = importlib.util.find_spec("moto") is not None

needs_moto = pytest.mark.skipif(not HAS_MOTO, reason="there is no moto (extra dev-spark)")
PLACES: Final = ["directory", "file", pytest.param("s3", marks=needs_moto)]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where backups are kept: nothing is there yet."""
    match request.param:
        case "directory":
            return str(tmp_path / "backups")
        case "file":
            return f"file://{tmp_path}/kept"
        case _:
            url: str = request.getfixturevalue("bucket")
            return f"{url}/{tmp_path.name}/gateway 1"


@pytest.fixture(params=[i for i in PLACES if i != "directory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same, in an object store."""
    if request.param == "file":
        return f"file://{tmp_path}/kept"
    url: str = request.getfixturevalue("bucket")
    return f"{url}/{tmp_path.name}/gateway 1"


def store_in(folder: Path) -> Path:
    """Something that looks like a store from afar."""
    folder.mkdir()
    (folder / "CURRENT").write_text("MANIFEST-000001\n")
    (folder / "000001.sst").write_bytes(bytes(3_000_000))
    (folder / "LOCK").touch()
    return folder


def put(place: str, path: str, data: bytes) -> None:
    if "://" in place:
        obstore.put(obstore.store.from_url(place), path, data)
    else:
        (Path(place) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(place) / path).write_bytes(data)


def manifest_of(place: str, name: str) -> Any:
    if "://" not in place:
        return json.loads((Path(place) / f"{name}.json").read_bytes())
    store = obstore.store.from_url(place)
    return json.loads(bytes(obstore.get(store, f"{name}.json").bytes()))


async def until_next_second() -> None:
    """Names have seconds."""
    name = backup_places.new_name()
    while backup_places.new_name() == name:
        await asyncio.sleep(0.05)


async def test_backups_of_a_gateway_under_load_are_kept_and_restored(
    tmp_path: Path, place: str
) -> None:
    restored = tmp_path / "restored"
    acknowledged: list[Any] = []
    async with gateway(tmp_path) as running:
        conf = tmp_path / "gateway.json"
        async with registering(running.port, acknowledged):
            for number in range(3):
                n_before = len(acknowledged)
                made = await run("backup", "--conf", conf, "--to", place, "--keep", "2")
                assert (made.code, made.stderr) == (0, "")
                names = backup_places.find(place).names()
                lines = made.stdout.splitlines()
                begin = f"backup of {tmp_path / 'events'}: {place}/{names[-1]}: about "
                assert lines[0].startswith(begin)
                assert len(names) == min(number + 1, 2)
                assert len(lines) == (2 if number == 2 else 1)
                await until_next_second()
        assert not list((tmp_path / "events").glob("checkpoint-*"))
    result = await run("restore", "--from", place, restored)
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"restored {place}/{names[-1]}: {restored}: about ")
    checked = await run("store", "verify", restored)
    assert (checked.code, checked.stderr) == (0, "")
    n_events = int(checked.stdout.split(": ")[1].split()[0])
    assert n_events >= n_before
    # it runs, and has what was acknowledged before the backup
    async with gateway(tmp_path, store=restored) as running, await RawPeer.init(running.port) as it:
        last = acknowledged[n_before - 1]
        query = {"msg_type": "query_req", "query_id": 1, "query_type": "timeseries"}
        order = {"order": "ASCENDING", "order_by": "TIMESTAMP"}
        times = {"t_from": last["timestamp"], "t_to": last["timestamp"]}
        found = await it.request({**query, **order, **times, "event_types": [last["type"]]})
        assert last in found["events"]
    older = tmp_path / "older"
    chosen = await run("restore", "--from", place, "--name", names[0], older)
    assert chosen.stdout.startswith(f"restored {place}/{names[0]}: {older}: ")
    stored = [path for path in older.iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in stored} == {0o600}


def test_what_is_not_complete_is_no_backup(tmp_path: Path, objects: str) -> None:
    source, place = store_in(tmp_path / "source"), ObjectPlace(objects)
    place.save("20260101T000000Z", source)
    fresh = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y%m%dT%H%M%SZ")
    for name in (OLD, fresh):
        put(objects, f"{name}/CURRENT", b"x")
    put(objects, "notes.json", b"somebody's")
    put(objects, f"{OLD}-mine/x", b"somebody's")
    assert place.names() == ["20260101T000000Z"]
    assert place.left_over() == [OLD, fresh]
    assert place.prune(1) == []
    assert place.left_over() == [fresh]  # it may be being made
    place.save("20260102T000000Z", source)
    assert place.prune(1) == ["20260101T000000Z"]
    store = obstore.store.from_url(objects)
    left = sorted(i["path"] for part in obstore.list(store) for i in part)
    kept = "20260102T000000Z"
    others = ["notes.json", f"{OLD}-mine/x", f"{fresh}/CURRENT"]
    assert left == sorted([*others, f"{kept}.json", f"{kept}/CURRENT", f"{kept}/000001.sst"])


def test_a_directory_that_is_not_complete_is_no_backup(tmp_path: Path) -> None:
    place = backup_places.find(str(tmp_path / "backups"))
    assert place.names() == []
    place.save("20260101T000000Z", store_in(tmp_path / "source"))
    for name in (OLD, "20200102T000000Z.partial", "mine", f"{OLD}.old"):
        (tmp_path / "backups" / name).mkdir()
    (tmp_path / "backups" / OLD / "CURRENT").write_text("MANIFEST-000001\n")
    assert place.names() == ["20260101T000000Z"]
    assert place.prune(1) == []
    left = sorted(path.name for path in (tmp_path / "backups").iterdir())
    kept = "20260101T000000Z"
    assert left == ["20200101T000000Z.old", kept, f"{kept}.json", "mine"]


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("CURRENT", b""),
        ("CURRENT", b"MANIFEST-000002\n"),
        ("CURRENT", b"MANIFEST-000001\nand more"),
        ("000001.sst", bytes(2_999_999) + b"1"),
    ],
)
def test_what_was_changed_is_noticed(tmp_path: Path, place: str, file: str, data: bytes) -> None:
    kept = backup_places.find(place)
    kept.save(OLD, store_in(tmp_path / "source"))
    kept.load(OLD, tmp_path / "good")
    assert (tmp_path / "good" / "000001.sst").read_bytes() == bytes(3_000_000)
    put(place, f"{OLD}/{file}", data)
    expected = f"{place}/{OLD}/{file}: is not what was backed up"
    assert fails(1, "restore", "--from", place, tmp_path / "restored") == expected
    assert not list(tmp_path.glob("restored*"))


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "", "/etc/x", "a\0b"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, place: str, name: str) -> None:
    kept = backup_places.find(place)
    kept.save(OLD, store_in(tmp_path / "source"))
    manifest = manifest_of(place, OLD)
    manifest["files"][name] = [1, "0"]
    put(place, f"{OLD}.json", json.dumps(manifest).encode())
    with pytest.raises(StorageError, match="not the name of a file"):
        kept.load(OLD, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "not a manifest: Input data was truncated"),
        (b'{"files": {"a": [1]}}', r"not a manifest: .*at `\$.files\[...\]`"),
        (b'{"files": {}, "format": 2}', "format 2, this version reads format 1"),
    ],
)
def test_a_manifest_that_is_wrong(tmp_path: Path, place: str, text: bytes, reason: str) -> None:
    kept = backup_places.find(place)
    put(place, f"{OLD}.json", text)
    with pytest.raises(StorageError, match=f"{OLD}.json: {reason}"):
        kept.load(OLD, tmp_path / "target")


def test_what_is_missing_is_told(tmp_path: Path, place: str) -> None:
    target = tmp_path / "restored"
    expected = f"{place}: there is no backup"
    assert fails(1, "restore", "--from", place, target) == expected
    backup_places.find(place).save(OLD, store_in(tmp_path / "source"))
    expected = f"{place}: there is no backup x, expected one of {OLD}"
    assert fails(1, "restore", "--from", place, "--name", "x", target) == expected
    assert not target.exists()


def test_a_backup_in_place_of_a_place_is_told(tmp_path: Path) -> None:
    backup = store_in(tmp_path / "backup")
    expected = f"{backup}: there is no backup in it, it is one: mariner restore {backup} STORE"
    assert fails(1, "restore", "--from", backup, tmp_path / "restored") == expected


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    for command, expected in (
        (("backup", store, target, "--keep", "1"), "--keep needs --to."),
        (("restore", store, target, "--name", "x"), "--name needs --from."),
        (("backup", store, target, "--to", "x"), "expected STORE, or --conf in place of STORE."),
        (("restore", store, target, "--from", "x"), "expected STORE, or --conf in place of STORE."),
    ):
        result = CliRunner().invoke(main, [str(i) for i in command])
        assert result.exit_code == 2
        assert f"Error: {expected}" in result.stderr
    line = fails(1, "restore", "--from", "nothing://x/y", target)
    assert line.startswith("nothing://x/y: cannot be used: ")
    (tmp_path / "file").touch()
    line = fails(1, "restore", "--from", tmp_path / "file", target)
    assert line == f"{tmp_path}/file: cannot be read: Not a directory"
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert fails(1, "restore", "--from", "s3://bucket/x", target) == (
        "s3://bucket/x: object stores need the extra `backup`"
        " (pip install 'mariner-gateway[backup]')"
    )


@needs_moto
def test_a_bucket_that_is_not_there(bucket: str, tmp_path: Path) -> None:
    line = fails(1, "restore", "--from", f"{bucket}-other/x", tmp_path / "target")
    reason = "NoSuchBucket: The specified bucket does not exist"
    assert line == f"{bucket}-other/x: cannot be read: {reason}"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place: Place = backup_places.find(str(tmp_path / "backups"))

    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(tmp_path / "backups")
    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        place.save(OLD, store_in(tmp_path / "source"))
    assert not list((tmp_path / "backups").iterdir())
