"""The client against real servers, ours and hat-mariner-server."""

import asyncio
import math
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits, tls
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventType,
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    Timestamp,
)
from mariner import client
from mariner import limits as client_limits
from mariner.client import latest, timeseries
from mariner.errors import (
    ConnectError,
    ConnectionLostError,
    InitError,
    LocalProtocolError,
    RegisterError,
    RemoteProtocolError,
)
from tests.mariner.client.servers import MIB, Server, register_event, running
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def values(events: Any) -> list[Any]:
    return [event.payload.value() for event in events]


# --- against both servers -------------------------------------------------------------------


async def test_register_notify_query(server: Server) -> None:
    source_timestamp = Timestamp(1_700_000_000, 123_456)
    events = [
        RegisterEvent(("round", "json"), source_timestamp, JsonPayload.of({"ä": [1, 2.5, None]})),
        RegisterEvent(("round", "binary"), None, BinaryPayload("blob", b"\x00\xff")),
        RegisterEvent(("round", "none"), None, None),
        RegisterEvent(("other",), None, None),
    ]
    async with await server.connect(subscriptions=[("round", "?")]) as conn:
        await conn.wait_status(Status.OPERATIONAL)
        registered = await conn.register(events)
        notified = await anext(conn.events())
        latest = await conn.query(QueryLatestParams([("round", "*")]))

    for asked, event in zip(events, registered, strict=True):
        assert event.type == asked.type
        assert event.source_timestamp == asked.source_timestamp
        assert_payload(event, asked)
    assert [event.id.instance for event in registered] == [1, 2, 3, 4]
    assert {event.id for event in notified} == {event.id for event in registered[:3]}
    assert {event.id for event in latest.events} == {event.id for event in registered[:3]}
    assert not latest.more_follows


def assert_payload(event: Event, asked: RegisterEvent) -> None:
    if isinstance(asked.payload, JsonPayload):
        assert isinstance(event.payload, JsonPayload)
        assert event.payload.value() == asked.payload.value()
    else:
        assert event.payload == asked.payload


async def test_wrong_token(server: Server) -> None:
    with pytest.raises(InitError, match=r"^invalid client (name or )?token$"):
        await server.connect(client_token="wrong")


async def test_what_people_write(server: Server) -> None:
    async with await server.connect(subscriptions=["a/*"]) as conn:
        event = await conn.register("a/b", {"on": True})
        assert event.type == ("a", "b")
        assert isinstance(event.payload, JsonPayload)
        assert event.payload.value() == {"on": True}
        source = datetime(2027, 1, 15, 8, tzinfo=UTC)
        dated = await conn.register(("a", "c"), source_timestamp=source)
        assert dated.payload is None
        assert dated.source_timestamp == Timestamp(1_800_000_000, 0)
        assert [*await anext(aiter(conn.events()))] == [event]
        assert (await conn.query(latest("a/b"))).events == [event]
        found = timeseries("a/?", source_t_from=source, source_t_to=source)
        assert [i async for i in conn.query_all(found)] == [dated]


async def test_what_nobody_writes(server: Server) -> None:
    number: Any = 5
    with pytest.raises(InvalidEventError, match=r"^subscriptions\[1\]: expected a text such as"):
        await server.connect(subscriptions=["a", number])
    async with await server.connect() as conn:
        for params in (QueryLatestParams([number]), QueryTimeseriesParams([number])):
            with pytest.raises(InvalidEventError, match=r"^event_types\[0\]: expected a text such"):
                await conn.query(params)
        with pytest.raises(InvalidEventError, match=r"^payload: nan has no JSON form"):
            await conn.register("a", math.nan)
        assert await conn.ping() > 0, "the connection lives on"


async def test_refused_registration(server: Server) -> None:
    expected = "no right to register 'a/b'" if server.is_ours else "the server gave no reason"
    async with await server.connect("reader", client_token="reads") as conn:
        with pytest.raises(RegisterError, match=expected):
            await conn.register([register_event("a", "b")])
        assert await conn.ping() > 0, "the connection lives on"


async def test_many_registrations_in_flight(server: Server) -> None:
    async with await server.connect() as conn:
        requests = [conn.register([register_event("flight", value=i)]) for i in range(300)]
        answers = await asyncio.gather(*requests)
    assert [values(answer) for answer in answers] == [[i] for i in range(300)]
    ids = [answer[0].id for answer in answers]
    assert ids == sorted(set(ids))


async def test_query_all_pages(server: Server) -> None:
    event_types: list[EventType] = [("pages",)]
    async with await server.connect() as conn:
        registered = [
            (await conn.register([register_event("pages", value=i)]))[0] for i in range(7)
        ]

        async def query_all(limit: int | None = None, **params: Any) -> list[Any]:
            query = QueryTimeseriesParams(event_types, **params)
            return values([event async for event in conn.query_all(query, limit=limit)])

        ascending = Order.ASCENDING
        assert await query_all(max_results=2) == [6, 5, 4, 3, 2, 1, 0]
        assert await query_all(max_results=2, order=ascending) == [0, 1, 2, 3, 4, 5, 6]
        assert await query_all() == [6, 5, 4, 3, 2, 1, 0]
        assert await query_all(max_results=3, limit=5) == [6, 5, 4, 3, 2]
        assert await query_all(limit=5) == [6, 5, 4, 3, 2]
        assert await query_all(limit=0) == []
        t_from = registered[5].timestamp
        assert await query_all(t_from=t_from, max_results=1) == [6, 5]

        first = registered[0]
        of_server = QueryServerParams(first.id.server, max_results=2, last_event_id=first.id)
        ids = [event.id async for event in conn.query_all(of_server)]
    assert [i for i in ids if i in {event.id for event in registered}] == [
        event.id for event in registered[1:]
    ]


