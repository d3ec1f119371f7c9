"""What a wire gets from ``Stream`` and ``ClientSession``, shown by one of 120 lines."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.client_service import ClientService
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.fanout import Filter
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule, Rights
from eventer_bridge.model import RegisterEvent
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.accepting import StreamListener, listen_for_streams
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.net.stream import Pause
from eventer_bridge.packed import Batch
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.core import line_wire
from tests.eventer_bridge.core.engines import Recorder
from tests.eventer_bridge.core.line_wire import ENCODING, Client

TIMEOUT_S = 60


class Serving(NamedTuple):
    core: Engine
    service: ClientService
    listener: StreamListener[Client]
    peers: "list[Peer]"

    @property
    def stats(self) -> ServerStats:
        return self.service.stats

    async def connect(self) -> "Peer":
        self.peers.append(Peer(*await asyncio.open_connection("127.0.0.1", self.listener.port)))
        return self.peers[-1]

    async def hello(self, *types: str) -> "Peer":
        peer = await self.connect()
        peer.send("hello", "a", "secret", *types)
        assert await peer.receive() == "welcome OPERATIONAL"
        return peer


class Peer(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *words: object) -> None:
        self.writer.write(" ".join(map(str, words)).encode() + b"\n")

    async def receive(self) -> str:
        async with asyncio.timeout(TIMEOUT_S):
            return (await self.reader.readline()).decode().rstrip("\n")

    async def word(self) -> str:
        return (await self.receive()).partition(" ")[0]


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Serving]:
    config = ClientConfig("a", "secret", (("x", "*"),), (RegisterRule((("x", "*"),)),))
    backend, schemas = await rocksdb.create_temporary(), PayloadSchemas({})
    async with backend, await engine.create(backend, 1) as core:
        authenticator = Authenticator([config], schemas)
        service = ClientService(core, authenticator, ENCODING, lambda params, seconds: None)
        listener = await listen_for_streams(
            "127.0.0.1", 0, functools.partial(Client, service), stats=service.stats
        )
        async with listener:
            it = Serving(core, service, listener, [])
            yield it
            for peer in it.peers:
                peer.writer.transport.abort()
        await service.stop()


async def until_closed(it: Serving, reason: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not it.stats.closed[reason]:
            await asyncio.sleep(0.001)


def test_the_wire_is_short() -> None:
    source = Path(line_wire.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 125


async def test_the_core_tells_a_server_only_what_its_clients_want_to_hear() -> None:
    async with serving() as it:
        fanout, subscription = it.service.fanout, Subscription([("x",)])
        wanted = {kind: Filter(subscription, None, kind) for kind in (False, True)}

        def told() -> list[bool]:
            return [kind for kind in (False, True) if it.service in it.core._hearing[kind]]

        receiver: Any = object()
        assert told() == []
        fanout.add(receiver, wanted[True])
        assert told() == [True]
        fanout.add(receiver, wanted[False])
        assert told() == [False, True]
        fanout.remove(receiver, wanted[True])
        assert told() == [False]
        fanout.remove(receiver, wanted[False])
        assert told() == []


async def test_who_subscribed_hears_of_what_is_registered() -> None:
    async with serving() as it:
        listener, other = await it.hello("x/b", "y"), await it.hello()
        other.send("register", "x/a", "1")
        other.send("register", "x/b", "2")
        assert [await other.word() for _ in range(2)] == ["registered", "registered"]
        assert await listener.receive() == "event x/b"
        other.send("query", "x/b")
        assert await other.receive() == "found 1"
        assert (it.stats.clients, it.stats.connections, it.stats.accepted) == (2, 2, 2)
        assert (it.stats.events_registered, it.stats.events_notified) == (2, 1)
        assert (it.stats.frames_in, it.stats.frames_out) == (5, 6)


async def test_rights(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving() as it:
        stranger = await it.connect()
        stranger.send("hello", "a", "wrong")
        assert await stranger.receive() == "declined invalid client name or token"
        assert await stranger.receive() == ""
        client = await it.hello("event/*")  # which it may not see
        client.send("register", "y", "1")
        assert await client.word() == "refused"
        client.send("query", "event/*")
        assert await client.receive() == "found 0"
        assert (it.stats.declined, it.stats.rejected) == (1, {"rights or schema": 1})
    [record] = [i for i in caplog.records if i.message == "closing connection"]
    assert record.__dict__["client"] == "a"


async def test_replies_come_in_the_order_of_the_requests() -> None:
    async with serving() as it:
        client = await it.hello()
        for i in range(100):
            client.send("register", "y" if i % 3 else "x/a", i)
        replies = [await client.word() for _ in range(100)]
        assert replies == ["refused" if i % 3 else "registered" for i in range(100)]


async def test_rights_are_checked_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas take time: only so the stream's turn can end between two messages."""
    steps: list[str] = []
    on_message, refusal = Client.on_message, Rights.refusal

    def note_message(client: Client, message: str) -> None:
        steps.append("message")
        on_message(client, message)

    def note_refusal(rights: Rights, events: Sequence[RegisterEvent]) -> str | None:
        steps.append("rights")
        return refusal(rights, events)

    monkeypatch.setattr(Client, "on_message", note_message)
    monkeypatch.setattr(Rights, "refusal", note_refusal)
    async with serving() as it:
        client = await it.hello()
        steps.clear()
        client.writer.write(b"register x/a 1\n" * 50)
        assert [await client.word() for _ in range(50)] == ["registered"] * 50
    assert steps == ["message", "rights"] * 50


