"""Eventer client: large notifications, from servers that send what a test tells them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.errors import ClosedError
from eventer_bridge.eventer import client, codec
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsAck,
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgQueryRes,
    MsgStatusNotify,
)
from eventer_bridge.memory import MemoryShare, account_of_process
from eventer_bridge.model import (
    Event,
    EventId,
    QueryResult,
    QueryServerParams,
    Status,
    Timestamp,
)
from tests.support.waiting import until
from tests.torture.attacks import wire

LARGE = [
    Event(EventId(1, 1, i), ("t", str(i % 9)), Timestamp(1, 0), None, None) for i in range(1, 3_000)
]
SMALL = [Event(EventId(1, 2, 1), ("t",), Timestamp(2, 0), None, None)]


class Server(chatter.Handler):
    """Answers what it is asked, and sends what it is told to."""

    def __init__(self, connection: chatter.Connection) -> None:
        self.connection = connection
        self.n_acknowledged = 0
        self.is_full = False

    def on_message(self, message: chatter.Message) -> None:
        decoded = codec.decode(message.type, message.data)
        answers: dict[type[object], Message] = {
            MsgInitReq: MsgInitRes(Status.STANDBY),
            MsgQueryReq: MsgQueryRes(QueryResult(LARGE if self.is_full else SMALL, False)),
        }
        if isinstance(decoded, MsgEventsAck):
            self.n_acknowledged += 1
        else:
            answer = codec.encode(answers[type(decoded)])
            self.connection.send(*answer, conversation=message.conversation)

    def on_closed(self, reason: str) -> None:
        pass

    def send(self, message: Message) -> None:
        self.connection.send(*codec.encode(message))


@contextlib.asynccontextmanager
async def connected(
    heard: list[object], *, keeps_bounds: bool = False
) -> AsyncIterator[tuple[Server, client.EventerClient]]:
    servers: list[Server] = []

    def make(connection: chatter.Connection) -> Server:
        servers.append(Server(connection))
        return servers[-1]

    def on_events(events: Sequence[Event]) -> None:
        heard.append(events)

    async with await chatter.listen(chatter.Address("127.0.0.1", 0), make) as listener:
        connection = await client.connect(
            listener.address,
            "c",
            keeps_bounds=keeps_bounds,
            on_events=on_events,
            on_status=heard.append,
        )
        async with connection:
            yield servers[0], connection


async def test_large_notifications_are_taken_in_in_slices_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode, decoded_bytes = codec.decode, []

    def spying(name: str, data: bytes) -> object:
        decoded_bytes.append(len(data))
        return decode(name, data)

    heard: list[object] = []
    async with connected(heard) as (server, connection):
        monkeypatch.setattr(codec, "decode", spying)
        for _ in range(2):
            server.connection.send(*codec.encode(MsgEventsNotify(LARGE)), last=False)
            server.send(MsgEventsNotify(SMALL))
            server.send(MsgStatusNotify(Status.OPERATIONAL))
        result = await connection.query(QueryServerParams(1))
        assert heard == [LARGE, SMALL, Status.OPERATIONAL] * 2  # before the answer
        assert connection.status is Status.OPERATIONAL
        assert result.events == SMALL
        server.is_full = True
        assert (await connection.query(QueryServerParams(1))).events == LARGE
        assert max(decoded_bytes) <= limits.LARGE_MESSAGE_BYTES
        await connection.query(QueryServerParams(1))
        assert server.n_acknowledged == 2


@pytest.mark.parametrize("is_gateway", [True, False])
async def test_what_a_gateway_holds_for_a_server_is_on_the_account(is_gateway: bool) -> None:
    """An application decides itself what it holds."""
    account = account_of_process()
    async with connected([], keeps_bounds=is_gateway) as (server, connection):
        server.connection.write(wire.frame(b" " * 400_000)[:-1])
        await until(lambda: connection._connection._sans_io.buffered_bytes >= 400_000)
        await until(lambda: server.connection.unread_bytes == 0)
        server.connection.sweep(0)
        assert account.n_bytes == (
            connection._connection._sans_io.buffered_bytes if is_gateway else 0
        )
        account.max_bytes = 500_000
        another = MemoryShare(account, "another")
        another.set(200_000)
        assert connection.close_reason == ("too much is buffered" if is_gateway else None)
        assert account.n_bytes == 200_000
        another.close()


async def test_what_is_decoded_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLICE_S", 0.0)
    async with connected([], keeps_bounds=True) as (server, connection):
        server.is_full, most_bytes = True, 0
        asking = asyncio.create_task(connection.query(QueryServerParams(1)))
        while not asking.done():
            most_bytes = max(most_bytes, connection._connection.held_bytes)
            await asyncio.sleep(0)
        assert most_bytes > limits.LARGE_MESSAGE_BYTES
        assert connection._connection.held_bytes == 0


async def test_a_malformed_large_notification_ends_the_connection() -> None:
    heard: list[object] = []
    async with connected(heard) as (server, connection):
        name, data = codec.encode(MsgEventsNotify(LARGE))
        server.connection.send(name, data + b"\x80")
        server.send(MsgEventsNotify(SMALL))
        with pytest.raises(ClosedError, match="1 bytes follow"):
            await connection.query(QueryServerParams(1))
        assert not heard


async def test_nothing_is_heard_of_a_large_notification_after_the_end() -> None:
    heard: list[object] = []
    async with connected(heard) as (server, connection):
        server.send(MsgEventsNotify(LARGE))
        server.send(MsgEventsNotify(SMALL))
        while connection._queued is None:
            await asyncio.sleep(0)
        await connection.async_close()
        assert not heard


async def test_what_came_behind_a_large_notification_is_not_heard_before_it() -> None:
    heard: list[object] = []
    async with connected(heard) as (server, connection):
        server.send(MsgEventsNotify(LARGE))
        server.send(MsgEventsNotify(SMALL))
        while connection._queued is None:
            await asyncio.sleep(0)
        # over TLS, the end comes with what was sent before: all of it is handed over then
        connection._connection.eof_received()
        assert connection._queued
        while len(heard) < 2 and connection.is_open:
            await asyncio.sleep(0)
    assert heard in ([], [LARGE], [LARGE, SMALL])
