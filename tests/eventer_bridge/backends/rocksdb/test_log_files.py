"""The log after a crash: a torn end is cut off, damage is refused, whatever it hits."""

import itertools
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import RocksDbBackend, control, directories, log_tail
from eventer_bridge.backends.rocksdb.log_files import FRAGMENT, check_log
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import BinaryPayload, Event, JsonPayload, QueryServerParams
from tests.eventer_bridge.backends.oracle import Writer, draft

BLOCK = 32 << 10
PAGE = 4096
SECTOR = 512
HEADER = FRAGMENT.size
TORN = "the event store's log ends in a torn write, which was never acknowledged: it is cut off"

Ends = list[int]
"""Size of the log after each session."""


class Crashed:
    """A store as after kill -9: a session for every entry of ``sizes``, all in the log.

    The last one was written, but not acknowledged.

    Attributes:
        path: its directory.
        events: of all sessions.
        ends: size of the (only) log after each session.
    """

    def __init__(self, path: Path, events: list[Event], ends: Ends) -> None:
        self.path = path
        self.events = events
        self.ends = ends

    @property
    def log(self) -> Path:
        return max(self.path.glob("*.log"))

    def change(self, change: Callable[[bytearray], bytes | bytearray]) -> None:
        self.log.write_bytes(change(bytearray(self.log.read_bytes())))


