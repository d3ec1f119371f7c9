"""A replay over many connections: each event is seen once, in order."""

import asyncio
import contextlib
import functools
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from mariner import client
from mariner.client import ReconnectingClient, ReplayBatch
from mariner.client.reconnecting import Connect
from mariner.client.replay import Resumption
from mariner.errors import ConnectionLostError, CursorLostError, GapError, LocalProtocolError
from mariner.wire.messages import EventsAck, EventsMsg
from tests.support import proxy
from tests.support.gateway import gateway
from tests.support.inprocess import running_gateway
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.05)
    monkeypatch.setattr(limits, "REPLAY_PAGE_EVENTS", 50)


def servers(*ports: int) -> list[Connect]:
    named: dict[str, Any] = {"client_name": "app", "client_token": "secret"}
    return [
        functools.partial(client.connect, "127.0.0.1", port, subscriptions=[("a",)], **named)
        for port in ports
    ]


def reconnecting(*ports: int, **options: Any) -> ReconnectingClient:
    return ReconnectingClient(servers(*ports), **options)


def of(number: int, event_type: str = "a") -> list[RegisterEvent]:
    return [RegisterEvent((event_type,), None, JsonPayload.of(number))]


def numbers_of(batch: ReplayBatch) -> list[int]:
    return [i.payload.value() for i in batch.events if isinstance(i.payload, JsonPayload)]


async def seen(
    reader: ReconnectingClient,
    n_events: int,
    then: Callable[[ReplayBatch], Any] | None = None,
) -> list[int]:
    """Numbers of so many events that come next."""
    found: list[int] = []
    async with contextlib.aclosing(reader.replay()) as batches:
        async for batch in batches:
            found += numbers_of(batch)
            if then is not None:
                await then(batch)
            if len(found) >= n_events:
                break
    return found


async def acknowledged(batch: ReplayBatch) -> None:
    await batch.ack()


@contextlib.asynccontextmanager
async def registering(writer: ReconnectingClient, n_events: int) -> AsyncIterator[None]:
    async def register() -> None:
        for begin in range(0, n_events, 20):
            some = range(begin, min(begin + 20, n_events))
            await asyncio.gather(*(writer.register(of(i)) for i in some))

    task = asyncio.create_task(register())
    yield
    await task


