"""Store and forward: what is on the local disk is stored once, in order, whatever happens."""

import asyncio
import contextlib
import functools
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge.model import (
    Event,
    JsonPayload,
    Order,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.net import limits
from mariner import client
from mariner import limits as client_limits
from mariner.client import BufferedClient, WhenFull
from mariner.client.buffer_file import BufferFile
from mariner.client.buffered import RegistrationBuffer
from mariner.errors import (
    BufferFullError,
    BufferUnusableError,
    ClosedError,
    MarinerError,
)
from tests.eventer_bridge.backends.faults import full_disk
from tests.support import gateway as gateways
from tests.support import proxy
from tests.support.inprocess import APP, running_gateway

NOBODY: Final = 1
"""A port where nobody listens."""

READER: Final = {**APP, "register_events": [{"subscriptions": [["a"]]}]}


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 0.05)
    monkeypatch.setattr(client_limits, "BUFFER_RETRY_S", 0.02)


async def opened(path: Path, port: int = NOBODY, **options: Any) -> BufferedClient:
    connect = functools.partial(
        client.connect, "127.0.0.1", port, client_name="app", client_token="secret"
    )
    return await BufferedClient.open(path / "buffer", [connect], **options)


def of(value: Any, event_type: str = "a") -> list[RegisterEvent]:
    return [RegisterEvent((event_type,), None, JsonPayload.of(value))]


@contextlib.asynccontextmanager
async def reader(port: int) -> AsyncIterator[client.Client]:
    async with await client.connect(
        "127.0.0.1", port, client_name="app", client_token="secret"
    ) as connection:
        yield connection


async def stored(port: int) -> list[Event]:
    params = QueryTimeseriesParams([("a",)], order=Order.ASCENDING)
    async with reader(port) as connection:
        return [i async for i in connection.query_all(params)]


def values(events: list[Event]) -> list[Any]:
    return [i.payload.value() for i in events if isinstance(i.payload, JsonPayload)]


async def test_forwarded_in_order_with_the_time_of_the_first_hour(tmp_path: Path) -> None:
    before = Timestamp.now()
    async with await opened(tmp_path) as buffer:
        await asyncio.gather(*(buffer.register(of(i)) for i in range(1_000)))
        own = RegisterEvent(("a",), Timestamp(1, 2), JsonPayload.of(1_000))
        await buffer.register([own, *of(1_001)])
        queued = Timestamp.now()
        status = await buffer.status()
        assert (status.waiting, status.forwarded) == (1_001, 0)
        assert status.oldest is not None
        assert before <= status.oldest <= queued
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        await buffer.register(of(1_002))
        await buffer.drain()
        found = await stored(gateway.mariner.port)
        assert values(found) == [*range(1_003)]
        assert found[1_000].source_timestamp == Timestamp(1, 2)
        assert found[1_000].id.session == found[1_001].id.session
        times = [i.source_timestamp for i in found[:1_000]]
        assert all(i is not None and before <= i <= queued for i in times)
        status = await buffer.status()
        assert (status.waiting, status.forwarded, status.bytes) == (0, 1_002, 0)


async def test_what_was_stored_but_not_taken_out_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway() as gateway:
        with monkeypatch.context() as patch:  # as if it were killed before it could
            patch.setattr(RegistrationBuffer, "forwarded", lambda *_: None)
            async with await opened(tmp_path, gateway.mariner.port) as buffer:
                await asyncio.gather(*(buffer.register(of(i)) for i in range(10)))
                while len(await stored(gateway.mariner.port)) < 10:
                    pass
        async with await opened(tmp_path, gateway.mariner.port) as buffer:
            assert (await buffer.status()).forwarded == 0
            await buffer.register(of(10))
            await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [*range(11)]


async def test_large_registrations(tmp_path: Path) -> None:
    texts = [str(i) * (5 << 20) for i in range(5)]
    async with await opened(tmp_path) as buffer:
        for text in texts:
            await buffer.register(of(text))
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        await buffer.register(of("the last"))
        await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [*texts, "the last"]


async def test_an_application_that_repeats_its_work(tmp_path: Path) -> None:
    event = RegisterEvent(("a",), Timestamp(1, 2), None)
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        for _ in range(3):
            await buffer.register([event], "key")
        await buffer.drain()
        assert len(await stored(gateway.mariner.port)) == 1


async def test_what_is_refused_for_good_is_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_gateway([READER]) as gateway,
        await opened(tmp_path, gateway.mariner.port) as buffer,
    ):
        for i in range(100):
            await buffer.register(of(i, "ab"[i % 3 == 1]))
        await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [i for i in range(100) if i % 3 != 1]
        status = await buffer.status()
        assert (status.refused, status.forwarded) == (33, 67)
        assert status.last_reason == "register_events[0]: no right to register 'b'"
        assert status.bytes > 33 * client_limits.BUFFER_ROW_BYTES
    text = f"registration refused and put aside: {status.last_reason}"
    told = [i for i in caplog.records if i.message == text]
    assert [i.levelno for i in told if i.levelno > logging.DEBUG] == [logging.WARNING]


