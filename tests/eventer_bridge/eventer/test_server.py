"""Eventer server: who is let in, who is not, and what ends a connection."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.core.authentication import Authenticator, OneForAll
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.errors import ClosedError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsAck,
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgRegisterReq,
    MsgRegisterRes,
    MsgStatusNotify,
)
from eventer_bridge.model import Event, QueryLatestParams, QueryServerParams, Status
from tests.eventer_bridge.eventer.peers import (
    closed,
    initialised,
    raw,
    register_event,
    serving,
)

CLIENT = ClientConfig("gui/1", "secret", (("*",),), ())
TOKEN = OneForAll("secret")
CLIENTS = Authenticator([CLIENT], PayloadSchemas())


def init(token: str | None = None, name: str = "gui/1", *subscriptions: str) -> MsgInitReq:
    types = tuple(tuple(i.split("/")) for i in subscriptions)
    return MsgInitReq(name, token, types, None, persisted=False)


@pytest.mark.parametrize(
    ("authenticator", "request_", "error"),
    [
        (TOKEN, init(None), "invalid client token"),
        (TOKEN, init(""), "invalid client token"),
        (TOKEN, init("Secret"), "invalid client token"),
        (OneForAll(None), init("secret"), "invalid client token"),
        (OneForAll(""), init(None), "invalid client token"),
        (
            OneForAll(None),
            init(None, "n" * 257),
            "client name has 257 characters, at most 256 are allowed",
        ),
        (CLIENTS, init(None), "invalid client name or token"),
        (CLIENTS, init("wrong"), "invalid client name or token"),
        (CLIENTS, init("secret", "nobody"), "invalid client name or token"),
        (
            TOKEN,
            init("secret", "gui/1", "a/b", "*/a"),
            "query type '*/a': '*' is allowed only as the last segment",
        ),
        (
            TOKEN,
            init("secret", "gui/1", *map(str, range(limits.MAX_SUBSCRIPTION_TYPES + 1))),
            "1001 query types, at most 1000 are allowed",
        ),
        (
            TOKEN,
            init("secret", "gui/1", "/".join("x" * 66)),
            "event type has 66 segments, at most 64 are allowed",
        ),
    ],
)
async def test_declined_with_the_reason(
    authenticator: Authenticator,
    request_: MsgInitReq,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # the client closes first, as hat-event's does; it is not waited for any longer
    monkeypatch.setattr(limits, "DECLINED_LINGER_S", 60.0)
    caplog.set_level(logging.WARNING, "eventer_bridge")
    async with serving(authenticator=authenticator) as (server, _):
        async with raw(server) as peer:
            assert await peer.request(request_, MsgInitRes) == MsgInitRes(None, error)
        await closed(server, "declined")
        assert (server.stats.declined, server.stats.clients) == (1, 0)
        while server.stats.connections:
            await asyncio.sleep(0.005)
    [record] = [i for i in caplog.records if i.message == "closing connection"]
    assert error in record.__dict__["detail"]
    assert "secret" not in str(record.__dict__).lower()


async def test_a_declined_client_that_stays_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECLINED_LINGER_S", 0.1)
    async with serving(authenticator=TOKEN) as (server, core), raw(server) as peer:
        response = await peer.request(init("wrong"), MsgInitRes)
        assert response.error == "invalid client token"
        # nothing that it says now is listened to
        peer.send(init("secret"), last=False)
        peer.send(MsgRegisterReq([register_event("a")]))
        assert await peer.close_reason() == "peer closed"
        assert peer.messages.empty()
        assert not (await core.query(QueryLatestParams([("a",)]))).events


async def test_a_token_or_a_name_lets_in() -> None:
    async with serving(authenticator=TOKEN) as (server, _):
        async with initialised(server, token="secret"):
            assert (server.stats.clients, server.stats.declined) == (1, 0)
        await closed(server, "peer closed")
        assert server.stats.clients == 0
    async with serving(authenticator=CLIENTS) as (server, _), initialised(server, token="secret"):
        pass


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([MsgRegisterReq([])], "HatEventer.MsgRegisterReq came first, expected MsgInitReq"),
        (
            [MsgQueryReq(QueryLatestParams())],
            "HatEventer.MsgQueryReq came first, expected MsgInitReq",
        ),
        ([MsgEventsAck()], "HatEventer.MsgEventsAck came first, expected MsgInitReq"),
        ([init(), init()], "HatEventer.MsgInitReq is not expected now"),
        ([init(), init(None, "gui/1", *"x" * 1001)], "1001 query types, at most 1000"),
        ([init(), MsgStatusNotify(Status.STANDBY)], "MsgStatusNotify is not expected now"),
        ([init(), MsgInitRes(Status.STANDBY)], "HatEventer.MsgInitRes is not expected now"),
        ([init(), MsgRegisterRes(None)], "HatEventer.MsgRegisterRes is not expected now"),
        ([init(), MsgEventsNotify([])], "HatEventer.MsgEventsNotify is not expected now"),
    ],
)
async def test_what_is_not_expected_closes_with_the_reason_in_the_log(
    messages: list[Message], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (server, _):
        async with raw(server) as peer:
            for message in messages:
                peer.send(message, last=False)
            assert await peer.close_reason() == "peer closed"
        await closed(server, "protocol error")
        assert details(caplog, reason)
        async with initialised(server) as other:
            assert await other.register(register_event("alive"))


@pytest.mark.parametrize(
    ("msg_type", "data", "reason"),
    [
        ("HatEventer.MsgUnknown", b"", "'HatEventer.MsgUnknown': not a message of the Eventer"),
        ("x" * 1000, b"", "not a message of the Eventer protocol"),
        ("HatEventer.MsgRegisterReq", b"\x81", "length or count 1 at byte 0"),
        ("HatEventer.MsgRegisterReq", b"", "MsgRegisterReq: ends too early, at byte 0"),
        ("HatEventer.MsgRegisterReq", b"\x80\x80", "ends at byte 1, but 1 bytes follow"),
    ],
)
async def test_malformed_and_unknown_messages_close(
    msg_type: str, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (server, _):
        async with initialised(server) as peer:
            peer.connection.send(msg_type, data, last=False)
            assert await peer.close_reason() == "peer closed"
        await closed(server, "protocol error")
        assert details(caplog, reason)
        async with initialised(server) as other:
            assert await other.register(register_event("alive"))


@pytest.mark.parametrize(
    ("before", "message", "reason"),
    [
        ([], init(), "MsgInitReq ends its conversation, expected an open one"),
        (
            [init()],
            MsgQueryReq(QueryLatestParams()),
            "MsgQueryReq ends its conversation, expected an open one",
        ),
    ],
)
async def test_requests_that_cannot_be_answered_close(
    before: list[Message], message: Message, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (server, _), raw(server) as peer:
        for i in before:
            await peer.request(i, MsgInitRes)
        peer.send(message, last=True)
        assert await peer.close_reason() == "peer closed"
        assert details(caplog, reason)


def details(caplog: pytest.LogCaptureFixture, part: str) -> list[Any]:
    return [i for i in caplog.records if part in i.__dict__.get("detail", "")]


async def test_every_status_is_told_in_order() -> None:
    async with serving() as (server, core), initialised(server) as peer, raw(server) as silent:
        await core.stop()
        await core.start()
        for status in ("STOPPING", "STANDBY", "STARTING", "OPERATIONAL"):
            message, received = await peer.receive(MsgStatusNotify)
            assert (message.status.name, received.is_last) == (status, True)
        assert await silent.request(init(), MsgInitRes) == MsgInitRes(Status.OPERATIONAL)
        assert silent.messages.empty()


async def test_registration_fails_while_it_is_not_operational() -> None:
    async with serving() as (server, core):
        await core.stop()
        async with raw(server) as peer:
            assert await peer.request(init(), MsgInitRes) == MsgInitRes(Status.STANDBY)
            assert await peer.register(register_event("a")) is None
            await core.start()
            for _ in range(2):
                await peer.receive(MsgStatusNotify)
            assert await peer.register(register_event("a"))
        assert server.stats.rejected["not operational"] == 1


async def test_closing_answers_what_is_under_way(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as (server, core), initialised(server) as peer:
        frames = server.stats.frames_in
        for i in range(200):
            peer.send(MsgRegisterReq([register_event("a", value=i)]), last=False)
        while server.stats.frames_in < frames + 100:
            await asyncio.sleep(0)
        await server.async_close()
        await peer.close_reason()
        acknowledged: list[Event] = []
        while not peer.messages.empty():
            response, _ = await peer.receive(MsgRegisterRes)
            assert response.events is not None
            acknowledged.extend(response.events)
        stored = (await core.query(QueryServerParams(1, persisted=True))).events
        assert len(acknowledged) >= 100
        assert acknowledged == [event for event in stored if event.type == ("a",)]


async def test_a_server_that_starts_again_serves_again(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with serving(tmp_path / "store") as (server, _):
            port = server.address.port
            client = await stack.enter_async_context(await eventer.connect(server.address, "gui"))
            [first] = await client.register([register_event("a")])
        await client.wait_closed()
        assert client.close_reason == "peer closed"
        with pytest.raises(ClosedError, match="peer closed"):
            client.register([register_event("a")])
        with pytest.raises(ClosedError, match="peer closed"):
            await client.query(QueryLatestParams())
        async with serving(tmp_path / "store", port=port) as (server, _):
            client = await stack.enter_async_context(await eventer.connect(server.address, "gui"))
            [second] = await client.register([register_event("a")])
            assert second.id.session > first.id.session
            result = await client.query(QueryServerParams(1, last_event_id=first.id))
            assert [i for i in result.events if i.type == ("a",)] == [second]


async def test_both_dialects_are_answered_alike() -> None:
    for dialect in chatter.Dialect:
        async with serving() as (server, _):
            heard: asyncio.Queue[Any] = asyncio.Queue()
            async with await eventer.connect(
                server.address,
                "gui",
                subscriptions=[("a",)],
                persisted=True,
                on_events=heard.put_nowait,
                dialect=dialect,
            ) as client:
                assert client.status is Status.OPERATIONAL
                registered = await client.register([register_event("a"), register_event("b")])
                assert await heard.get() == list(registered[:1])
                result = await client.query(QueryServerParams(1, persisted=True))
                assert list(result.events[-2:]) == list(registered)
                client.register_only([register_event("a", value=2)])
                [event] = await heard.get()
                assert event.payload.value() == 2
