"""Replay: what retention deletes while a client reads, and sessions of which it saw a part."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from mariner import client
from mariner.gateway.gateway import Gateway
from tests.mariner.gateway.test_replay import connect, id_of, of, reader, received, serving, values
from tests.support.peer import RawPeer

RULE = {"subscriptions": [["a"]], "max_entries": 20}
LARGE = "x" * 50_000


@pytest.fixture(params=["memory", "rocksdb"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "rocksdb" else None


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.001)
    monkeypatch.setattr(limits, "REPLAY_PAGE_EVENTS", 5)


async def store_much(connection: client.Client, *, until_gone: int) -> list[Event]:
    """Register more than a connection holds, until so many of it are deleted."""
    stored: list[Event] = []
    for _ in range(20):  # 10 MB
        stored += await connection.register([of("a", value=LARGE) for _ in range(10)])
    gone = [i.id for i in stored[:until_gone]]
    while (await connection.query(QueryTimeseriesParams(ids=gone))).events:
        await asyncio.sleep(0.01)
    return stored


@contextlib.asynccontextmanager
async def slow_reader(
    gateway: Gateway, connection: client.Client, **keys: Any
) -> AsyncIterator[tuple[RawPeer, list[Event]]]:
    """A reader that is up to date and stops to read, and what is stored then."""
    async with await reader(gateway, "earliest", **keys) as peer:
        assert await received(peer) == []
        yield peer, await store_much(connection, until_gone=180)


async def check_told(peer: RawPeer, stored: Sequence[Event]) -> int:
    """Each event comes, or a gap is told before the next one; returns the number of gaps."""
    ids = [id_of(i) for i in stored]
    n_gaps, position, is_told = 0, 0, False
    while position < len(ids):
        message = await peer.receive()
        if message["msg_type"] == "gap":
            n_gaps += 1
            is_told = True
            assert message["oldest"] in ids[position:]
            continue
        for event in message.get("events", ()):
            found = ids.index(event["id"], position)
            assert found == position or is_told
            position, is_told = found + 1, False
    return n_gaps


@pytest.mark.parametrize("keys", [{}, {"cursor": "c"}], ids=str)
async def test_a_slow_reader_is_told_of_what_was_deleted(
    path: Path | None, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 2 << 20)
    async with (
        serving(path, retention=[RULE]) as gateway,
        await connect(gateway) as connection,
        slow_reader(gateway, connection, **keys) as (peer, stored),
    ):
        assert await check_told(peer, stored) == 1


async def test_who_declines_gaps_is_closed_at_one(path: Path | None) -> None:
    async with (
        serving(path, retention=[RULE]) as gateway,
        await connect(gateway) as connection,
        slow_reader(gateway, connection, decline_gap=True) as (peer, _),
    ):
        while (message := await peer.receive())["msg_type"] != "gap":
            pass
        assert message["oldest"] is not None
        assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.closed["a gap in what it gets"] == 1


async def test_a_new_server_is_behind_as_well(path: Path | None) -> None:
    """Of a server that was not known when the client connected, everything is new."""
    async with serving(path, retention=[RULE]) as gateway, await connect(gateway) as connection:
        assert isinstance(gateway.core, Engine)
        async with slow_reader(gateway, connection) as (peer, stored):
            for session in range(1, 42):
                await gateway.core.replicate(session_of(session, 1))
            first = EventId(2, 1, 1)
            while (await connection.query(QueryTimeseriesParams(ids=[first]))).events:
                await asyncio.sleep(0.01)
            told: dict[int, EventId | None] = {}
            last = {"server": 2, "session": 41, "instance": 1}
            found: list[Any] = []
            while last not in found:
                message = await peer.receive()
                if message["msg_type"] == "gap":
                    told[message["server_id"]] = message["oldest"]
                found += [i["id"] for i in message.get("events", ())]
            assert told.keys() == {1, 2}
        assert stored


def session_of(session: int, n_events: int) -> list[Event]:
    now = Timestamp.now()
    return [
        Event(EventId(2, session, i), ("a",), now, None, JsonPayload.of(i))
        for i in range(1, n_events + 1)
    ]


@pytest.mark.parametrize("cursor", [None, "c"])
async def test_the_rest_of_a_session_comes_later(path: Path | None, cursor: str | None) -> None:
    seen = {"server": 2, "session": 7, "instance": 3}
    async with serving(path) as gateway:
        assert isinstance(gateway.core, Engine)
        if cursor is not None:  # half of it was acknowledged elsewhere
            await gateway.core.replicate(session_of(6, 1))
            async with await reader(gateway, [], cursor=cursor) as peer:
                assert values(await received(peer)) == [1]
            assert gateway.core.cursors is not None
            [kept] = gateway.core.cursors
            gateway.core.cursors.acknowledge(kept, [EventId(2, 7, 3)])
        keys = {} if cursor is None else {"cursor": cursor}
        async with await reader(gateway, [seen], **keys) as peer:
            assert await received(peer) == []
            await gateway.core.replicate(session_of(7, 5))
            await gateway.core.replicate(session_of(8, 2))
            events: list[Any] = []
            while len(events) < 4:
                events += (await peer.receive()).get("events", ())
            found = [(i["id"]["session"], i["id"]["instance"]) for i in events]
            assert found == [(7, 4), (7, 5), (8, 1), (8, 2)]


async def test_a_session_that_comes_while_the_client_joins(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"server": 2, "session": 7, "instance": 3}
    async with serving(path) as gateway:
        core = gateway.core
        assert isinstance(core, Engine)
        await core.replicate(session_of(6, 1))
        answer, n_pages = core.answer, 0

        async def then_it_comes(query: VisibleQuery, *args: Any) -> Any:
            nonlocal n_pages
            result = await answer(query, *args)
            if isinstance(query.params, QueryServerParams) and query.params.server_id == 2:
                n_pages += 1
                if n_pages == 2:  # the first was before it was accepted
                    await core.replicate(session_of(7, 5))
            return result

        monkeypatch.setattr(core, "answer", then_it_comes)
        async with await reader(gateway, [seen]) as peer:
            assert values(await received(peer)) == [4, 5]
