"""A log that lost what was acknowledged: gone, empty, another store's, or cut."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.rocksdb import control, directories, log_tail
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import FORMAT_KEY
from eventer_bridge.backends.rocksdb.log_files import list_logs
from eventer_bridge.backends.rocksdb.log_tail import FILE, find_end
from eventer_bridge.errors import (
    StorageError,
    StoreDamagedError,
    StoreFormatError,
    StoreLossError,
)
from eventer_bridge.model import Event, JsonPayload, QueryServerParams
from tests.eventer_bridge.backends.oracle import Writer, draft

SESSIONS = 6
LOST = ": events that were acknowledged are lost"


class Crashed:
    """A store as after kill -9, with a session for each of some sizes of the log.

    Attributes:
        path: its directory.
        events: of all sessions, one of each.
        ends: size of its last log after each session.
        history_id: of its history.
    """

    def __init__(
        self, path: Path, events: list[Event], ends: list[int], history_id: str = ""
    ) -> None:
        self.path = path
        self.events = events
        self.ends = ends
        self.history_id = history_id

    @property
    def log(self) -> Path:
        return list_logs(self.path)[-1]


async def crash(tmp_path: Path, name: str = "store", payload: str = "ours") -> Crashed:
    live, path = tmp_path / f"live-{name}", tmp_path / name
    ends: list[int] = []
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        for _ in range(SESSIONS):
            await writer.session(draft(payload=JsonPayload.of(payload)))
            ends.append(log_tail.read(live)[-1].n_bytes)
        directories.copy(live, path)
    return Crashed(path, writer.events, ends, backend.history_id)


async def crash_with_two_logs(tmp_path: Path) -> Crashed:
    """Some index has rows in both logs."""
    live, path = tmp_path / "live", tmp_path / "store"
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        for n in range(SESSIONS):
            await writer.session(draft("a"), draft("b"))
            if n == 2:
                backend._store._families["event"].flush(True)
        directories.copy(live, path)
    return Crashed(path, writer.events, [])


def state(path: Path) -> dict[str, bytes]:
    return {i.name: i.read_bytes() for i in path.iterdir()}


async def stored(path: Path, accept_loss_of: int | None = None) -> list[Event]:
    async with await rocksdb.create(path, accept_loss_of=accept_loss_of) as backend:
        return await stored_in(backend)


async def stored_in(backend: Backend) -> list[Event]:
    return list((await backend.query(QueryServerParams(1))).events)


async def lost(path: Path) -> str:
    """What the start and a look at the store say, and neither changes anything."""
    before = state(path)
    with pytest.raises(StoreLossError) as caught:
        await rocksdb.create(path)
    with pytest.raises(StoreLossError) as looked, control.open_read_only(path):
        pass
    assert str(caught.value) == str(looked.value)
    assert state(path) == before
    message = str(caught.value)
    assert message.startswith(f"{path}: the event store is damaged: ")
    return message


def remove(crashed: Crashed, _: Crashed) -> None:
    crashed.log.unlink()


def empty(crashed: Crashed, _: Crashed) -> None:
    crashed.log.write_bytes(b"")


def swap(crashed: Crashed, other: Crashed) -> None:
    shutil.copyfile(other.log, crashed.log)


def replace(crashed: Crashed, other: Crashed) -> None:
    """By the log of another store that came further."""
    crashed.log.unlink()
    shutil.copyfile(other.log, crashed.path / "000999.log")


def cut(crashed: Crashed, _: Crashed) -> None:
    os.truncate(crashed.log, crashed.ends[2])


def tear(crashed: Crashed, _: Crashed) -> None:
    os.truncate(crashed.log, crashed.ends[2] + 20)


@pytest.mark.parametrize(
    ("damage", "reason", "n_left"),
    [
        (remove, "it was not closed, and its log {log} is missing", 0),
        (empty, "its log {log} ends at 0, but was acknowledged up to {end}", 0),
        (swap, "its log {log} is not its own", 0),
        (replace, "it was not closed, and its log {log} is missing", 0),
        (cut, "its log {log} ends at {cut}, but was acknowledged up to {end}", 3),
        (tear, "its log {log} ends at {cut}, but was acknowledged up to {end}", 3),
    ],
)
async def test_a_loss_is_said_and_has_to_be_accepted(
    tmp_path: Path,
    damage: Callable[[Crashed, Crashed], None],
    reason: str,
    n_left: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    crashed = await crash(tmp_path)
    other = await crash(tmp_path, "other", "them")  # as long as ours
    expected = reason.format(log=crashed.log.name, end=crashed.ends[-1], cut=crashed.ends[2])
    before = crashed.log.read_bytes()
    damage(crashed, other)
    assert (await lost(crashed.path)).endswith(f": {expected}{LOST}")

    assert await stored(crashed.path, accept_loss_of=1) == crashed.events[:n_left]
    said = [i for i in caplog.records if i.levelno == logging.WARNING]
    assert expected in vars(said[0])["reason"]
    if damage is tear:
        [aside] = crashed.path.glob("*.lost")
        assert aside.read_bytes() == before[: crashed.ends[2] + 20]
    assert await stored(crashed.path) == crashed.events[:n_left]
    async with await rocksdb.create(crashed.path) as backend:
        assert backend.high_water_mark(1).session > 10**15
        assert backend.history_id not in {"", crashed.history_id}


class StoppedError(Exception):
    """As a kill at that moment."""


def stop(*_: object) -> NoReturn:
    raise StoppedError


@pytest.mark.parametrize("where", ["ext_begin_history", "_set_aside", "log_tail.forget"])
async def test_who_accepts_a_loss_may_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    crashed = await crash(tmp_path)
    before = crashed.log.read_bytes()
    cut(crashed, crashed)
    left = crashed.log.read_bytes()
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(f"eventer_bridge.backends.rocksdb.restoring.{where}", stop)
            with pytest.raises(StoppedError):
                await stored(crashed.path, accept_loss_of=1)
        with pytest.raises(StoreLossError):  # it is not started without the flag
            await stored(crashed.path)
    assert await stored(crashed.path, accept_loss_of=1) == crashed.events[:3]
    assert before.startswith(left)
    assert all(i.read_bytes() == left for i in crashed.path.glob("*.lost*"))
    async with await rocksdb.create(crashed.path) as backend:
        assert backend.high_water_mark(1).session > 10**15
        assert backend.history_id not in {"", crashed.history_id}


async def test_a_loss_of_another_format_is_not_accepted(tmp_path: Path) -> None:
    live, path = tmp_path / "live", tmp_path / "store"
    async with await rocksdb.create(live) as backend:
        writer = Writer(backend)
        commit = Commit()
        commit.batch.put(FORMAT_KEY, b"2")
        backend._store.ext_write_synced(commit)
        end = find_end(list_logs(live)[-1])
        await writer.session(draft())
        directories.copy(live, path)
    os.truncate(list_logs(path)[-1], end)
    before = state(path)
    with pytest.raises(StoreFormatError, match="has format 2, this version supports only format 3"):
        await stored(path, accept_loss_of=1)
    assert state(path) == before


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("damage", [remove, empty])
async def test_one_of_two_logs(
    tmp_path: Path, number: int, damage: Callable[[Crashed, Crashed], None]
) -> None:
    crashed = await crash_with_two_logs(tmp_path)
    logs = [i for i in list_logs(crashed.path) if i.stat().st_size]
    assert len(logs) == 2
    if damage is remove:
        logs[number].unlink()
    else:
        logs[number].write_bytes(b"")
    assert logs[number].name in await lost(crashed.path)


async def test_what_was_not_acknowledged_may_be_gone(tmp_path: Path) -> None:
    """A write that was under way; and a mark that a power cut left behind."""
    crashed = await crash(tmp_path)
    mark = crashed.path / FILE
    mark.write_bytes(crashed.ends[1].to_bytes(8) + mark.read_bytes()[8:])
    copy = tmp_path / "copy"
    directories.copy(crashed.path, copy)
    os.truncate(crashed.log, crashed.ends[1])
    assert await stored(crashed.path) == crashed.events[:2]
    os.truncate(list_logs(copy)[-1], crashed.ends[2] - 10)
    assert await stored(copy) == crashed.events[:2]


async def test_logs_that_are_needed_no_longer_may_be_gone(tmp_path: Path) -> None:
    """RocksDB removes them by itself, after which nothing may have been committed."""
    live, path = tmp_path / "live", tmp_path / "store"
    async with await rocksdb.create(live) as backend:
        directories.copy(live, tmp_path / "new")
        writer = Writer(backend)
        await writer.session(draft())
        await rocksdb_flushed(backend, live)
        directories.copy(live, path)
    assert await stored(tmp_path / "new") == []
    assert await stored(path) == writer.events
    async with await rocksdb.create(path):
        directories.copy(path, tmp_path / "opened")
    assert await stored(tmp_path / "opened") == writer.events


async def rocksdb_flushed(backend: rocksdb.RocksDbBackend, path: Path) -> None:
    before = list_logs(path)
    store = backend._store
    for family in (store._db, *store._families.values()):
        family.flush(True)
    while any(i.exists() for i in before):
        store._families["type"].flush(True)


async def test_stores_without_a_mark_or_with_an_old_one_are_read_as_they_are(
    tmp_path: Path,
) -> None:
    crashed = await crash(tmp_path)
    mark = (crashed.path / FILE).read_bytes()
    (crashed.path / FILE).unlink()
    assert await stored(crashed.path) == crashed.events
    # a gateway that knows of no marks was there last
    (crashed.path / FILE).write_bytes(mark)
    assert await stored(crashed.path) == crashed.events


async def test_a_mark_that_is_damaged(tmp_path: Path) -> None:
    crashed = await crash(tmp_path)
    mark = crashed.path / FILE
    whole = mark.read_bytes()
    for damaged in b"", whole[:5], whole[:9], whole[:-2], whole.replace(b",", b";"):
        mark.write_bytes(damaged)
        with pytest.raises(StoreDamagedError, match=f"its file {FILE} is not as it was written"):
            await rocksdb.create(crashed.path)
    mark.write_bytes(whole)
    assert await stored(crashed.path) == crashed.events


async def test_a_log_is_replaced_while_the_mark_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []

    def look(path: Path) -> list[Path]:
        looks.append(path)
        return list_logs(path) if len(looks) % 2 == 0 else [path / "000001.log"]

    monkeypatch.setattr(log_tail, "list_logs", look)
    crashed = await crash(tmp_path)
    assert looks
    assert log_tail.read(crashed.path)[-1].n_bytes == crashed.ends[-1]


async def test_a_mark_that_finds_no_log_stays_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await rocksdb.create(tmp_path / "store") as backend:
        writer = Writer(backend)
        await writer.session(draft())
        before = log_tail.read(tmp_path / "store")
        monkeypatch.setattr(log_tail, "list_logs", lambda _: [])
        backend._store._families["event"].flush(True)  # begins another log
        await writer.session(draft())
        assert log_tail.read(tmp_path / "store") == before
        monkeypatch.undo()
        await writer.session(draft())
        assert log_tail.read(tmp_path / "store")[-1].number > before[-1].number
        assert await stored_in(backend) == writer.events


async def test_a_store_without_a_log_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "list_logs", lambda _: [])
    with pytest.raises(StorageError, match=r"store: cannot be written: there is no log$"):
        await rocksdb.create(tmp_path / "store")


async def test_the_mark_is_synced_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fdatasync

    def note(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for _ in range(3):
            await writer.session(draft())
        assert synced == []
        monkeypatch.setattr(limits, "MARK_SYNC_PERIOD_S", 0)
        await writer.session(draft())
        assert len(synced) == 1
