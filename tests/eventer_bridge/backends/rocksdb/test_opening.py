"""Opening of a store: in use, newer, damaged or something else is refused, and says so."""

import contextlib
import gc
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control, directories, holder
from eventer_bridge.backends.rocksdb.contents import FAMILIES, IMPORTING
from eventer_bridge.backends.rocksdb.keys import (
    CLOCK_KEY,
    FORMAT_KEY,
    GROUP_KEY,
    IN_ORDER_KEY,
    encode_owner,
    encode_type_id,
)
from eventer_bridge.backends.rocksdb.markers import MARKER, write_marker
from eventer_bridge.backends.rocksdb.member import create_member
from eventer_bridge.errors import (
    StorageError,
    StoreDamagedError,
    StoreFormatError,
    StoreLockedError,
)
from eventer_bridge.model import BinaryPayload, Order, QueryTimeseriesParams
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered
from tests.eventer_bridge.backends.rocksdb.raw_rows import raw_rows

IN_USE = "the event store is in use by "
UPWARDS = QueryTimeseriesParams(order=Order.ASCENDING)


async def make_store(path: Path) -> None:
    """A store with sorted files, and two sessions in its log, as after kill -9."""
    live = path.with_name("live")
    async with await rocksdb.create(live) as backend:
        await Writer(backend).session(*numbered("a", "b"))
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        writer.make(draft())
        await writer.session(*numbered("a", "c"), time=2)
        await writer.session(*numbered("b", "c"), time=3)
        shutil.copytree(live, path, ignore=shutil.ignore_patterns("control.sock"))


async def opening_fails(path: Path, error: type[StorageError]) -> str:
    with pytest.raises(StorageError) as caught:
        await rocksdb.create(path)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@contextlib.contextmanager
def another_process_has_it_open(path: Path) -> Iterator[int]:
    """The process that has."""
    script = (
        "import asyncio, sys; from pathlib import Path;"
        "from eventer_bridge.backends import rocksdb\n"
        "async def main():\n"
        "    async with await rocksdb.create(Path(sys.argv[1])):\n"
        "        print('open', flush=True); sys.stdin.read()\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(rocksdb.__file__).parents[3],
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        yield other.pid
        other.communicate()


async def test_a_store_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with another_process_has_it_open(tmp_path) as pid:
        message = await opening_fails(tmp_path, StoreLockedError)
        assert message.startswith(f"{IN_USE}process {pid} ({sys.executable} -c import asyncio, sys")
        assert message.isprintable()
        assert len(message) < 300
        monkeypatch.setattr(holder, "_LOCK", re.compile("(a)(b)(c)(d)"))  # not to be seen from here
        assert await opening_fails(tmp_path, StoreLockedError) == f"{IN_USE}another process"
        monkeypatch.undo()
    async with await rocksdb.create(tmp_path):
        message = await opening_fails(tmp_path, StoreLockedError)
        assert message == f"{IN_USE}this process already"


async def test_a_newer_format(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path):
        pass
    db = Rdict(str(tmp_path), Options(raw_mode=True))
    db[b"format"] = b"4"
    # a newer version may well have more column families
    db.create_column_family("newer", Options(raw_mode=True)).close()
    db.close()
    (tmp_path / MARKER).unlink()
    for _ in range(2):  # and refusing does not keep it locked
        message = await opening_fails(tmp_path, StoreFormatError)
        assert message == "the event store has format 4, this version supports only format 3"


async def test_files_are_compacted_as_configured(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path):
        pass
    _, options = state(tmp_path)[max(i for i in state(tmp_path) if i.startswith("OPTIONS-"))]
    found = re.findall(rb"level0_file_num_compaction_trigger=(\d+)", options)
    assert [*map(int, found)] == [limits.COMPACTED_FILES] * (len(FAMILIES) + 1)


def state(path: Path) -> dict[str, tuple[int, bytes]]:
    """Modes and contents of all files."""
    return {i.name: (i.stat().st_mode, i.read_bytes()) for i in path.iterdir() if i.is_file()}


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    ("row", "error", "reason"),
    [
        (
            ("default", FORMAT_KEY, b"2"),
            StoreFormatError,
            "has format 2, this version supports only format 3",
        ),
        (("default", FORMAT_KEY, IMPORTING), StoreDamagedError, "an import into this event store"),
        (("default", FORMAT_KEY, None), StoreDamagedError, "a database, but not an event store"),
        (("default", encode_owner("x"), b"?"), StoreDamagedError, "a quota's row"),
        (("default", IN_ORDER_KEY + encode_type_id(0), b"?"), StoreDamagedError, "a type's order"),
        (("default", CLOCK_KEY, b"?"), StoreDamagedError, "the time that passed"),
        (("type", encode_type_id(0), None), StoreDamagedError, "a type is missing"),
        (("type", encode_type_id(0), b"{"), StoreDamagedError, "a type: "),
    ],
)
async def test_what_is_refused_stays_as_it_was(
    tmp_path: Path,
    row: tuple[str, bytes, bytes | None],
    error: type[StorageError],
    reason: str,
    is_closed: bool,
) -> None:
    family, key, value = row
    path = tmp_path / "store"
    await make_store(path)
    families = {name: Options(raw_mode=True) for name in ("default", *FAMILIES)}
    db = Rdict(str(path), Options(raw_mode=True), families)
    rows = db if family == "default" else db.get_column_family(family)
    if value is None:
        del rows[key]
    else:
        rows[key] = value
    if rows is not db:
        rows.close()
    db.close()
    if is_closed:
        write_marker(path)
    for file in path.iterdir():
        file.chmod(0o644)
    before = state(path)
    assert reason in await opening_fails(path, error)
    assert state(path) == before


