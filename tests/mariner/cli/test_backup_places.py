"""``mariner backup --to`` and ``restore --from``: directories and object stores."""

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import obstore.store
import pytest
from click.testing import CliRunner

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control, directories
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Event, EventId, Timestamp
from mariner.cli import backup_places, main
from mariner.cli.backup_places import ObjectPlace, Place, StoreState
from tests.eventer_bridge.backends import putting
from tests.mariner.cli.test_store_commands import fails, registering, run
from tests.support.gateway import gateway
from tests.support.object_store import object_store
from tests.support.peer import RawPeer

OLD: Final = "20200101T000000Z"
AHEAD: Final = [f"209901{day:02}T000000Z" for day in range(1, 4)]
AT_1, AT_2, AT_3 = (StoreState(("h",), number) for number in (1, 2, 3))
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


@pytest.fixture
def objects(bucket: str, tmp_path: Path) -> str:
    """The same, in an object store."""
    return f"{bucket}/{tmp_path.name}/gateway 1"


def store_in(folder: Path) -> Path:
    """Something that looks like a store from afar."""
    folder.mkdir()
    (folder / "CURRENT").write_text("MANIFEST-000001\n")
    (folder / "000001.sst").write_bytes(bytes(3_000_000))
    (folder / "LOCK").touch()
    return folder


def put(place: str, path: str, data: bytes) -> None:
    if place.startswith("s3:"):
        obstore.put(obstore.store.from_url(place), path, data)
    else:
        file = Path(place.removeprefix("file://")) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def manifest_of(place: str, name: str) -> Any:
    if not place.startswith("s3:"):
        return json.loads((Path(place.removeprefix("file://")) / f"{name}.json").read_bytes())
    store = obstore.store.from_url(place)
    return json.loads(bytes(obstore.get(store, f"{name}.json").bytes()))


async def stored(store: Path, session: int) -> None:
    """Have a store contain a session more."""
    async with await rocksdb.create(store) as backend:
        event_id, timestamp = EventId(1, session, 1), Timestamp(session, 0)
        await putting.put(backend, [Event(event_id, ("a",), timestamp, None, None)])


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


@needs_moto
def test_what_is_not_complete_is_no_backup(tmp_path: Path, objects: str) -> None:
    source, place = store_in(tmp_path / "source"), ObjectPlace(objects)
    place.save("20260101T000000Z", source, AT_1)
    fresh = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y%m%dT%H%M%SZ")
    for name in (OLD, fresh):
        put(objects, f"{name}/000001.sst", b"x")
    put(objects, "notes.json", b"somebody's")
    put(objects, f"{OLD}-mine/x", b"somebody's")
    assert place.names() == ["20260101T000000Z"]
    assert place.left_over() == {OLD: False, fresh: False}
    removed = [f"{objects}/{OLD} (was never completed)"]
    assert place.prune("20260101T000000Z", 1) == (removed, [])
    assert place.left_over() == {fresh: False}  # it may be being made
    place.save("20260102T000000Z", source, AT_2)
    removed = [f"{objects}/20260101T000000Z"]
    assert place.prune("20260102T000000Z", 1) == (removed, [])
    store = obstore.store.from_url(objects)
    left = sorted(i["path"] for part in obstore.list(store) for i in part)
    kept = "20260102T000000Z"
    others = ["notes.json", f"{OLD}-mine/x", f"{fresh}/000001.sst"]
    assert left == sorted([*others, f"{kept}.json", f"{kept}/CURRENT", f"{kept}/000001.sst"])