async def test_too_many_registrations_hold_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REGISTRATIONS_IN_FLIGHT", 4)
    paused: list[Pause] = []
    pause = Client.pause_reading

    def note(client: Client, reason: Pause) -> None:
        paused.append(reason)
        pause(client, reason)

    monkeypatch.setattr(Client, "pause_reading", note)
    async with serving() as it:
        client = await it.hello()
        for i in range(100):
            client.send("register", "x/a", i)
        client.writer.write_eof()
        assert [await client.word() for _ in range(101)] == [*["registered"] * 100, ""]
        assert Pause.REGISTRATIONS_FULL in paused


async def test_who_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 1 << 20)
    async with serving() as it:
        deaf, other = await it.hello("x/*"), await it.hello()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        kind = "x/" + "a" * 900
        while not it.stats.closed["slow consumer"]:
            other.send("register", kind, 1)
            assert await other.word() == "registered"


DEADLINES = {
    "FIRST_MESSAGE_TIMEOUT_S": "no first message",
    "MESSAGE_TIMEOUT_S": "unfinished message",
}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no first message"),
        (b"hello a secret\nregister x/a", "unfinished message"),
        (b"register x/a 1\n", "protocol error"),
        (b"x" * 2_000_000, "protocol error"),
    ],
)
async def test_deadlines_and_mistakes(
    data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.01)
    for name, ends in DEADLINES.items():
        monkeypatch.setattr(net_limits, name, 0.1 if reason == ends else 3600.0)
    async with serving() as it:
        peer = await it.connect()
        peer.writer.write(data)
        await until_closed(it, reason)
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(ConnectionError):
                await peer.reader.read()


async def test_what_was_sent_last_arrives_though_much_is_unread() -> None:
    """Or else the system would reset the connection."""
    async with serving() as it:
        peer = await it.connect()
        peer.send("hello", "a", "wrong")
        for _ in range(100):
            peer.send("register", "x/a", "x" * 1_000)
        assert await peer.receive() == "declined invalid client name or token"
        assert await peer.receive() == ""