@pytest.mark.parametrize("options", [{"start": "earliest"}, {"cursor": "c"}], ids=str)
async def test_each_event_once_over_many_connections(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    plans = itertools.islice(proxy.by_chance(random.Random(3), 100_000), 15)
    async with (
        running_gateway(path=tmp_path / "store") as running,
        proxy.create(running.mariner.port, plans) as link,
        reconnecting(running.mariner.port) as writer,
        reconnecting(link.port, **options) as reader,
        registering(writer, 3_000),
    ):
        then = acknowledged if "cursor" in options else None
        assert await seen(reader, 3_000, then) == [*range(3_000)]
        await link.until_cuts(15)
        await writer.register(of(3_000))
        assert await seen(reader, 1) == [3_000]


@pytest.mark.parametrize("options", [{"start": "earliest"}, {"cursor": "c"}], ids=str)
async def test_each_event_once_although_the_gateway_is_killed(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    then = acknowledged if "cursor" in options else None
    async with contextlib.AsyncExitStack() as stack:
        port = 0
        for round_ in range(3):
            async with gateway(tmp_path, port=port) as running:
                if not port:
                    port = running.port
                    writer = await stack.enter_async_context(reconnecting(port))
                    reader = await stack.enter_async_context(reconnecting(port, **options))
                async with registering(writer, 400):
                    found = await seen(reader, 400, then)
                    assert found == [*range(400)], round_
                os.kill(running.pid, signal.SIGKILL)


async def test_behind_an_event() -> None:
    async with running_gateway() as running, reconnecting(running.mariner.port) as writer:
        events = [(await writer.register(of(i)))[0] for i in range(10)]
        for start in [events[4].id], {1: events[4].id}:
            async with reconnecting(running.mariner.port, start=start) as reader:
                assert await seen(reader, 5) == [*range(5, 10)]
                assert reader._resumption.options == {
                    "start": [events[9].id],
                    "histories": reader.histories,
                }


async def test_an_acknowledgement_that_is_lost_is_made_up_for() -> None:
    async with (
        running_gateway() as running,
        proxy.create(running.mariner.port) as link,
        reconnecting(running.mariner.port) as writer,
    ):
        await asyncio.gather(*(writer.register(of(i)) for i in range(10)))
        async with reconnecting(link.port, cursor="c") as reader:

            async def lose(batch: ReplayBatch) -> None:
                link.hold()
                await batch.ack()
                link.cut()
                link.go_on()

            assert await seen(reader, 10, lose) == [*range(10)]
            await writer.register(of(10))
            assert await seen(reader, 1) == [10]
        async with reconnecting(link.port, cursor="c") as reader:
            assert await seen(reader, 1) == [10]


async def test_what_was_not_acknowledged_comes_again() -> None:
    async with (
        running_gateway() as running,
        proxy.create(running.mariner.port) as link,
        reconnecting(running.mariner.port) as writer,
        reconnecting(link.port, cursor="c") as reader,
    ):
        await writer.register(of(0))
        assert await seen(reader, 1) == [0]
        link.cut()
        assert await seen(reader, 1, acknowledged) == [0]


async def test_an_event_is_parked_again_if_that_was_lost() -> None:
    async with (
        running_gateway() as running,
        proxy.create(running.mariner.port) as link,
        reconnecting(running.mariner.port) as writer,
        reconnecting(link.port, cursor="c") as reader,
    ):
        await writer.register(of(0))

        async def park_and_lose(batch: ReplayBatch) -> None:
            link.hold()
            await batch.ack({batch.events[0].id: "why"})
            link.cut()
            link.go_on()

        assert await seen(reader, 1, park_and_lose) == [0]
        await writer.register(of(1))
        assert await seen(reader, 1, acknowledged) == [1]
        cursors = running.core.cursors
        assert cursors is not None
        cursor = cursors.find("app", "c")
        await until(lambda: cursor.n_parked)
        assert [i.reason for i in cursors.parked(cursor).values()] == ["why"]


async def test_a_cursor_that_another_one_has(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_gateway() as running,
        reconnecting(running.mariner.port) as writer,
        reconnecting(running.mariner.port, cursor="c") as first,
    ):
        await writer.register(of(0))
        assert await seen(first, 1) == [0]
        async with reconnecting(running.mariner.port, cursor="c") as second:
            assert await seen(second, 1) == [0]
            with pytest.raises(CursorLostError, match=r"another connection has the cursor now$"):
                await seen(first, 1)
            await first.wait_closed()
            with pytest.raises(CursorLostError):
                await seen(first, 1)
            await writer.register(of(1))
            assert await seen(second, 1) == [1]


async def test_an_attempt_that_was_given_up_and_comes_late() -> None:
    """The live connection keeps the cursor, although the other one comes after it."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        heard.put_nowait(await source.read(1 << 16))
        await source.read()  # until it is given up
        sink.close()

    async with running_gateway() as running, reconnecting(running.mariner.port) as writer:
        silent = await asyncio.start_server(hear, "127.0.0.1", 0)
        ports = [running.mariner.port, silent.sockets[0].getsockname()[1]]
        chosen = [0]

        async def connect(**options: Any) -> client.Client:
            options = {"subscriptions": [("a",)], "connect_timeout_s": 0.3, **options}
            named: dict[str, Any] = {"client_name": "app", "client_token": "secret"}
            return await client.connect("127.0.0.1", ports[chosen[0]], **named, **options)

        async with silent, ReconnectingClient([connect], cursor="c") as reader:
            await writer.register(of(0))
            assert await seen(reader, 1, acknowledged) == [0]
            chosen[0] = 1
            connection = reader._client
            assert connection is not None
            connection.close()
            given_up = await heard.get()
            chosen[0] = 0
            await writer.register(of(1))
            assert await seen(reader, 1, acknowledged) == [1]
            late, sink = await asyncio.open_connection("127.0.0.1", ports[0])
            sink.write(given_up)
            answer = await late.read(1 << 16)
            assert b"cursor 'c': a newer connection of this process took it" in answer
            sink.close()
            await writer.register(of(2))
            assert await seen(reader, 1, acknowledged) == [2]


async def test_a_cursor_that_is_reset_while_its_reader_is_away() -> None:
    """Its events come again, though it acknowledged them."""
    may_connect = asyncio.Event()
    may_connect.set()
    async with running_gateway() as running, reconnecting(running.mariner.port) as writer:
        [server] = servers(running.mariner.port)

        async def connect(**options: Any) -> client.Client:
            await may_connect.wait()
            return await server(**options)

        async with ReconnectingClient([connect], cursor="c") as reader:
            events = [event for i in range(3) for event in await writer.register(of(i))]
            assert await seen(reader, 3, acknowledged) == [0, 1, 2]
            may_connect.clear()
            connection, cursors = reader._client, running.core.cursors
            assert connection is not None
            assert cursors is not None
            await connection.async_close()
            await until(lambda: reader._client is None)
            cursor = cursors.look_up("app", "c")
            assert cursor is not None
            cursors.reset(cursor, {1: events[0].id})
            may_connect.set()
            assert await seen(reader, 2, acknowledged) == [1, 2]
            connection = reader._client
            assert connection is not None
            await connection.async_close()  # nothing comes again over another one
            await writer.register(of(3))
            assert await seen(reader, 1) == [3]


async def test_a_gap_is_told_once() -> None:
    retention = {"type": "memory", "retention": [{"subscriptions": [["a"]], "max_entries": 5}]}
    core = {"server_id": 1, "backend": retention}
    async with (
        running_gateway(event_core=core) as running,
        proxy.create(running.mariner.port) as link,
        reconnecting(running.mariner.port) as writer,
    ):
        [event] = await writer.register(of(0))
        for i in range(1, 20):
            await writer.register(of(i))
        while len((await writer.query(QueryTimeseriesParams([("a",)]))).events) > 5:
            await asyncio.sleep(0.01)
        async with reconnecting(link.port, start=[event.id]) as reader:
            with pytest.raises(GapError) as caught:
                await seen(reader, 1)
            assert isinstance(caught.value.oldest, EventId)
            connection = reader._client
            assert connection is not None
            link.cut()  # before anything else was seen
            await connection.wait_closed()
            assert await seen(reader, 5) == [*range(15, 20)]
            assert link.n_connections == 2


async def test_without_start_and_cursor() -> None:
    async with reconnecting(1) as reader:
        with pytest.raises(LocalProtocolError, match=r"^replay: give start or cursor$"):
            await seen(reader, 1)


async def test_the_iteration_ends_when_it_is_closed() -> None:
    async with running_gateway() as running:
        reader = reconnecting(running.mariner.port, start="earliest")
        reading = asyncio.create_task(seen(reader, 1))
        while reader.address is None:
            await asyncio.sleep(0)
        await reader.async_close()
        assert await reading == []
        assert await seen(reader, 1) == []


def test_a_gap_behind_something_new_is_another_one() -> None:
    resumption = Resumption("earliest", None, {})
    gap, of_another = GapError(1, None), GapError(2, EventId(2, 5, 1))
    assert resumption.is_new(gap)
    assert resumption.is_new(of_another)
    assert not resumption.is_new(gap)  # over the next connection
    assert not resumption.is_new(of_another)
    batch = ReplayBatch(EventsMsg([event_of(1, 3)]), no_acknowledgement, is_live=False)
    assert asyncio.run(resumption.fresh(batch, resumption.link)) is not None
    assert resumption.is_new(gap)
    assert not resumption.is_new(of_another)


def event_of(server: int, session: int) -> Event:
    return Event(EventId(server, session, 1), ("a",), Timestamp(0, 0), None, None)


class Acknowledged:
    """What was acknowledged over a connection, which may be lost meanwhile."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.messages: list[EventsAck] = []
        self._is_lost = is_lost

    async def __call__(self, message: EventsAck) -> None:
        self.messages.append(message)
        if self._is_lost:
            raise ConnectionLostError("lost")


def batch_of(acknowledge: Acknowledged, *sessions: int) -> ReplayBatch:
    return ReplayBatch(EventsMsg([event_of(1, i) for i in sessions]), acknowledge, is_live=True)


async def test_what_was_parked_is_parked_again_if_that_was_lost() -> None:
    resumption, lost, found = Resumption(None, "c", {}), Acknowledged(is_lost=True), Acknowledged()
    for sessions in ((1, 2, 3), (4, 5)):
        fresh = await resumption.fresh(batch_of(lost, *sessions), resumption.link)
        assert fresh is not None
        await fresh.ack({fresh.events[1].id: f"no {sessions}"} if sessions[0] == 1 else None)
    assert len(lost.messages) == 2
    resumption.connected({}, 0)
    assert await resumption.fresh(batch_of(found, 1, 2, 3, 4, 5), resumption.link) is None
    [message] = found.messages
    assert message.ids == (EventId(1, 5, 1),)
    assert [(i.id, i.reason) for i in message.parked] == [(EventId(1, 2, 1), "no (1, 2, 3)")]


async def test_what_was_reset_is_seen_again_whatever_is_acknowledged_of_before() -> None:
    resumption, lost, found = Resumption(None, "c", {}), Acknowledged(is_lost=True), Acknowledged()
    before = await resumption.fresh(batch_of(lost, 1, 2, 3), resumption.link)
    assert before is not None
    resumption.connected({}, 1)
    await before.ack()
    fresh = await resumption.fresh(batch_of(found, 1, 2, 3), resumption.link)
    assert fresh is not None
    assert len(fresh.events) == 3
    await fresh.ack()
    resumption.connected({}, 1)  # another one, to the same cursor
    assert await resumption.fresh(batch_of(found, 1, 2, 3), resumption.link) is None


async def no_acknowledgement(message: EventsAck) -> None:
    raise AssertionError(message)