def test_a_directory_that_is_not_complete_is_no_backup(tmp_path: Path) -> None:
    place = backup_places.find(str(tmp_path / "backups"))
    assert place.names() == []
    place.save("20260101T000000Z", store_in(tmp_path / "source"), AT_1)
    for name in (OLD, "20200102T000000Z.partial", "mine", f"{OLD}.old"):
        (tmp_path / "backups" / name).mkdir()
    (tmp_path / "backups" / OLD / "000001.sst").touch()
    assert place.names() == ["20260101T000000Z"]
    removed = [f"{place}/{i} (was never completed)" for i in (OLD, "20200102T000000Z")]
    assert place.prune("20260101T000000Z", 1) == (removed, [])
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
    kept.save(OLD, store_in(tmp_path / "source"), AT_1)
    kept.load(OLD, tmp_path / "good")
    assert (tmp_path / "good" / "000001.sst").read_bytes() == bytes(3_000_000)
    put(place, f"{OLD}/{file}", data)
    expected = f"{place}/{OLD}/{file}: is not what was backed up"
    assert fails(1, "restore", "--from", place, tmp_path / "restored") == expected
    assert not list(tmp_path.glob("restored*"))


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "", "/etc/x", "a\0b"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, place: str, name: str) -> None:
    kept = backup_places.find(place)
    kept.save(OLD, store_in(tmp_path / "source"), AT_1)
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
    backup_places.find(place).save(OLD, store_in(tmp_path / "source"), AT_1)
    expected = f"{place}: there is no backup x, expected one of {OLD}"
    assert fails(1, "restore", "--from", place, "--name", "x", target) == expected
    assert not target.exists()


async def test_a_clock_that_was_ahead_costs_no_backup(tmp_path: Path, place: str) -> None:
    store, kept = tmp_path / "events", backup_places.find(place)
    await stored(store, 1)
    for session, name in enumerate(AHEAD, 2):
        with control.open_read_only(store) as opened:
            kept.save(name, opened.path, StoreState(opened.histories(), opened.sequence()))
        await stored(store, session)
    made = await run("backup", store, "--to", place, "--keep", "3")
    assert (made.code, made.stderr) == (0, "")
    [name] = set(kept.names()).difference(AHEAD)
    assert f"removed {place}/{AHEAD[0]}\n" in made.stdout
    assert kept.names() == [name, *AHEAD[1:]]
    restored = await run("restore", "--from", place, tmp_path / "restored")
    assert (restored.code, restored.stderr) == (0, "")
    assert restored.stdout.startswith(f"restored {place}/{name}: ")
    # the restored store continues: what it has is newer than all of before
    await until_next_second()
    made = await run("backup", tmp_path / "restored", "--to", place, "--keep", "1")
    assert (made.code, made.stderr) == (0, "")
    [newest] = kept.names()
    assert newest not in {name, *AHEAD}


def test_a_newer_state_is_kept_and_told(tmp_path: Path, place: str) -> None:
    source, kept = store_in(tmp_path / "source"), backup_places.find(place)
    for name, position in ((AHEAD[0], AT_3), (OLD, AT_1), ("20260101T000000Z", AT_2)):
        kept.save(name, source, position)
    told = (
        f"{place}/{AHEAD[0]}: has a newer state of the store than the backup just made, and is"
        " what is restored by default"
    )
    assert kept.prune(OLD, 1) == ([f"{place}/20260101T000000Z"], [told])
    assert kept.names() == [OLD, AHEAD[0]]
    assert kept.choose(None) == (AHEAD[0], [])