async def test_conditions_of_ours(ours: Server) -> None:
    async with await ours.connect() as conn:
        events = [
            (await conn.register([register_event("conditions", str(i % 3), value=i % 2)]))[0]
            for i in range(7)
        ]

        async def query_all(**params: Any) -> list[int]:
            query = QueryTimeseriesParams([("conditions", "?")], order=Order.ASCENDING, **params)
            return [events.index(event) async for event in conn.query_all(query)]

        assert await query_all(ids=[events[5].id, events[1].id]) == [1, 5]
        assert await query_all(ids=[]) == []
        assert await query_all(payload=JsonPayload.of(1.0), max_results=2) == [1, 3, 5]
        assert await query_all(payload=BinaryPayload("t", b"1")) == []
        assert await query_all(unique_type=True, max_results=1) == [0, 1, 2]
        assert await query_all(unique_type=True, t_from=events[4].timestamp) == [4, 5, 6]
        payload = JsonPayload.of(1)
        ids = [event.id for event in events[2:]]
        assert await query_all(unique_type=True, payload=payload, ids=ids) == [3, 5]
        too_many = QueryTimeseriesParams(ids=[events[0].id] * (limits.MAX_QUERY_IDS + 1))
        with pytest.raises(LocalProtocolError, match=r"^4097 ids in one query, at most 4096"):
            await conn.query(too_many)
        assert await conn.ping() > 0, "the connection lives on"


async def test_a_server_that_does_not_know_the_conditions(tmp_path: Path) -> None:
    async with running("hat", tmp_path) as theirs, await theirs.connect() as conn:
        await conn.wait_status(Status.OPERATIONAL)
        events = await conn.register([register_event("a", value=i) for i in range(3)])
        refused: dict[str, dict[str, Any]] = {
            "ids": {"ids": [events[1].id]},
            "payload": {"payload": JsonPayload.of(1)},
            "unique_type": {"unique_type": True},
        }
        text = "query_res: events that were not requested: the server does not know '{}'"
        for name, condition in refused.items():
            params: Any = {"event_types": [("a",)], **condition}
            with pytest.raises(RemoteProtocolError) as e:
                await conn.query(QueryTimeseriesParams(**params))
            assert str(e.value) == text.format(name)
        # what it answers by chance as it was asked for, and what it knows
        params = {"event_types": [("a",)], "ids": [i.id for i in events]}
        assert len((await conn.query(QueryTimeseriesParams(**params))).events) == 3
        assert len((await conn.query(QueryTimeseriesParams([("a",)]))).events) == 3


async def test_closed_client(server: Server) -> None:
    conn = await server.connect(subscriptions=[("closed",)])
    await conn.register([register_event("closed", value=1)])
    await conn.query(QueryLatestParams([("closed",)]))
    await conn.async_close()
    assert conn.is_closed
    assert conn.close_reason == "closed by this client"
    with pytest.raises(ConnectionLostError, match=f":{server.port}: closed by this client"):
        await conn.ping()
    with pytest.raises(ConnectionLostError):
        await conn.register([register_event("closed")])
    assert conn.status is Status.OPERATIONAL, "what was last told"
    with pytest.raises(ConnectionLostError):
        await conn.wait_status(Status.STANDBY)
    await conn.async_close()


async def test_cancelled_request(server: Server) -> None:
    async with await server.connect() as conn:
        for _ in range(3):
            request = asyncio.ensure_future(conn.register([register_event("cancelled")]))
            await asyncio.sleep(0)
            request.cancel()
        answer = await conn.register([register_event("cancelled", value="kept")])
    assert values(answer) == ["kept"]


# --- against ours -----------------------------------------------------------------------------


async def test_iteration_ends_after_what_was_queued(ours: Server) -> None:
    async with await ours.connect(subscriptions=[("queued",)]) as conn:
        for i in range(3):
            await conn.register([register_event("queued", value=i)])
    assert [values(batch) async for batch in conn.events()] == [[0], [1], [2]]


async def test_waiting_for_events_can_be_cancelled(ours: Server) -> None:
    async with await ours.connect(subscriptions=[("patience",)]) as conn:
        events = conn.events()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        await conn.register([register_event("patience", value="later")])
        assert values(await anext(events)) == ["later"]


async def test_query_all_beyond_the_servers_maximum(ours: Server) -> None:
    count = 9_000
    async with await ours.connect() as conn:
        await conn.register([register_event("many", value=i) for i in range(count)])
        params = QueryTimeseriesParams([("many",)], order=Order.ASCENDING)
        assert (await conn.query(params)).more_follows
        assert values([event async for event in conn.query_all(params)]) == list(range(count))


