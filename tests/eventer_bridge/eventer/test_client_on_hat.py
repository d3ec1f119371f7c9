"""Our client on the real hat-event-server: every message."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer
from msgspec import Raw

from eventer_bridge import chatter
from eventer_bridge.errors import InitError, InvalidEventError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    Timestamp,
)
from tests.eventer_bridge.eventer.peers import register_event
from tests.support.hat_events import UNREADABLE
from tests.support.hat_peers import HatEventServer, hat_event_server

ALL = [("x", "*")]


def address(server: HatEventServer) -> chatter.Address:
    return chatter.Address(server.host, server.port, is_tls=False)


async def test_every_message(tmp_path: Path) -> None:
    async with hat_event_server(tmp_path, server_id=3, flush_period_s=0.05) as server:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        durable: asyncio.Queue[Any] = asyncio.Queue()
        at = address(server)
        async with (
            await eventer.connect(at, "a", subscriptions=ALL, on_events=heard.put_nowait) as client,
            await eventer.connect(
                at, "b", subscriptions=ALL, persisted=True, on_events=durable.put_nowait
            ) as keeper,
            await eventer.connect(
                at, "c", subscriptions=ALL, server_id=4, on_events=heard.put_nowait
            ) as of_nobody,
        ):
            assert client.status is keeper.status is of_nobody.status is Status.OPERATIONAL
            asked = [
                RegisterEvent(("x",), Timestamp(-2, 999_999), BinaryPayload("t", b"\x00\xff")),
                # as hat-event writes JSON
                RegisterEvent(("x", "1"), None, JsonPayload(Raw(b'{"a": [1, null, "\\u017e"]}'))),
                RegisterEvent(("x", "2"), None, None),
            ]
            registered: list[Event] = []
            for _ in range(4):
                events = await client.register(asked)
                contents = [RegisterEvent(e.type, e.source_timestamp, e.payload) for e in events]
                assert contents == asked
                assert {event.id.server for event in events} == {3}
                registered.extend(events)
            client.register_only([register_event("x", "only")])
            for queue in (heard, durable):
                told = [await queue.get() for _ in range(5)]
                assert told[:4] == [registered[i : i + 3] for i in range(0, 12, 3)]
                assert [event.type for event in told[4]] == [("x", "only")]
            assert heard.empty()

            params = QueryTimeseriesParams([("x", "*")], order=Order.ASCENDING, max_results=5)
            first = await client.query(params)
            assert (list(first.events), first.more_follows) == (registered[:5], True)
            rest = await client.query(
                QueryTimeseriesParams(ALL, order=Order.ASCENDING, last_event_id=first.events[-1].id)
            )
            assert list(rest.events[:-1]) == registered[5:]
            assert not rest.more_follows
            latest = await client.query(QueryLatestParams([("x", "?")]))
            assert sorted(event.type for event in latest.events) == [
                ("x", "1"),
                ("x", "2"),
                ("x", "only"),
            ]
            # what hat-event does not know it does not look at: its answers are whole
            behind = QueryLatestParams([("x", "?")], latest.events[0].id)
            assert await client.query(behind) == latest
            server_page = await client.query(
                QueryServerParams(3, persisted=True, max_results=2, last_event_id=registered[3].id)
            )
            assert (list(server_page.events), server_page.more_follows) == (registered[4:6], True)
            with pytest.raises(InvalidEventError, match="cannot be queried by ids, payload"):
                await client.query(QueryTimeseriesParams(unique_type=True))


async def test_declined(tmp_path: Path) -> None:
    async with hat_event_server(tmp_path, server_token="secret") as server:
        with pytest.raises(InitError, match="invalid client token"):
            await eventer.connect(address(server), "a", client_token="wrong")
        async with await eventer.connect(address(server), "a", client_token="secret"):
            pass


async def test_events_that_cannot_be_ones_here_are_left_out(tmp_path: Path) -> None:
    """hat-event takes them; nothing else that it has is lost for it."""
    async with hat_event_server(tmp_path, flush_period_s=0.05) as server:
        hat = await hat_eventer.connect(net.TcpAddress(server.host, server.port), "test")
        live: asyncio.Queue[Any] = asyncio.Queue()
        async with await eventer.connect(
            address(server), "a", subscriptions=ALL, persisted=True, on_events=live.put_nowait
        ) as client:
            wanted = []
            for number, bad in enumerate(UNREADABLE):
                good = common.RegisterEvent(("x", str(number)), None, common.EventPayloadJson(1))
                events = await hat.register([good, bad, good], with_response=True)
                wanted.append([tuple(events[0].id), tuple(events[2].id)])
                told = await live.get()
                assert [(i.id.server, i.id.session, i.id.instance) for i in told] == wanted[-1]
            assert client.refused_events == len(wanted)
            found = []
            last = None
            while True:  # pages that begin, end and consist of them
                params = QueryServerParams(1, persisted=True, max_results=1, last_event_id=last)
                result = await client.query(params)
                found += [i for i in result.events if i.type[0] == "x"]
                if not result.more_follows:
                    break
                last = result.events[-1].id
            ids = [(i.id.server, i.id.session, i.id.instance) for i in found]
            assert ids == [event_id for session in wanted for event_id in session]
            assert client.is_open
        await hat.async_close()