def test_stores_that_share_a_place(tmp_path: Path, place: str) -> None:
    source, kept = store_in(tmp_path / "source"), backup_places.find(place)
    kept.save(AHEAD[0], source, AT_1)
    kept.save(AHEAD[1], source, AT_2)
    kept.save(OLD, source, StoreState(("other",), 9))
    told = f"{place}: of another store, or history: not removed: {AHEAD[0]}, {AHEAD[1]}"
    assert kept.prune(OLD, 1) == ([], [told])
    assert kept.prune(AHEAD[1], 1) == (
        [f"{place}/{AHEAD[0]}"],
        [f"{place}: of another store, or history: not removed: {OLD}"],
    )
    assert fails(1, "restore", "--from", place, tmp_path / "restored") == (
        f"{place}: has backups of 2 stores, or histories of one: choose by --name; the newest of"
        f" each are {OLD}, {AHEAD[1]}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", f"{OLD}.json: not a manifest: Input data was truncated"),
        (b'{"files": {}, "format": 1}', f"{OLD}.json: does not say which store it is"),
        (None, f"{OLD}: has no manifest"),
    ],
)
def test_what_has_no_order_is_kept_and_told(
    tmp_path: Path, place: str, text: bytes | None, problem: str
) -> None:
    source, kept = store_in(tmp_path / "source"), backup_places.find(place)
    put(place, f"{OLD}/CURRENT", b"MANIFEST-000001\n")
    if text is not None:
        put(place, f"{OLD}.json", text)
    line = fails(1, "restore", "--from", place, tmp_path / "restored")
    assert line == f"{place}: there is no backup; {place}/{problem}"
    kept.save("20190101T000000Z", source, AT_1)
    kept.save("20190102T000000Z", source, AT_2)
    assert kept.choose(None) == ("20190102T000000Z", [f"{place}/{problem}: not considered"])
    assert kept.prune("20190102T000000Z", 1) == (
        [f"{place}/20190101T000000Z"],
        [f"{place}/{problem}: not removed"],
    )


def test_a_name_is_used_once(tmp_path: Path, place: str) -> None:
    source, kept = store_in(tmp_path / "source"), backup_places.find(place)
    kept.save(OLD, source, AT_1)
    with pytest.raises(StorageError, match=f"{OLD}: exists already"):
        kept.save(OLD, source, AT_2)
    assert kept.manifest(OLD).position == AT_1


@pytest.mark.parametrize("kind", ["manifest", "file"])
def test_a_fifo_blocks_nothing(tmp_path: Path, kind: str) -> None:
    place = f"file://{tmp_path}/kept"
    kept = backup_places.find(place)
    kept.save(OLD, store_in(tmp_path / "source"), AT_1)
    path = tmp_path / "kept" / (f"{OLD}.json" if kind == "manifest" else f"{OLD}/000001.sst")
    path.unlink()
    os.mkfifo(path)
    line = fails(1, "restore", "--from", place, tmp_path / "restored")
    assert (
        line
        == {
            "manifest": f"{place}: there is no backup; {place}/{OLD}: has no manifest",
            "file": f"{place}/{OLD}/000001.sst: is not what was backed up",
        }[kind]
    )


@pytest.mark.parametrize(("mode", "file_mode"), [(0o750, 0o640), (0o770, 0o660), (0o707, 0o600)])
def test_a_place_shares_with_its_group(tmp_path: Path, mode: int, file_mode: int) -> None:
    place = tmp_path / "backups"
    place.mkdir()
    place.chmod(mode)
    with directories.private_files():
        backup_places.find(str(place)).save(OLD, store_in(tmp_path / "source"), AT_1)
    made = [place / f"{OLD}.json", *(place / OLD).iterdir()]
    assert {path.stat().st_mode & 0o777 for path in made} == {file_mode}
    assert (place / OLD).stat().st_mode & 0o777 == mode & 0o770


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_what_root_makes_is_the_owners(tmp_path: Path) -> None:
    place = tmp_path / "backups"
    place.mkdir(0o700)
    os.chown(place, 12345, 12346)
    new = place / "gateway" / "1"
    for path in (place, new):
        source = store_in(tmp_path / f"source of {path.name}")
        backup_places.find(str(path)).save(OLD, source, AT_1)
    made = [*place.rglob("*")]
    assert len(made) == 10
    assert {(i.stat().st_uid, i.stat().st_gid) for i in made} == {(12345, 12346)}


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
        place.save(OLD, store_in(tmp_path / "source"), AT_1)
    assert not list((tmp_path / "backups").iterdir())