async def test_a_damaged_log_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store"
    await make_store(path)
    garble(largest(path, "*.log"))
    before = state(path)
    await opening_fails(path, StoreDamagedError)
    assert state(path) == before


async def test_no_store_is_made_within_another_or_beside_an_unfinished_one(tmp_path: Path) -> None:
    await make_store(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for path in tmp_path / "store" / "x", tmp_path / "link" / "x" / "y":
        message = await opening_fails(path, StorageError)
        assert message == f"is in the event store {tmp_path / 'store'}: choose a path outside it"
        assert not path.exists()
    (tmp_path / "new.partial").mkdir()
    with pytest.raises(StorageError, match="exists already: remove it, unless"):
        await rocksdb.create(tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_a_database_that_is_not_ours(tmp_path: Path) -> None:
    db = Rdict(str(tmp_path), Options(raw_mode=True))
    db[b"key"] = b"value"
    db.close()
    before = state(tmp_path)
    message = await opening_fails(tmp_path, StoreDamagedError)
    assert message == "a database, but not an event store"
    assert state(tmp_path) == before
    assert Rdict.list_cf(str(tmp_path)) == ["default"]


async def test_a_directory_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    os.chmod(tmp_path, 0o750)  # noqa: PTH101, S103  # readable by others
    message = await opening_fails(tmp_path, StoreDamagedError)
    assert message == "damaged, or not an event store: no file CURRENT, but notes.txt"
    assert os.listdir(tmp_path) == ["notes.txt"]  # noqa: PTH208
    assert os.stat(tmp_path).st_mode & 0o777 == 0o750  # noqa: PTH116


async def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    message = await opening_fails(file, StorageError)
    assert message == "cannot be used as an event store: File exists"
    message = await opening_fails(file / "store", StorageError)
    assert message == "cannot be used as an event store: Not a directory"


async def test_creation_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    for name in "LOCK", "LOG", "IDENTITY", "000001.dbtmp":
        (tmp_path / name).touch()
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft())
    # the database exists, but neither the families nor the format were written
    empty = tmp_path / "empty"
    Rdict(str(empty), Options(raw_mode=True)).close()
    async with await rocksdb.create(empty) as backend:
        await Writer(backend).session(draft())


def largest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern), key=lambda i: i.stat().st_size)


def remove(path: Path) -> None:
    path.unlink()


def garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data.rstrip(b"\0")) // 2  # a log ends in zeros
    data[middle : middle + 8] = bytes(i ^ 0xFF for i in data[middle : middle + 8])
    path.write_bytes(data)