async def test_full_and_refused(tmp_path: Path) -> None:
    async with await opened(tmp_path, max_bytes=1_000) as buffer:
        outcomes = await asyncio.gather(
            *(buffer.register(of(i)) for i in range(10)), return_exceptions=True
        )
        n_queued = outcomes.count(None)
        assert 0 < n_queued < 7
        assert (await buffer.status()).waiting == n_queued
        with pytest.raises(BufferFullError) as caught:
            await buffer.register(of(0))
        used = (await buffer.status()).bytes
        text = f"{tmp_path}/buffer: the buffer is full: {used} of 1000 bytes are used, "
        # sizes differ by a byte, as times do in length
        needed = used // n_queued
        assert str(caught.value) in {f"{text}{needed + i} are needed" for i in (-1, 0, 1)}
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [*range(n_queued)]


async def test_full_and_dropped(tmp_path: Path) -> None:
    async with await opened(tmp_path, max_bytes=10_000, when_full=WhenFull.DROP_OLDEST) as buffer:
        for i in range(100):
            await buffer.register(of(i))
        status = await buffer.status()
        assert status.waiting + status.dropped == 100
        assert status.dropped > 0
        assert 9_000 < status.bytes <= 10_000
        with pytest.raises(BufferFullError):
            await buffer.register(of("x" * 10_000))
        assert await buffer.status() == status
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [*range(status.dropped, 100)]


async def test_refused_ones_are_dropped_first(tmp_path: Path) -> None:
    full: dict[str, Any] = {"max_bytes": 10_000, "when_full": WhenFull.DROP_OLDEST}
    async with (
        running_gateway([READER]) as gateway,
        await opened(tmp_path, gateway.mariner.port, **full) as buffer,
    ):
        for i in range(20):
            await buffer.register(of(i, "b"))
        await buffer.drain()
        assert (await buffer.status()).refused == 20
    async with await opened(tmp_path, **full) as buffer:
        while (status := await buffer.status()).refused:
            await buffer.register(of(1))
        assert status.dropped == 20


async def test_dropped_while_it_was_under_way(tmp_path: Path) -> None:
    full: dict[str, Any] = {"max_bytes": 10_000, "when_full": WhenFull.DROP_OLDEST}
    async with contextlib.AsyncExitStack() as stack:
        async with running_gateway() as gateway:
            port = gateway.mariner.port
        buffer = await stack.enter_async_context(await opened(tmp_path, port, **full))
        await buffer.register(of(0))
        while not buffer._under_way:
            await asyncio.sleep(0)
        for i in range(1, 100):
            await buffer.register(of(i))
        listen = {"host": "127.0.0.1", "port": port}
        await stack.enter_async_context(running_gateway(mariner=listen))
        await buffer.drain()
        found = values(await stored(port))
        assert found[0] == 0  # it was in memory
        assert found == sorted(found)
        status = await buffer.status()
        assert status.forwarded == len(found)
        assert status.forwarded + status.dropped == 100


@pytest.mark.parametrize(
    ("events", "key", "text"),
    [
        ([RegisterEvent(("a", "*"), None, None)], None, "'?' and '*' are for queries only"),
        ([RegisterEvent(("\ud800",), None, None)], None, "a text has no UTF-8 form"),
        (
            [RegisterEvent(("a",), Timestamp(0, 1_000_000), None)],
            None,
            "Expected `int` <= 999999 - at `$[0].source_timestamp.us`",
        ),
        (of("x" * (16 << 20)), None, "bytes, at most 16776192 are allowed"),
        ([RegisterEvent(("a",), None, None)] * 65_537, None, "at most 65536 are allowed"),
        (of(1), "k" * 65, "a request key of 65 characters, at most 64 are allowed"),
    ],
)
async def test_what_no_server_would_take(
    tmp_path: Path, events: list[RegisterEvent], key: str | None, text: str
) -> None:
    async with await opened(tmp_path) as buffer:
        with pytest.raises(MarinerError) as caught:
            await buffer.register(events, key)
        assert text in str(caught.value)
        assert (await buffer.status()).waiting == 0


async def test_two_that_forward(tmp_path: Path) -> None:
    async with await opened(tmp_path):
        with pytest.raises(BufferUnusableError) as caught:
            await opened(tmp_path)
        expected = f"{tmp_path}/buffer: another process forwards it, or this one already"
        assert str(caught.value) == expected
    async with await opened(tmp_path):
        pass


async def test_others_may_add(tmp_path: Path) -> None:
    async with (
        running_gateway() as gateway,
        await opened(tmp_path, gateway.mariner.port) as buffer,
        await RegistrationBuffer.open(tmp_path / "buffer") as other,
    ):
        await asyncio.gather(
            *(buffer.register(of(i)) for i in range(100)), *(other.add(of(i)) for i in range(100))
        )
        await buffer.drain()
        found = values(await stored(gateway.mariner.port))
        assert sorted(found) == sorted([*range(100), *range(100)])