async def test_latest_beyond_the_bytes_of_an_answer(ours: Server) -> None:
    async with await ours.connect() as conn:
        for i in range(3):
            await conn.register([register_event("large", str(i), value="x" * (6 * MIB))])
        params = QueryLatestParams([("large", "*")])
        assert (await conn.query(params)).more_follows
        found = [event.type[1] async for event in conn.query_all(params)]
        assert found == ["0", "1", "2"]
        found = [event.type[1] async for event in conn.query_all(params, limit=2)]
        assert found == ["0", "1"]


async def test_text_that_has_no_wire_form(ours: Server) -> None:
    async with await ours.connect() as conn:
        with pytest.raises(LocalProtocolError, match="no UTF-8 form"):
            await conn.register([register_event("\ud800")])
        assert await conn.ping() > 0


async def test_unread_notifications_hold_back_the_server_and_are_not_lost(ours: Server) -> None:
    count = client_limits.MAX_NOTIFICATIONS_BYTES // MIB + 8
    async with (
        await ours.connect(subscriptions=[("large",)]) as subscriber,
        await ours.connect() as other,
    ):
        for i in range(count):
            await other.register([register_event("large", value=[i, "x" * MIB])])
        await until(lambda: subscriber._connection.is_reading_paused)
        queued_bytes = subscriber._notifications._size_bytes
        assert (
            client_limits.MAX_NOTIFICATIONS_BYTES
            <= queued_bytes
            < client_limits.MAX_NOTIFICATIONS_BYTES + 2 * MIB
        )
        events = subscriber.events()
        numbers = [values(await anext(events))[0][0] for _ in range(count)]
        assert numbers == list(range(count))
        assert await subscriber.ping() > 0


async def test_a_request_behind_unread_notifications_fails_loudly(
    ours: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_limits, "STALL_TIMEOUT_S", 0.1)
    count = client_limits.MAX_NOTIFICATIONS_BYTES // MIB + 4
    async with (
        await ours.connect(subscriptions=[("stall",)]) as subscriber,
        await ours.connect() as other,
    ):
        for _ in range(count):
            await other.register([register_event("stall", value="x" * MIB)])
        await until(lambda: subscriber._connection.is_reading_paused)
        await asyncio.sleep(0.3)
        assert subscriber.is_open, "nobody waits, so nothing is wrong"
        with pytest.raises(ConnectionLostError, match="notifications are not consumed, and a"):
            await subscriber.ping()
        await subscriber.wait_closed()
        batches = [batch async for batch in subscriber.events()]
    assert client_limits.MAX_NOTIFICATIONS_BYTES // MIB <= len(batches) <= count


async def test_server_dies(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="memory") as running:
        conn = await client.connect(
            running.host, running.port, client_name="app", client_token="secret"
        )
        os.kill(running.pid, signal.SIGSTOP)
        requests = [asyncio.ensure_future(conn.ping()) for _ in range(3)]
        await asyncio.sleep(0)
        os.kill(running.pid, signal.SIGKILL)
        for request in requests:
            with pytest.raises(ConnectionLostError, match=r"closed the connection|reset by peer"):
                await request
        await conn.wait_closed()


async def test_mutual_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    strange = make_certificates(tmp_path / "strange")
    pair = (made.client_cert, made.client_key)
    keys = {"cert": str(made.server_cert), "key": str(made.server_key), "client_ca": str(made.ca)}
    async with gateway(tmp_path, tls=keys, backend="memory") as running:
        server = Server(running.host, running.port, True)
        good = tls.client_context(made.ca, *pair)
        async with await server.connect(ssl=good) as conn:
            large = "x" * MIB
            answer = await conn.register([register_event("tls", value=large)])
            assert values(answer) == [large]

        async def assert_refused(text: str, **options: Any) -> None:
            with pytest.raises(ConnectError) as e:
                await server.connect(**options)
            assert str(e.value).startswith(f"127.0.0.1:{running.port}: ")
            assert text in str(e.value)

        untrusted = "TLS: the server's certificate was not issued by a certificate authority that"
        no_certificate = "it may require a client certificate that it accepts"
        await assert_refused(untrusted, ssl=tls.client_context(strange.ca, *pair))
        await assert_refused(untrusted, ssl=tls.client_context(None, *pair))
        await assert_refused(
            "TLS: the server's certificate is not for 'other.example'",
            ssl=good,
            server_hostname="other.example",
        )
        await assert_refused(no_certificate, ssl=tls.client_context(made.ca))
        wrong_pair = tls.client_context(made.ca, strange.client_cert, strange.client_key)
        await assert_refused(no_certificate, ssl=wrong_pair)
        await assert_refused("it may require TLS")


async def test_tls_to_a_server_without(server: Server, tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    # ours answers what is no init_req, and that is no TLS
    expected = "the server does not speak TLS" if server.is_ours else "it may not speak TLS"
    with pytest.raises(ConnectError, match=expected):
        await server.connect(ssl=tls.client_context(made.ca))
