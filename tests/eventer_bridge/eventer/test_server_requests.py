"""Eventer server: registrations and queries, right, wrong, many and slow."""

import asyncio
import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.chatter import sbs
from eventer_bridge.core import engine
from eventer_bridge.core.authentication import Authenticator, OneForAll
from eventer_bridge.core.paging import query_all
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule
from eventer_bridge.errors import StorageError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.eventer import codec
from eventer_bridge.eventer import server as eventer_server
from eventer_bridge.eventer.messages import (
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
)
from eventer_bridge.model import (
    BinaryPayload,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stream import Pause
from tests.eventer_bridge.core.slow_engine.support import SlowBackend, running
from tests.eventer_bridge.eventer.peers import (
    Peer,
    closed,
    initialised,
    raw,
    register_event,
    serving,
)
from tests.support.slow_reading import SlowReading

REGISTER_REQ = "HatEventer.MsgRegisterReq"
QUERY_REQ = "HatEventer.MsgQueryReq"
ASCENDING = QueryTimeseriesParams([("a",)], order=Order.ASCENDING)
SLOW = QueryTimeseriesParams(max_results=SlowReading.MARK)


async def query(peer: Peer, params: QueryParams) -> QueryResult:
    return (await peer.request(MsgQueryReq(params), MsgQueryRes)).result


async def test_registered_with_and_without_an_answer(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        asked = [
            RegisterEvent(("a",), Timestamp(-1, 999_999), BinaryPayload("t", b"\x00\xff")),
            register_event("a", value={"x": [1, None]}),
            RegisterEvent((), None, None),
        ]
        events = await peer.register(*asked)
        assert events is not None
        assert [RegisterEvent(e.type, e.source_timestamp, e.payload) for e in events] == asked
        assert [e.id.instance for e in events] == [1, 2, 3]
        peer.send(MsgRegisterReq([register_event("b")]))
        peer.send(MsgRegisterReq([register_event("?")]))  # nobody is told that it failed
        assert await peer.register() == []
        assert len((await query(peer, QueryLatestParams([("b",)]))).events) == 1
        assert server.stats.rejected["invalid event"] == 1


def source_timestamp(s: int, us: int) -> bytes:
    """A registration of an event with this source timestamp."""
    time = sbs.encode_integer(s) + sbs.encode_integer(us)
    return b"\x81" + b"\x81\x81a" + b"\x81" + time + b"\x80"


def json_payload(text: bytes) -> bytes:
    """A registration of an event with this text as its payload."""
    return b"\x81" + b"\x81\x81a" + b"\x80" + b"\x81\x81" + sbs.encode_integer(len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        codec.encode(MsgRegisterReq([register_event("a"), register_event("a", "?")]))[1],
        codec.encode(MsgRegisterReq([register_event("*")]))[1],
        codec.encode(MsgRegisterReq([register_event(*"x" * 65)]))[1],
        codec.encode(MsgRegisterReq([register_event(*"x" * 66)]))[1],
        codec.encode(MsgRegisterReq([register_event("x" * 1025)]))[1],
        source_timestamp(0, 1_000_000),
        source_timestamp(0, -1),
        json_payload(b"NaN"),
        json_payload(b'"\\ud800"'),
        json_payload(b""),
        json_payload(b"[" * 129 + b"]" * 129),
        json_payload(b"1" * 1001),
        sbs.encode_integer(limits.MAX_SESSION_EVENTS + 1)
        + b"\x80\x80\x80" * (limits.MAX_SESSION_EVENTS + 1),
    ],
)
async def test_a_wrong_registration_fails_and_the_connection_goes_on(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "eventer_bridge")
    async with serving() as (server, _), initialised(server) as peer:
        conversation = peer.connection.send(REGISTER_REQ, data, last=False)
        response, answer = await peer.receive(MsgRegisterRes)
        assert response.events is None
        assert answer.conversation is conversation
        [record] = [i for i in caplog.records if i.message == "registration refused"]
        assert record.__dict__["client"] == "gui/1"
        assert record.__dict__["reason"]
        peer.connection.send(REGISTER_REQ, data)
        assert await peer.register(register_event("a"))
        assert server.stats.rejected.total() == 2


async def test_refusals_that_wait_for_their_answer_hold_the_client_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_REGISTRATIONS_IN_FLIGHT", 4)
    address = chatter.Address("127.0.0.1", 0)
    async with (
        await SlowBackend.create() as backend,
        running(backend) as core,
        await eventer_server.listen(core, address, OneForAll(None)) as server,
        initialised(server) as peer,
    ):
        while not backend.asked:  # connected
            await asyncio.sleep(0.001)
        backend.is_slow = True
        peer.send(MsgRegisterReq((register_event("a"),)), last=False)
        for _ in range(20):
            peer.connection.send(REGISTER_REQ, json_payload(b""), last=False)
        [connection] = server.connections
        while Pause.REGISTRATIONS_FULL not in connection.pauses or not backend.commits:
            await asyncio.sleep(0.001)
        assert server.stats.frames_in == 1 + 4
        backend.commits[0].set_result(None)
        answers = [(await peer.receive(MsgRegisterRes))[0].events is None for _ in range(21)]
        assert answers == [False, *[True] * 20]
        assert server.stats.rejected.total() == 20


async def test_a_full_core_takes_one_registration_of_each_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much came from it in this turn."""
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 10)
    monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 4)
    address = chatter.Address("127.0.0.1", 0)
    async with (
        await SlowBackend.create() as backend,
        running(backend) as core,
        await eventer_server.listen(core, address, OneForAll(None)) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        peers = [await stack.enter_async_context(initialised(server)) for _ in range(10)]
        while len(backend.asked) < len(peers):  # connected
            await asyncio.sleep(0.001)
        backend.is_slow = True
        for peer in peers:
            for _ in range(30):
                peer.send(MsgRegisterReq([register_event("a")] * 2), last=False)
        while not all(Pause.CORE_FULL in i.pauses for i in server.connections):
            await asyncio.sleep(0.001)
        while not backend.commits:  # begun
            await asyncio.sleep(0.001)
        # one filled it with what it had gathered
        assert core.pending_events <= limits.MAX_PENDING_EVENTS + 4 + 2 * (len(peers) - 1)
        backend.is_slow = False
        backend.commits[0].set_result(None)  # or else closing waits for it
        for peer in peers:
            answers = [(await peer.receive(MsgRegisterRes))[0].events for _ in range(30)]
            assert all(answers)


async def test_what_came_together_is_answered_each_by_itself() -> None:
    """Notified before or not, with events of a module or without, and who kept the token."""
    threshold = {"subscriptions": [["t", "?"]], "path": [], "limit": 5}
    modules = [{"module": "eventer_bridge.modules.threshold", "thresholds": [threshold]}]
    address = chatter.Address("127.0.0.1", 0)
    async with (
        await rocksdb.create_temporary() as backend,
        await engine.create(backend, 1, modules=modules) as core,
        await eventer_server.listen(core, address, OneForAll(None)) as server,
        initialised(server, [("told", "?")]) as peer,
    ):
        asked = [("t", 9), ("told", 0), ("a", 1), ("told", 2), ("t", 1), ("kept", 3), ("a", 4)]
        expected: dict[int, tuple[str, int]] = {}
        for name, value in asked:
            request = codec.encode(MsgRegisterReq([register_event(name, "x", value=value)]))
            has_token = name != "kept"
            sent = peer.connection.send(*request, last=False, token=has_token)
            if has_token:
                expected[sent.first_id] = name, value
        answered: dict[int, tuple[str, int]] = {}
        while len(answered) < len(expected):
            message = await asyncio.wait_for(peer.messages.get(), 60)
            if isinstance(answer := codec.decode(message.type, message.data), MsgRegisterRes):
                assert answer.events is not None
                [event] = answer.events
                assert isinstance(event.payload, JsonPayload)
                answered[message.conversation.first_id] = event.type[0], event.payload.value()
        assert answered == expected
        assert len((await query(peer, QueryLatestParams([("kept", "x")]))).events) == 1
        assert len((await query(peer, QueryLatestParams([("alarm", "*")]))).events) == 1


async def test_a_refusal_is_logged_though_its_client_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It asked for no answer: the log is the only place that says so."""
    caplog.set_level(logging.INFO, "eventer_bridge")
    address = chatter.Address("127.0.0.1", 0)
    async with (
        await SlowBackend.create() as backend,
        running(backend) as core,
        await eventer_server.listen(core, address, OneForAll(None)) as server,
    ):
        async with initialised(server) as peer:
            while not backend.asked:  # connected
                await asyncio.sleep(0.001)
            backend.is_slow = True
            peer.send(MsgRegisterReq((register_event("a"),)))
            while not backend.commits:
                await asyncio.sleep(0.001)
        await closed(server, "peer closed")
        backend.commits[0].set_exception(StorageError("the disk is full"))
        while not server.stats.rejected.total():
            await asyncio.sleep(0.001)
    [record] = [i for i in caplog.records if i.message == "registration refused"]
    assert record.__dict__["client"] == "gui/1"
    assert record.__dict__["reason"] == "the disk is full"


async def test_lines_of_the_log_do_not_grow_with_what_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "eventer_bridge")
    long = "x" * 1_000_000
    client = ClientConfig("app", None, (("*",),), (RegisterRule((("app", "*"),)),))
    authenticator = Authenticator([client], PayloadSchemas())
    async with serving(authenticator=authenticator) as (server, _):
        async with initialised(server, name="app") as peer:
            for event_type in ("other", long), ("app", long), ("app", "?", *["y"] * 63):
                assert await peer.register(RegisterEvent(event_type, None, None)) is None
        for name, query_type in ("n" * 60_000, ()), ("app", ("*", long[:60_000])):
            async with raw(server) as peer:
                request = MsgInitReq(name, None, (query_type,), None, False)
                response = await peer.request(request, MsgInitRes)
                assert response.error is not None
                assert len(response.error) <= limits.MAX_REASON_CHARACTERS
                assert await peer.close_reason() == "peer closed"
    refused = [i for i in caplog.records if i.message == "registration refused"]
    assert len(refused) == 3
    for record in caplog.records:
        assert len(str(record.__dict__)) < 5_000


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            codec.encode(MsgQueryReq(QueryTimeseriesParams([("*", "a")])))[1],
            "'*' is allowed only as the last segment",
        ),
        (
            codec.encode(MsgQueryReq(QueryLatestParams([("a", "*", "b")])))[1],
            "'*' is allowed only as the last segment",
        ),
        (codec.encode(MsgQueryReq(QueryServerParams(1, False, -1)))[1], "max_results is -1"),
        (
            b"\x81\x80\x81\x80" + sbs.encode_integer(1_000_000) + b"\x80" * 7,
            "timestamp out of range: s=0 us=1000000",
        ),
    ],
)
async def test_a_wrong_query_closes_with_the_reason_and_the_server_lives_on(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving() as (server, _),
        initialised(server) as peer,
        initialised(server) as other,
    ):
        peer.connection.send(QUERY_REQ, data, last=False)
        assert await peer.close_reason() == "peer closed"
        [record] = [i for i in caplog.records if i.message == "closing connection"]
        assert reason in record.__dict__["detail"]
        assert await other.register(register_event("a"))