def garble_data(path: Path) -> None:
    """Damage the first block, which has rows."""
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("pattern", "damage", "reason"),
    [
        ("CURRENT", remove, "no file CURRENT"),
        ("CURRENT", garble, "the event store is damaged: .*CURRENT"),
        ("MANIFEST-*", remove, "the event store is damaged: .*No such file"),
        # a checksum does not fit or, where the middle is the head of a record, an entry is missing
        ("MANIFEST-*", garble, "the event store is damaged: Corruption: .*(checksum| entry in)"),
        ("MANIFEST-*", halve, "the event store is damaged: .*MANIFEST"),
        ("*.sst", remove, "the event store is damaged: .*No such file"),
        ("*.sst", halve, "the event store is damaged: .*Sst file size mismatch"),
        ("*.log", garble, "the event store is damaged: "),
    ],
)
async def test_damaged_files(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "store"
    await make_store(path)
    damage(largest(path, pattern))
    message = await opening_fails(path, StoreDamagedError)
    assert re.search(reason, message)


async def test_a_store_that_was_closed_has_to_be_as_it_was(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft())
    for pattern in "MANIFEST-*", "CURRENT", "*.log", MARKER:
        file = largest(tmp_path, pattern)
        before = file.read_bytes()
        for damage in (grow, remove) if not before else (grow, remove, garble, halve):
            if file.name == MARKER and damage is remove:
                continue
            damage(file)
            for _ in range(2):  # and refusing does not change it
                message = await opening_fails(tmp_path, StoreDamagedError)
                assert re.match(
                    "the event store is damaged, or was changed by something else since it was"
                    rf" closed: .*{file.name}",
                    message,
                )
            file.write_bytes(before)
    async with await rocksdb.create(tmp_path) as backend:
        assert (await backend.query(UPWARDS)).events
        assert not (tmp_path / MARKER).exists()


async def test_without_its_seal_a_store_is_not_compared(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft())
    grow(largest(tmp_path, "*.log"))
    (tmp_path / MARKER).unlink()
    async with await rocksdb.create(tmp_path) as backend:
        assert (await backend.query(UPWARDS)).events


async def test_a_damaged_sorted_file_is_told_by_commands_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with await rocksdb.create(path) as backend:
        await Writer(backend).session(*numbered("a", "b"))
    for file in tuple(path.glob("*.sst")):
        before = file.read_bytes()
        garble_data(file)
        # or it is of rows that are not read here
        with contextlib.suppress(StoreDamagedError), control.open_read_only(path) as store:
            assert store.n_events() >= 0
        file.write_bytes(before)


async def test_damaged_event_types_are_noticed(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(*numbered(*(f"type{i}" for i in range(1000))))
    for file in tuple(tmp_path.glob("*.sst")):  # noqa: ASYNC240
        garble_data(file)
    message = await opening_fails(tmp_path, StoreDamagedError)
    assert re.search("the event store is damaged: .*checksum", message)


async def test_what_failed_to_open_is_let_go_without_the_garbage_collector(tmp_path: Path) -> None:
    path = tmp_path / "store"
    await make_store(path)
    gc.disable()
    try:
        for name in [i.name for i in path.glob("*.sst")]:
            copy = shutil.copytree(path, tmp_path / name)
            garble_data(copy / name)
            for _ in range(2):  # the second time, nothing of the first one holds it
                with contextlib.suppress(StoreDamagedError):
                    await (await rocksdb.create(copy)).async_close()
    finally:
        gc.enable()


async def test_a_damaged_block_fails_the_query_that_reads_it(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        # cannot be compressed: what is in the middle of the file is an event
        payloads = [BinaryPayload("t", random.randbytes(1000)) for _ in range(100)]
        await writer.session(*(draft(payload=i) for i in payloads))
    garble(largest(tmp_path, "*.sst"))
    async with await rocksdb.create(tmp_path) as backend:
        for params in UPWARDS, QueryTimeseriesParams([("a",)]):
            with pytest.raises(StoreDamagedError, match=r"the event store is damaged: .*checksum"):
                await backend.query(params)


@pytest.mark.parametrize("name", ["CURRENT", "000123.log", "ACKNOWLEDGED", "OPTIONS-000009"])
async def test_a_fifo_in_a_store_blocks_nobody(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    await (await rocksdb.create(store)).async_close()
    (store / name).unlink(missing_ok=True)
    os.mkfifo(store / name)
    expected = f"{store / name}: a FIFO or a device, expected a regular file"
    with pytest.raises(StoreDamagedError, match=expected):
        await rocksdb.create(store)
    with pytest.raises(StoreDamagedError, match=expected), control.open_read_only(store):
        pass
    if name == "CURRENT":
        directories.refuse_within_store(store / "target")  # it is none


def test_the_command_of_a_process_is_shown_without_its_token() -> None:
    options = ["--token", "secret", "--token=secret", "--token-file", "file"]
    command = [sys.executable, "-uc", "input('>')", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.read(1)  # it has its arguments
        text = holder._command(process.pid)
    finally:
        process.communicate(b"\n", timeout=60)
    assert text.endswith("--token *** --token=*** --token-file file")


async def test_a_store_whose_group_is_damaged_is_closed_again(tmp_path: Path) -> None:
    async with await create_member(tmp_path / "store"):
        pass
    with raw_rows(tmp_path / "store") as rows:
        rows["default"][GROUP_KEY] = b"\x90"
    for _ in range(2):  # the second time it is not in use
        with pytest.raises(StoreDamagedError, match="the event store is damaged: its group: "):
            await create_member(tmp_path / "store")