async def crash(tmp_path: Path, *sizes: int) -> Crashed:
    """Make a store with payloads of these sizes, one session each."""
    live, path = tmp_path / "live", tmp_path / "store"
    ends: Ends = []
    chance = random.Random(1)
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        mark = b""
        for size in sizes:
            mark = (live / log_tail.FILE).read_bytes()
            text = chance.randbytes(size // 2).hex()
            await writer.session(*(draft(payload=JsonPayload.of(text)) for _ in range(2)))
            ends.append(log_tail.read(live)[-1].n_bytes)
        directories.copy(live, path)
    (path / log_tail.FILE).write_bytes(mark)
    return Crashed(path, writer.events, ends)


async def stored(backend: RocksDbBackend) -> list[Event]:
    return list((await backend.query(QueryServerParams(1))).events)


async def opened(path: Path) -> list[Event]:
    async with await rocksdb.create(path) as backend:
        return await stored(backend)


async def damaged(path: Path) -> str:
    with pytest.raises(StoreDamagedError) as caught:
        await rocksdb.create(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: the event store is damaged: ")
    return message


SIZES = (100, 3000, 200, 40_000, 100, 500)


async def test_a_whole_log_is_replayed(tmp_path: Path) -> None:
    crashed = await crash(tmp_path, *SIZES)
    assert await opened(crashed.path) == crashed.events


@pytest.mark.parametrize("sizes", [SIZES, (*SIZES, 70_000)])
async def test_an_incomplete_last_record_is_cut_off_and_said(
    tmp_path: Path, sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    crashed = await crash(tmp_path, *sizes)
    begin, end = crashed.ends[-2:]
    page = (begin // PAGE + 1) * PAGE
    cuts = {*range(begin + 1, begin + 9), begin + 30, page, (begin + end) // 2, end - 20, end - 1}
    for cut, zeros in itertools.product(cuts, (0, 1, BLOCK)):  # that were written ahead
        if not begin < cut < end or (zeros and cut > end - 20):
            continue
        caplog.clear()
        path = tmp_path / f"cut{cut}-{zeros}"
        shutil.copytree(crashed.path, path)
        log = path / crashed.log.name
        written = log.read_bytes()[:cut]
        log.write_bytes(written + bytes(zeros))
        assert await opened(path) == crashed.events[:-2]
        warning = next(i for i in caplog.records if i.getMessage() == TORN)
        assert warning.levelno == logging.WARNING
        assert vars(warning)["bytes"] == max(len(written.rstrip(b"\0")) - begin, 0)


@pytest.mark.parametrize("part", ["tail", "first page", "page within", "last page"])
async def test_pages_that_never_reached_the_disk_are_a_torn_write(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    crashed = await crash(tmp_path, *SIZES, 70_000)
    begin, end = crashed.ends[-2:]
    next_page = (begin // PAGE + 1) * PAGE
    low, high = {
        "tail": (begin, end),
        "first page": (begin, next_page),
        "page within": (next_page + 2 * PAGE, next_page + 3 * PAGE),
        "last page": (end // PAGE * PAGE, end),
    }[part]

    def lose(data: bytearray) -> bytearray:
        data[low:high] = bytes(high - low)
        return data

    crashed.change(lose)
    assert await opened(crashed.path) == crashed.events[:-2]
    assert any(i.getMessage() == TORN for i in caplog.records) == (part != "tail")


@pytest.mark.parametrize("size", [500, 9_000, 70_000])
async def test_any_sectors_of_the_last_write_may_be_missing(tmp_path: Path, size: int) -> None:
    crashed = await crash(tmp_path, *SIZES, size)
    begin, end = crashed.ends[-2:]
    whole = crashed.log.read_bytes()
    sectors = [begin, *range((begin // SECTOR + 1) * SECTOR, end, SECTOR)]
    chance = random.Random(3)
    for n, share in enumerate((0.02, 0.5, 0.98) * 8):
        path = tmp_path / f"copy{n}"
        shutil.copytree(crashed.path, path)
        missing = [i for i in sectors if chance.random() < share] or [chance.choice(sectors)]
        data = bytearray(whole)
        for sector in missing:
            stop = min((sector // SECTOR + 1) * SECTOR, end)
            data[sector:stop] = bytes(stop - sector)
        (path / crashed.log.name).write_bytes(data)
        n_missing = 0 if data == whole else 2
        assert await opened(path) == crashed.events[: len(crashed.events) - n_missing]


async def crash_at(tmp_path: Path, offset: int) -> Crashed:
    """As :func:`crash`; the last record begins at this offset in a sector."""
    live, path = tmp_path / "live", tmp_path / "store"
    ends: Ends = []
    n = 300
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        for _ in range(4):
            if len(ends) == 2:
                n += (offset - (2 * ends[1] - ends[0])) % SECTOR
            mark = (live / log_tail.FILE).read_bytes()
            await writer.session(draft(payload=JsonPayload.of("x" * n)))
            ends.append(log_tail.read(live)[-1].n_bytes)
            n = 300 if len(ends) < 3 else 5 * SECTOR
        directories.copy(live, path)
    (path / log_tail.FILE).write_bytes(mark)
    assert ends[-2] % SECTOR == offset
    return Crashed(path, writer.events, ends)


@pytest.mark.parametrize("n_before", [*range(1, HEADER + 2), HEADER + 10])
async def test_a_header_of_which_one_sector_is_missing_is_a_torn_write(
    tmp_path: Path, n_before: int
) -> None:
    crashed = await crash_at(tmp_path, SECTOR - n_before)
    begin = crashed.ends[-2]
    whole = crashed.log.read_bytes()
    crashed.change(lambda data: data[: begin + 1])
    expected = check_log(crashed.path).torn
    assert expected is not None
    for missing in ([0], [1], [0, 1], [2], [0, 2], [1, 3]):
        path = tmp_path / f"copy{missing}"
        shutil.copytree(crashed.path, path)
        data = bytearray(whole)
        for n in missing:
            stop = (begin // SECTOR + 1 + n) * SECTOR
            start = max(stop - SECTOR, begin)
            data[start:stop] = bytes(stop - start)
        (path / crashed.log.name).write_bytes(data)
        torn = check_log(path).torn
        assert torn is not None
        assert (torn.end, torn.sequence) == (begin, expected.sequence)
        assert await opened(path) == crashed.events[:-1]


async def test_zeros_after_the_end_are_no_damage(tmp_path: Path) -> None:
    """A header that was written in part may be zero so far: RocksDB alone would refuse it."""
    crashed = await crash(tmp_path, *SIZES)
    left = BLOCK - crashed.ends[-1] % BLOCK
    for zeros in (1, 6, 7, 5000, left - 1, left, left + 1, left + 6, left + 7):
        path = tmp_path / f"zeros{zeros}"
        shutil.copytree(crashed.path, path)
        log = path / crashed.log.name
        log.write_bytes(log.read_bytes() + bytes(zeros))
        assert await opened(path) == crashed.events


async def test_pages_of_zeros_that_were_registered_are_no_damage(tmp_path: Path) -> None:
    live, path = tmp_path / "live", tmp_path / "store"
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        await writer.session(draft())
        await writer.session(draft(payload=BinaryPayload("zeros", bytes(5 * PAGE))))
        directories.copy(live, path)
    assert await opened(path) == writer.events


async def test_any_damaged_byte_is_noticed(tmp_path: Path) -> None:
    """Every byte of the first and last records, and some of each other."""
    crashed = await crash(tmp_path, *SIZES)
    whole = crashed.log.read_bytes()
    begins = [0, *crashed.ends]
    chance = random.Random(2)
    offsets = {begin + i for begin in begins[:-1] for i in range(7)}  # fragment headers
    offsets |= {chance.randrange(crashed.ends[-1]) for _ in range(60)}
    for offset in sorted(offsets):
        data = bytearray(whole)
        data[offset] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        crashed.log.write_bytes(data)
        await damaged(crashed.path)
    crashed.log.write_bytes(whole)
    assert await opened(crashed.path) == crashed.events


async def test_damaged_lengths_near_the_end_are_told_from_a_torn_write(tmp_path: Path) -> None:
    """RocksDB takes each of these for an incomplete record, and drops what follows."""
    crashed = await crash(tmp_path, *SIZES)
    whole = crashed.log.read_bytes()
    for begin in crashed.ends[-3:-1]:
        for bit in range(16):
            data = bytearray(whole)
            data[begin + 4 + bit // 8] ^= 1 << bit % 8
            crashed.log.write_bytes(data)
            await damaged(crashed.path)


async def make_two_logs(tmp_path: Path) -> tuple[Path, list[Event], list[Path]]:
    """A crashed store with two logs, of which both are needed."""
    live, path = tmp_path / "live", tmp_path / "store"
    stores: list[Store] = []
    with pytest.MonkeyPatch.context() as patch:
        opening = Store.__init__

        def remember(store: Store, path: Path) -> None:
            opening(store, path)
            stores.append(store)

        patch.setattr(Store, "__init__", remember)
        backend = await rocksdb.create(live)
    writer = Writer(backend)
    for _ in range(3):
        await writer.session(draft("a"), draft("b"))
    stores[0]._families["event"].flush(True)  # a new log begins, the others still need the old
    for _ in range(3):
        await writer.session(draft("a"), draft("b"))
    directories.copy(live, path)
    stores.clear()
    await backend.async_close()
    logs = sorted(i for i in path.glob("*.log") if i.stat().st_size)
    assert len(logs) == 2
    return path, writer.events, logs


async def test_a_log_that_misses_its_end_although_another_follows(tmp_path: Path) -> None:
    """RocksDB goes on with the log that follows, and loses rows of some families only."""
    path, events, (first, _) = await make_two_logs(tmp_path)
    whole = first.read_bytes()
    first.write_bytes(whole[:-5])
    assert "it ends within a record, at" in await damaged(path)
    n_bytes = len(whole) // 3  # at the end of a record
    while True:
        first.write_bytes(whole[:n_bytes])
        if "operations are missing before it" in await damaged(path):
            break
        n_bytes += 1
    first.write_bytes(whole)
    assert await opened(path) == events


async def test_who_only_looks_cuts_nothing_off(tmp_path: Path) -> None:
    crashed = await crash(tmp_path, *SIZES)
    crashed.change(lambda data: data[: crashed.ends[-1] - 3])
    torn = crashed.log.read_bytes()
    with control.open_read_only(crashed.path) as store:
        assert len(store.ext_types()) == 1
        assert store.mark(1).session == len(SIZES) - 1
    assert crashed.log.read_bytes() == torn
    crashed.change(lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with (
        pytest.raises(StoreDamagedError, match="the event store is damaged"),
        control.open_read_only(crashed.path),
    ):
        pass