async def test_a_server_without_request_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = {"server_id": 1, "backend": {"type": "dummy"}}
    async with (
        running_gateway(event_core=core) as gateway,
        await opened(tmp_path, gateway.mariner.port) as buffer,
    ):
        await buffer.register(of(1))
        while "client is not connected" not in caplog.text:
            await asyncio.sleep(0)
        [record] = [
            i for i in caplog.records if i.levelno == logging.WARNING and "reason" in vars(i)
        ][-1:]
        reason = vars(record)["reason"]
        assert reason.endswith(": the server does not know 'request_key'")
        assert (await buffer.status()).waiting == 1


async def test_each_change_is_synced(tmp_path: Path) -> None:
    file = BufferFile(tmp_path / "buffer", 1_000, WhenFull.REFUSE)
    with contextlib.closing(file):
        assert file._row("PRAGMA journal_mode") == ("wal",)
        assert file._row("PRAGMA synchronous") == (2,)  # FULL: the log, with each transaction


# --- disks ------------------------------------------------------------------------------------


async def test_a_full_disk(tmp_path: Path) -> None:
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        await buffer.register(of(1))
        await buffer.drain()
        with full_disk():
            for _ in range(3):
                with pytest.raises(BufferUnusableError, match=f"^{tmp_path}/buffer: "):
                    await buffer.register(of("x" * 10_000))
        await buffer.register(of(2))
        await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [1, 2]


async def test_a_full_disk_while_it_forwards(tmp_path: Path) -> None:
    async with (
        gateways.gateway(tmp_path) as gateway,  # whose disk is not full: that is of this process
        proxy.create(gateway.port) as way,
    ):
        way.is_refusing = True
        async with await opened(tmp_path, way.port) as buffer:
            for i in range(100):
                await buffer.register(of(i))
            with full_disk():
                way.is_refusing = False
                while len(await stored(gateway.port)) < 100:
                    pass
                assert (await buffer.status()).waiting
            await buffer.register(of(100))
            await buffer.drain()
            assert values(await stored(gateway.port)) == [*range(101)]
            assert (await buffer.status()).forwarded == 101


def _overwrite(path: Path, begin: int, n_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"\xa5" * n_bytes)


async def test_a_damaged_file(tmp_path: Path) -> None:
    async with await opened(tmp_path) as buffer:
        for i in range(1_000):
            await buffer.register(of(i))
    path = tmp_path / "buffer" / "buffer.sqlite"
    whole = path.read_bytes()
    for begin, n_bytes, text in (
        (0, 100, "the buffer is damaged: file is not a database"),
        (4_096, 4_096, "the buffer is damaged: database disk image is malformed"),
    ):
        path.write_bytes(whole)
        _overwrite(path, begin, n_bytes)
        assert await why_it_ended(tmp_path) == f"{tmp_path}/buffer: {text}"


async def why_it_ended(path: Path) -> str | None:
    try:
        buffer = await opened(path)
        async with buffer:
            await buffer.wait_closed()
            return buffer.close_reason
    except BufferUnusableError as e:
        return str(e)


async def test_a_damaged_registration_is_put_aside(tmp_path: Path) -> None:
    async with await opened(tmp_path) as buffer:
        for i in range(3):
            await buffer.register(of(i))
    with contextlib.closing(sqlite3.connect(tmp_path / "buffer" / "buffer.sqlite")) as db, db:
        db.execute("UPDATE waiting SET events = x'5bff' WHERE id = 2")
    async with running_gateway() as gateway, await opened(tmp_path, gateway.mariner.port) as buffer:
        await buffer.drain()
        assert values(await stored(gateway.mariner.port)) == [0, 2]
        status = await buffer.status()
        assert status.refused == 1
        assert str(status.last_reason).startswith("damaged in the buffer: ")


async def test_a_file_of_others(tmp_path: Path) -> None:
    (tmp_path / "buffer").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "buffer" / "buffer.sqlite")) as db:
        db.execute("CREATE TABLE a (b)")
    with pytest.raises(BufferUnusableError) as caught:
        await opened(tmp_path)
    text = "not a buffer of this version: application 0x0, version 0"
    assert str(caught.value) == f"{tmp_path}/buffer: {text}"


async def test_no_directory(tmp_path: Path) -> None:
    (tmp_path / "buffer").write_text("a file")
    with pytest.raises(BufferUnusableError, match=f"^{tmp_path}/buffer: File exists$"):
        await opened(tmp_path)


async def test_closed(tmp_path: Path) -> None:
    buffer = await opened(tmp_path)
    registering = asyncio.create_task(buffer.register(of(1)))
    await asyncio.sleep(0)
    await buffer.async_close()
    await registering  # what it had taken on, it wrote
    with pytest.raises(ClosedError, match=f"^{tmp_path}/buffer: the buffer is closed$"):
        await buffer.register(of(1))
    with pytest.raises(ClosedError, match=f"^{tmp_path}/buffer: the buffer is closed$"):
        await buffer.status()
    async with await opened(tmp_path) as buffer:
        assert (await buffer.status()).waiting == 1
