"""Where a relay goes on in the events of a server that still has the last one, or has not."""

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventer_bridge import chatter
from eventer_bridge.eventer import client
from eventer_bridge.model import INT64_MAX, Event, EventId, Timestamp
from eventer_bridge.remote import relay
from eventer_bridge.remote.relay import RelayPosition
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.peer import RawPeer, event, register_req

N_SESSIONS = 40
LATER = Timestamp(1 << 40, 0)


@contextlib.asynccontextmanager
async def server_with_events(
    path: Path,
) -> AsyncIterator[tuple[client.EventerClient, list[Event]]]:
    """A client of a server, and what is registered there."""
    async with event_server(path, 1) as server:
        async with await RawPeer.init(server.mariner.port) as peer:
            for i in range(N_SESSIONS):
                assert (await peer.request(register_req(i, event("a"), event("b"))))["success"]
        address = chatter.Address("127.0.0.1", eventer_port(server))
        async with await client.connect(address, "test") as connected:
            yield connected, [i for i in await events_of(server, 1) if i.type == ("b",)]


async def resume(connected: client.EventerClient, position: RelayPosition) -> EventId | None:
    found = await relay.resume(connected, {1: position})
    assert list(found) == [1]
    return found[1]


async def test_the_last_event_is_still_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server_with_events(tmp_path) as (connected, events):
        for told in events:
            assert await resume(connected, RelayPosition.of(told)) == told.id
    assert not [i for i in caplog.records if i.levelno >= logging.WARNING]


async def test_the_last_events_were_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with server_with_events(tmp_path) as (connected, events):
        for last in events:  # of those that were there when the other ones were told of
            session_id = last.id.session
            for lost in (1, 2, N_SESSIONS, 1_000_000):
                told = RelayPosition(EventId(1, session_id + lost, 1), last.timestamp)
                assert await resume(connected, told) == EventId(1, session_id, INT64_MAX)
            assert caplog.records[-1].__dict__["continues_after"] == session_id
            # none of this server's events was there at that time
            before = Timestamp(0, 0)
            assert await resume(connected, RelayPosition(EventId(1, session_id, 1), before)) is None
            assert caplog.records[-1].__dict__["continues_after"] is None
        first = await relay.resume(
            connected, {2: RelayPosition(EventId(2, 17, 1), LATER)}
        )  # a server of which nothing is there any more
        assert first == {1: None, 2: None}


async def test_the_baseline_is_the_last_event_of_each_server(tmp_path: Path) -> None:
    async with server_with_events(tmp_path) as (connected, _):
        [(server_id, position)] = (await relay.baseline(connected)).items()
        assert server_id == 1
        assert await resume(connected, position) == position.id