async def test_what_is_durable_is_notified_before_it_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    send_registered = Client.send_registered

    class Hearing(Recorder):
        def on_session(self, session: Batch, persisted: bool) -> None:
            if ("x", "a") in session.types:  # and not of the client's connection
                order.append("notified")

    def send(client: Client, batches: Sequence[Batch]) -> None:
        order.append("acknowledged")
        send_registered(client, batches)

    monkeypatch.setattr(Client, "send_registered", send)
    async with serving() as it:
        client = await it.hello()
        it.core.add_observer(Hearing(), registered=False)
        client.send("register", "x/a", 1)
        assert await client.word() == "registered"
        assert order == ["notified", "acknowledged"]


async def test_an_answer_that_raises_closes_its_client_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(client: Client, batches: Sequence[Batch]) -> None:
        raise ZeroDivisionError

    async with serving() as it:
        bad, good = await it.hello(), await it.hello()
        monkeypatch.setattr(Client, "send_registered", fail)
        bad.send("register", "x/a", 1)
        await until_closed(it, "internal error")
        monkeypatch.undo()
        good.send("register", "x/a", 2)
        assert await good.word() == "registered"
        assert it.stats.closed == {"internal error": 1}


async def test_a_message_that_ends_its_connection_is_counted() -> None:
    async with serving() as it:
        peer = await it.connect()
        peer.send("register", "x/a", 1)
        await until_closed(it, "protocol error")
        assert it.stats.frames_in == 1


async def test_who_is_closed_by_what_it_is_sent_last_is_closed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sending may fill up what all connections may hold together."""
    monkeypatch.setattr(net_limits, "SEND_HIGH_WATER_BYTES", 1_000)
    async with serving() as it:
        peer = await it.hello()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        [client] = it.listener.streams
        client.slot.share._account.max_bytes = 100_000
        # it leaves by closing only
        monkeypatch.setattr(net_limits, "SEND_HIGH_WATER_BYTES", 1 << 30)
        client.write_unbounded([bytes(10_000_000)])
        client.close()
        assert it.stats.closed.total() == 1
        assert it.stats.clients == 0


async def test_who_floods_a_connection_that_is_closing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "MAX_DROPPED_BYTES", 100_000)
    monkeypatch.setattr(net_limits, "LINGER_S", 1e6)
    monkeypatch.setattr(net_limits, "CLOSE_TIMEOUT_S", 1e6)
    monkeypatch.setattr(limits, "DECLINED_LINGER_S", 1e6)
    async with serving() as it:
        peer = await it.connect()
        peer.send("hello", "a", "wrong")
        assert await peer.word() == "declined"
        assert it.stats.connections == 1
        peer.writer.write(bytes(1_000_000))
        async with asyncio.timeout(TIMEOUT_S):
            while it.stats.connections:
                await asyncio.sleep(0.001)


async def test_closing_answers_what_is_under_way() -> None:
    async with serving() as it:
        client = await it.hello()
        for i in range(10):
            client.send("register", "x/a", i)
        assert await client.word() == "registered"
        await it.service.drain()
        await it.listener.async_close()
        assert [await client.word() for _ in range(10)] == [*["registered"] * 9, ""]


@pytest.mark.parametrize("limit", [("ANSWERED_EVENTS", 1), ("ANSWERED_BYTES", 3)])
async def test_answers_are_written_some_at_a_time(
    limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client could have the answers to all it registered built up in memory."""
    sizes: list[int] = []

    def send(client: Client, batches: Sequence[Batch]) -> None:
        sizes.append(len(batches))
        for batch in batches:
            client.send("registered", batch.session)

    async with serving() as it:
        peer = await it.hello()
        monkeypatch.setattr(Client, "send_registered", send)
        monkeypatch.setattr(limits, *limit)
        peer.writer.write(b"register x/a 1\n" * 7)
        answers = [await peer.receive() for _ in range(7)]
        numbers = [int(answer.removeprefix("registered ")) for answer in answers]
        assert numbers == sorted(numbers)
        assert max(sizes) == 2
