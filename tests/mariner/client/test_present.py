"""A replay that begins now: nothing of before, everything of later, over all connections."""

import asyncio
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    JsonPayload,
    QueryParams,
    QueryResult,
    QueryServerParams,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from mariner import client
from mariner.client import ReconnectingClient
from mariner.client.present import positions
from tests.support.gateway import gateway
from tests.support.inprocess import running_gateway
from tests.support.waiting import until

NAMED: Final[dict[str, Any]] = {"client_name": "app", "client_token": "secret"}


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.05)


def viewer(*ports: int, **options: Any) -> ReconnectingClient:
    subscribed = functools.partial(client.connect, "127.0.0.1", subscriptions=["a/*"], **NAMED)
    return ReconnectingClient(
        [functools.partial(subscribed, port) for port in ports], start="now", **options
    )


async def register(port: int, *numbers: int) -> None:
    async with await client.connect("127.0.0.1", port, **NAMED) as writer:
        for number in numbers:
            await writer.register("a/b", number)


def value_of(event: Event) -> int:
    assert isinstance(event.payload, JsonPayload)
    value: int = event.payload.value()
    return value


async def seen(view: ReconnectingClient, last: int) -> list[int]:
    found: list[int] = []
    async for batch in view.replay():
        found += map(value_of, batch.events)
        if found[-1:] == [last]:
            break
    return found


async def connected(view: ReconnectingClient) -> None:
    await until(lambda: view.address)


@pytest.mark.parametrize("n_before", [0, 1, 50])
async def test_from_the_first_connection_on(tmp_path: Path, n_before: int) -> None:
    async with running_gateway(path=tmp_path / "store") as running:
        port = running.mariner.port
        await register(port, *range(n_before))
        async with viewer(port) as view:
            await connected(view)
            await register(port, 100, 101)
            assert await seen(view, 101) == [100, 101]
            await cut(view)
            await register(port, 102)
            assert await seen(view, 102) == [102]


async def cut(view: ReconnectingClient) -> None:
    assert view._client is not None
    await view._client.async_close()


async def test_what_came_while_it_was_away_before_it_saw_anything() -> None:
    async with running_gateway() as running:
        port = running.mariner.port
        await register(port, *range(10))
        async with viewer(port) as view:
            await connected(view)
            await cut(view)
            await register(port, 100)
            assert await seen(view, 100) == [100]


async def test_over_a_restart_of_the_server(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        port = running.port
        await register(port, *range(10))
        view = viewer(port)
        await connected(view)
        await register(port, 100)
    async with gateway(tmp_path, port=port), view:
        await register(port, 101)
        assert await seen(view, 101) == [100, 101]


async def test_with_a_cursor_it_goes_on_where_it_was_over_restarts_of_the_view() -> None:
    async with running_gateway() as running:
        port = running.mariner.port
        await register(port, *range(10))
        async with viewer(port, cursor="view") as view:
            await connected(view)
            await register(port, 100)
            batch = await anext(view.replay())
            assert [*map(value_of, batch.events)] == [100]
            await batch.ack()
        await register(port, 101)
        async with viewer(port, cursor="view") as view:
            await connected(view)
            await register(port, 102)
            assert await seen(view, 102) == [101, 102]


async def test_it_waits_for_a_server() -> None:
    async with running_gateway() as running:
        port = running.mariner.port
    async with viewer(port) as view:
        seeing = asyncio.create_task(seen(view, 100))
        await asyncio.sleep(0)
        async with running_gateway(mariner={"host": "127.0.0.1", "port": port}):
            await connected(view)
            await register(port, 100)
            assert await seeing == [100]


async def test_of_other_servers_too() -> None:
    async with running_gateway() as running:
        assert isinstance(running.core, Engine)
        for session in range(1, 6):
            await running.core.replicate([of_server(77, session)])
        async with viewer(running.mariner.port) as view:
            await connected(view)
            await running.core.replicate([of_server(77, 6)])
            assert await seen(view, 6) == [6]
            await cut(view)
            await running.core.replicate([of_server(77, 7)])
            assert await seen(view, 7) == [7]


def of_server(server: int, session: int) -> Event:
    event_id = EventId(server, session, 1)
    return Event(event_id, ("a", "b"), Timestamp(session, 0), None, JsonPayload.of(session))


# --- where now is ---------------------------------------------------------------------------


class Store:
    """Answers queries; sessions of each server, of which the latest query tells some servers."""

    def __init__(self, sessions: Mapping[int, Sequence[int]], told: int) -> None:
        self._sessions = {i: sorted(set(some)) for i, some in sessions.items()}
        self._told = told
        self.n_queries = 0

    async def query(self, params: QueryParams) -> QueryResult:
        self.n_queries += 1
        if not isinstance(params, QueryServerParams):
            some = [self._event(i, found[0]) for i, found in self._sessions.items() if found]
            told = some[: self._told]  # page by page
            last = getattr(params, "last_event_id", None)
            rest = told[[None, *(i.id for i in told)].index(last) :]
            return QueryResult(rest[:1], len(rest) > 1)
        assert params.last_event_id is not None
        behind = params.last_event_id.session
        found = [i for i in self._sessions.get(params.server_id, ()) if i > behind]
        return QueryResult([self._event(params.server_id, i) for i in found[:1]], len(found) > 1)

    def _event(self, server: int, session: int) -> Event:
        return Event(EventId(server, session, 1), ("a", str(server)), Timestamp(0, 0), None, None)


SESSIONS: Final = st.lists(st.integers(1, 2_000) | st.integers(1, INT64_MAX), max_size=5)


@given(st.dictionaries(st.integers(1, 5), SESSIONS, max_size=3), st.integers(0, 3))
async def test_where_now_is(sessions: dict[int, list[int]], told: int) -> None:
    store = Store(sessions, told)
    expected = {i: EventId(i, max(some), INT64_MAX) for i, some in sessions.items() if some}
    known = [*expected][told:]
    assert {*await positions(store.query, [*known, 9])} == {*expected.values()}


async def test_few_queries_find_it() -> None:
    store = Store({1: range(1, 100_000)}, 1)
    assert await positions(store.query, [1]) == [EventId(1, 99_999, INT64_MAX)]
    assert store.n_queries <= 40
