"""Checkpoints of stores that are open or not, and the socket that they are asked for by."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import CursorRow, cursor_key, encode_row
from eventer_bridge.backends.rocksdb import control, directories
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.control.client import SOCKET, short_path
from eventer_bridge.errors import ClosedError, StorageError, StoreDamagedError, StoreLockedError
from eventer_bridge.model import Event, Order, QueryTimeseriesParams, Timestamp
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered, request_key
from tests.eventer_bridge.backends.putting import put

UPWARDS = QueryTimeseriesParams(order=Order.ASCENDING)


now = Timestamp.now()


async def checkpoint(store: Path, target: Path) -> None:
    await asyncio.to_thread(rocksdb.checkpoint, store, target)


async def failure(store: Path, target: Path) -> str:
    with pytest.raises(StorageError) as caught:
        await checkpoint(store, target)
    return str(caught.value)


async def stored(path: Path) -> list[Event]:
    findings: list[Finding] = []
    with control.open_read_only(path) as store:
        ext_verify(store, findings.append)
    assert findings == []
    async with await rocksdb.create(path) as backend:
        return list((await backend.query(UPWARDS)).events)


def names(path: Path, pattern: str = "*") -> list[str]:
    return sorted(i.name for i in path.glob(pattern))


def contents(path: Path) -> dict[str, bytes]:
    return {i.name: i.read_bytes() for i in path.iterdir()}


def device(path: Path) -> int:
    return path.stat().st_dev


@contextlib.contextmanager
def another_file_system() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


async def test_a_checkpoint_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with another_file_system() as other:
        assert device(other) != device(tmp_path)
        async with await rocksdb.create(store) as backend:
            writer = Writer(backend)
            for target in tmp_path / "one", tmp_path / "two", other / "three":
                for _ in range(20):
                    await writer.session(*numbered("a", "b", "c"))
                acknowledged = list(writer.events)
                making = asyncio.create_task(checkpoint(store, target))
                while not making.done():
                    await writer.session(*numbered("a", "d"))
                await making
                found = await stored(target)
                assert found[: len(acknowledged)] == acknowledged
                # what came meanwhile is there up to some moment, whole sessions
                assert found == writer.events[: len(found)]
            assert (await backend.query(UPWARDS)).events == writer.events
        assert names(other) == ["three"]
    assert names(tmp_path) == ["one", "store", "two"]
    assert names(store, "checkpoint-*") == []


async def test_rows_of_every_buffer_in_memory_count_as_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITE_BUFFER_BYTES", 64 << 10)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        rows = backend._store.family("event")
        while not rows.property_int_value("rocksdb.num-immutable-mem-table"):
            await writer.session(*numbered(*("a" * 100)))
        assert rows.property_int_value("rocksdb.num-files-at-level0") == 0  # they wait for others
        assert backend._store._n_unflushed(rows) == len(writer.events)
        await asyncio.to_thread(rows.flush, True)
        assert backend._store._n_unflushed(rows) == 0
        assert rows.property_int_value("rocksdb.num-files-at-level0") == 1


async def test_it_has_request_keys_and_cursors(tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {cursor_key("app", "c"): encode_row(CursorRow([], now))}
    async with await rocksdb.create(tmp_path / "store") as backend:
        event = Writer(backend).make(draft(), time=now)
        await put(backend, event, None, 1, request_key("k"))
        await backend.keep_reader_rows(rows)
        kept = backend.find_requests("app", ["k"])
        await checkpoint(tmp_path / "store", tmp_path / "copy")
    assert kept != [None]
    check_store(tmp_path / "copy")
    async with await rocksdb.create(tmp_path / "copy") as backend:
        assert backend.find_requests("app", ["k"]) == kept
        assert backend.reader_rows(b"") == rows


async def test_of_a_store_that_nobody_has_open(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with await rocksdb.create(store) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a", "b"))
    await checkpoint(store, tmp_path / "target")
    assert await stored(tmp_path / "target") == writer.events
    assert await stored(store) == writer.events


async def test_of_a_store_whose_owner_cannot_be_asked(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = Store(path)
    try:
        with pytest.raises(StoreLockedError, match="in use by"):
            rocksdb.checkpoint(path, tmp_path / "target")
    finally:
        store.ext_close()
    assert not (tmp_path / "target").exists()


async def test_of_nothing(tmp_path: Path) -> None:
    message = await failure(tmp_path / "none", tmp_path / "target")
    assert message == f"{tmp_path / 'none'}: not an event store: no such directory"
    with pytest.raises(StoreDamagedError, match="not an event store: no file CURRENT"):
        rocksdb.checkpoint(tmp_path, tmp_path / "target")
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_open", [True, False])
async def test_targets_that_cannot_be(tmp_path: Path, is_open: bool) -> None:
    store = tmp_path / "store"
    (tmp_path / "empty").mkdir()
    long_name = tmp_path / ("x" * 256)
    backend = await rocksdb.create(store)
    if not is_open:
        await backend.async_close()
    for target, reason in (
        (tmp_path / "empty", f"{tmp_path / 'empty'}: exists already"),
        (store / "CURRENT", f"{store / 'CURRENT'}: exists already"),
        (tmp_path / "none" / "x", f"{tmp_path / 'none'}: no such directory"),
        (long_name, f"{long_name}: cannot be written: File name too long"),
    ):
        assert await failure(store, target) == reason
    assert names(tmp_path) == ["empty", "store"]
    assert names(store, "checkpoint-*") == []
    await checkpoint(store, tmp_path / "good")
    await backend.async_close()


async def test_moving_to_another_file_system_can_be_stopped(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "a", "b":
        (source / name).write_text(name)
    with another_file_system() as other:
        with pytest.raises(OSError) as caught:  # noqa: PT011  # its number is looked at
            source.rename(other / "target")
        assert caught.value.errno == errno.EXDEV
        answers = iter([False, True])
        with pytest.raises(ClosedError):
            directories.move(source, other / "target", lambda: next(answers))
        assert names(other) == []
        directories.move(source, other / "target", lambda: False)
        assert sorted(i.name for i in (other / "target").iterdir()) == ["a", "b"]
    assert not source.exists()


async def test_a_copy_that_was_killed_is_no_store(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    async with await rocksdb.create(store) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a", "b"))
    killed: list[Path] = []

    def look() -> bool:
        if names(target):
            killed.append(tmp_path / f"killed{len(killed)}")
            shutil.copytree(target, killed[-1])
        return False

    directories.copy(store, target, look)
    assert len(killed) == len(names(target)) - 1
    for path in killed:
        with pytest.raises(StoreDamagedError, match="CURRENT"):
            await rocksdb.create(path)
        with (
            pytest.raises(StoreDamagedError, match="no file CURRENT"),
            control.open_read_only(path),
        ):
            pass
    assert await stored(target) == writer.events


# the socket


async def test_the_socket_is_for_its_user_and_as_long_as_the_store_is_open(tmp_path: Path) -> None:
    # an address of a unix socket has at most 108 bytes
    store = tmp_path / ("long" * 30) / "store"
    path = store / SOCKET
    for _ in range(2):  # a socket that a killed process left is replaced
        async with await rocksdb.create(store):
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert control.is_served(store)
            left = tmp_path / "left"
            left.unlink(missing_ok=True)
            os.link(path, left)
        assert not path.exists()
        assert not control.is_served(store)
        left.rename(path)
        assert not control.is_served(store)


async def test_without_a_socket_the_store_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SOCKET).mkdir()
    await (await rocksdb.create(tmp_path / "other")).async_close()
    for file in (tmp_path / "other").iterdir():
        file.rename(tmp_path / file.name)
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(draft())
    assert "event store takes no requests: no backup while it is open" in caplog.messages


async def request(store: Path, data: bytes) -> Any:
    with short_path(store / SOCKET) as path:
        reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return json.loads(answer)["error"] if answer else None


async def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    long_line = b"x" * (limits.MAX_CONTROL_LINE_BYTES + 1) + b"\n"
    async with await rocksdb.create(tmp_path):
        assert "not a request: JSON is malformed" in await request(tmp_path, b"hello\n")
        assert "not a request: " in await request(tmp_path, b'{"checkpoint": "\xff"}\n')
        two = await request(tmp_path, b'{"checkpoint": "/a", "x": 1}\n')
        assert two == "not a request: expected one key, but there are 2"
        unknown = await request(tmp_path, b'{"x": 1}\n')
        assert unknown == "not a request: 'x', expected one of backed_up, checkpoint, drilled"
        nobody = await request(tmp_path, b'{"checkpoint": "/a"}\n')
        assert nobody == "not a request: expected 'to', which says what process it is for"
        us = b'"to": {"pid": %d}}\n' % os.getpid()
        assert await request(tmp_path, b'{"checkpoint": 1, ' + us) == "checkpoint: expected a path"
        relative = await request(tmp_path, b'{"checkpoint": "a", ' + us)
        assert relative == "a: expected an absolute path"
        too_long = await request(tmp_path, long_line)
        assert too_long == f"a request of more than {limits.MAX_CONTROL_LINE_BYTES} bytes"
        assert await request(tmp_path, b'{"checkpoint"') is None
        assert await request(tmp_path, b"") is None
        await checkpoint(tmp_path, tmp_path / "good")


async def test_requests_are_bounded_and_those_who_say_nothing_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    async with await rocksdb.create(store):
        silent = []
        for _ in range(limits.MAX_CONTROL_CONNECTIONS):
            with short_path(store / SOCKET) as path:
                silent.append(await asyncio.open_unix_connection(path))
        assert await failure(store, tmp_path / "a") == "too many requests at a time"
        for _, writer in silent:
            writer.close()
        while await request(store, b"\n") == "too many requests at a time":
            pass  # until the server has noticed
        monkeypatch.setattr(limits, "CONTROL_TIMEOUT_S", 0.05)
        with short_path(store / SOCKET) as path:
            reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""  # until the server closes
        writer.close()
        targets = [tmp_path / str(i) for i in range(limits.MAX_CONTROL_CONNECTIONS // 2)]
        monkeypatch.undo()
        await asyncio.gather(*(checkpoint(store, target) for target in targets))
        assert all((target / "CURRENT").exists() for target in targets)


async def test_what_interrupted_checkpoints_left_is_removed(tmp_path: Path) -> None:
    await (await rocksdb.create(tmp_path)).async_close()
    for name in "checkpoint-0123abcd", "checkpoint-0123abcd.tmp", "checkpoint-monday":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.sst").touch()
    async with await rocksdb.create(tmp_path):
        assert names(tmp_path, "checkpoint-*") == ["checkpoint-monday"]  # none of ours


# looking at stores


async def test_reading_a_store_that_is_open(tmp_path: Path) -> None:
    def look() -> int:
        with control.open_read_only(tmp_path) as store:
            assert store.path.parent == tmp_path
            return store.n_events()

    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(*numbered("a", "b"))
        assert await asyncio.to_thread(look) == 2
        assert names(tmp_path, "checkpoint-*") == []


async def test_reading_a_closed_store_leaves_its_files_as_they_are(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(*numbered("a", "b"))
    before = contents(tmp_path)
    with control.open_read_only(tmp_path) as store:
        assert store.n_events() == 2
    assert contents(tmp_path) == before


def test_reading_a_store_that_is_opened_meanwhile(tmp_path: Path) -> None:
    async def open_and_close() -> None:
        await (await rocksdb.create(tmp_path)).async_close()

    async def open_and_look() -> None:
        async with await rocksdb.create(tmp_path):
            await asyncio.to_thread(reading.__exit__, None, None, None)

    asyncio.run(open_and_close())
    reading = control.open_read_only(tmp_path)
    reading.__enter__()
    with pytest.raises(StorageError, match="was opened by a process meanwhile: try again"):
        asyncio.run(open_and_look())