async def test_queries_have_pages(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        for i in range(20):
            assert await peer.register(*(register_event("a", value=i) for _ in range(5)))
        everything = (await query(peer, ASCENDING)).events
        assert len(everything) == 100
        for params, wanted in (
            (ASCENDING, everything),
            (QueryTimeseriesParams([("a",)]), everything[::-1]),
            (
                QueryTimeseriesParams([("a",)], order_by=OrderBy.SOURCE_TIMESTAMP),
                everything[::-1],
            ),
        ):
            assert await pages(peer, params, 7) == list(wanted)
        server_pages = await pages(peer, QueryServerParams(1), 7)
        assert [event for event in server_pages if event.type == ("a",)] == list(everything)
        assert await pages(peer, QueryServerParams(2), 7) == []
        latest = await query(peer, QueryLatestParams([("?",)]))
        assert list(latest.events) == [everything[-1]]
        unknown = QueryTimeseriesParams([("a",)], last_event_id=EventId(1, 10_000, 1))
        assert await query(peer, unknown) == QueryResult([], False)


async def test_latest_has_pages_that_ours_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", 3)
    params = QueryLatestParams([("?",)])
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        registered = await peer.register(*map(register_event, "abcdefgh"))
        assert registered is not None
        async with await eventer.connect(server.address, "client") as client:
            assert [i async for i in query_all(client.query, params)] == list(registered)
        latest = await query(peer, params)
        assert latest.more_follows
        unknown = msgspec.structs.replace(params, last_event_id=EventId(1, 10_000, 1))
        assert await query(peer, unknown) == QueryResult([], True)


async def pages(peer: Peer, params: Any, size: int) -> list[Any]:
    found: list[Any] = []
    while True:
        last = found[-1].id if found else None
        params = msgspec.structs.replace(params, max_results=size, last_event_id=last)
        result = await query(peer, params)
        found.extend(result.events)
        assert len(result.events) == size or not result.more_follows
        if not result.more_follows:
            return found


SCHEMA = {"$id": "test://n", "type": "object", "properties": {"n": {"type": "integer"}}}
CLIENTS = [
    ClientConfig("reader", None, (("a", "*"), ("b",)), ()),
    ClientConfig(
        "writer",
        "secret",
        (("a", "1"),),
        (RegisterRule((("a", "*"),)), RegisterRule((("c", "?"),), "test://n")),
    ),
]


async def test_rights_bound_what_is_seen_and_registered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventer_bridge")
    authenticator = Authenticator(CLIENTS, PayloadSchemas([SCHEMA]))
    async with (
        serving(authenticator=authenticator) as (server, _),
        initialised(server, [("*",)], name="reader") as reader,
        initialised(server, [("*",)], name="writer", token="secret") as listener,
        initialised(server, name="writer", token="secret") as writer,
    ):
        events = await writer.register(
            register_event("a", "1"),
            register_event("a", "2"),
            register_event("c", "1", value={"n": 1}),
        )
        assert events is not None
        assert (await reader.receive(MsgEventsNotify))[0].events == list(events[:2])
        assert (await listener.receive(MsgEventsNotify))[0].events == list(events[:1])
        for params in (QueryLatestParams(), QueryTimeseriesParams(), QueryServerParams(1)):
            seen = (await query(reader, params)).events
            assert {event.id for event in seen} == {event.id for event in events[:2]}
            assert list((await query(writer, params)).events) == list(events[:1])
        for event, reason in (
            (register_event("b"), "register_events[0]: no right to register 'b'"),
            (register_event("c"), "register_events[0]: no right to register 'c'"),
            (
                register_event("c", "1", value={"n": "x"}),
                "register_events[0]: 'c/1': payload/n: value is not of type \"integer\"",
            ),
            (
                RegisterEvent(("c", "1"), None, None),
                "register_events[0]: 'c/1': a JSON payload is required by its schema",
            ),
        ):
            assert await writer.register(register_event("a", "1"), event) is None
            assert caplog.records[-1].__dict__["reason"] == reason.replace("[0]", "[1]")
        assert await reader.register(register_event("a", "1")) is None
        assert server.stats.rejected == {"rights or schema": 5}
        assert reader.messages.empty()


# --- many and slow ------------------------------------------------------------------------


class SlowQueries:
    """Queries of clients wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.n_waiting = 0
        answer = RocksDbBackend.answer

        async def slow_answer(
            backend: RocksDbBackend, query: VisibleQuery, client: str = "", *args: Any, **more: Any
        ) -> QueryResult:
            if client:  # not of the engine itself
                self.n_waiting += 1
                await asyncio.get_running_loop().run_in_executor(None, self.release.wait)
            return await answer(backend, query, client, *args, **more)

        monkeypatch.setattr(RocksDbBackend, "answer", slow_answer)


async def test_a_slow_query_holds_back_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowQueries(monkeypatch)
    async with (
        serving(tmp_path / "store") as (server, _),
        initialised(server, [("a",)]) as peer,
        initialised(server) as other,
    ):
        asked = peer.send(MsgQueryReq(ASCENDING), last=False)
        while not slow.n_waiting:
            await asyncio.sleep(0.005)
        # neither others nor its own registrations and notifications
        assert await other.register(register_event("a"))
        await peer.receive(MsgEventsNotify)
        assert await peer.register(register_event("b"))
        slow.release.set()
        _, answer = await peer.receive(MsgQueryRes)
        assert answer.conversation is asked


async def test_the_queries_of_a_client_that_leaves_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowReading(monkeypatch)
    async with serving(tmp_path / "store") as (server, _):
        async with initialised(server) as peer:
            for _ in range(3):
                peer.send(MsgQueryReq(SLOW), last=False)
            while not slow.n_under_way:
                await asyncio.sleep(0.005)
        while slow.n_under_way:
            await asyncio.sleep(0.005)
        async with initialised(server) as other:
            assert await other.register(register_event("a"))
        while server.stats.connections:
            await asyncio.sleep(0.005)
        assert slow.n_ended == 1
        assert server.stats.clients == 0


async def test_more_queries_and_registrations_than_wait_are_answered_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_QUERIES_WAITING", 4)
    monkeypatch.setattr(limits, "MAX_REGISTRATIONS_IN_FLIGHT", 8)
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        queries = [peer.send(MsgQueryReq(ASCENDING), last=False) for _ in range(50)]
        answers = [(await peer.receive(MsgQueryRes))[1].conversation for _ in range(50)]
        assert answers == queries
        registrations = [
            peer.send(MsgRegisterReq([register_event("a", value=i)]), last=False)
            for i in range(200)
        ]
        answers = [(await peer.receive(MsgRegisterRes))[1].conversation for _ in range(200)]
        assert answers == registrations


async def test_registrations_of_all_kinds_are_answered_in_order(tmp_path: Path) -> None:
    """Whatever they wait for: large ones and many new types take longer, a refusal nothing."""
    many_types = [register_event(f"t{i}") for i in range(limits.MANY_NEW_TYPES + 1)]
    large = [RegisterEvent((), None, None)] * (limits.LARGE_SESSION_EVENTS + 1)
    small, refused = [register_event("a")], [register_event("*")]
    kinds = [many_types, small, refused, large, small, refused]
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        requests = []
        for events in kinds * 5:
            frames = server.stats.frames_in
            requests.append(peer.send(MsgRegisterReq(events), last=False))
            while server.stats.frames_in == frames:  # each as it comes, not all of them at once
                await asyncio.sleep(0)
        sessions = []
        answered = []
        for _ in requests:
            response, message = await peer.receive(MsgRegisterRes)
            answered.append(message.conversation)
            if response.events is not None:
                sessions.append(response.events[0].id.session)
        assert answered == requests
        assert sessions == list(range(sessions[0], sessions[0] + 20))


@pytest.mark.parametrize(("n_bytes", "n_requests"), [(0, 2), (1_000, 1)])
async def test_a_large_registration_is_answered_while_the_server_closes(
    tmp_path: Path, n_bytes: int, n_requests: int
) -> None:
    """All that was read: what the server leaves unread may reset the connection."""
    n_events = 2 * limits.LARGE_SESSION_EVENTS
    events = [RegisterEvent((), None, BinaryPayload("", bytes(n_bytes)))] * n_events
    async with serving(tmp_path / "store") as (server, core), initialised(server) as peer:
        for _ in range(n_requests):
            peer.send(MsgRegisterReq(events), last=False)
        while core.pending_events < n_events:
            await asyncio.sleep(0)
        await server.async_close()
        await peer.close_reason()
        response, _ = await peer.receive(MsgRegisterRes)
        assert response.events is not None
        assert len(response.events) == n_events


async def test_a_full_core_stops_reading_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 10)
    monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 4)
    async with serving(tmp_path / "store") as (server, core), contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(initialised(server)) for _ in range(10)]
        most_pending = 0
        for _ in range(60):
            for peer in peers:
                peer.send(MsgRegisterReq([register_event("a")] * 2), last=False)
        for _ in range(60):
            for peer in peers:
                response, _ = await peer.receive(MsgRegisterRes)
                assert response.events is not None
                most_pending = max(most_pending, core.pending_events)
        # each of them was stopped by the registrations that filled it
        assert 0 < most_pending <= limits.MAX_PENDING_EVENTS + 4 * len(peers)


async def test_answers_that_are_not_read_stop_the_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
    monkeypatch.setattr(net_limits, "WRITE_STALL_TIMEOUT_S", 0.3)
    observed: list[QueryParams] = []
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        server.service.observe_query = lambda params, seconds: observed.append(params)
        for _ in range(50):
            assert await peer.register(register_event("a", value="x" * 20_000))
        peer.connection.pause_reading(Pause.USER)
        for _ in range(limits.MAX_QUERIES_WAITING):
            peer.send(MsgQueryReq(ASCENDING), last=False)
        await closed(server, "write stalled")
        # a few answers of 1 MB were made for it, not all of them
        assert len(observed) < 30
        async with initialised(server) as other:
            assert await other.register(register_event("a"))
