"""Nobody is told of what it may not see, whichever way it asks or listens.

Every query is compared with a naive answer, of which the client may see some types: on both wires,
of each core, answered at once, on the event loop, and by reader threads. ``more_follows`` is
compared, too: it must not count what is hidden. Then everybody listens who may not see all.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from eventer_bridge import chatter, limits, packed
from eventer_bridge.eventer import client as eventer_client
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    Timestamp,
)
from mariner import client as mariner_client
from mariner.gateway.gateway import Gateway
from mariner_console.config import WatchedGateway
from mariner_console.watcher import Watcher
from tests.eventer_bridge.backends.oracle import is_right
from tests.support.inprocess import APP, running_gateway
from tests.wires import asking, model, readers
from tests.wires.model import Expected
from tests.wires.readers import Reader
from tests.wires.world import (
    Gateways,
    World,
    by_mariner,
    eventer_port,
    three_gateways,
    until_replicated,
    without_compiled,
)

SEEN: Final = [("a", "?"), ("b",)]
NARROW: Final[dict[str, Any]] = {
    "name": "narrow",
    "token": "secret",
    "subscriptions": [[*i] for i in SEEN],
    "register_events": [],
}

TYPES: Final[list[EventType]] = [
    ("a", "1"), ("secret",), ("a", "2"), ("a", "1", "x"), ("b",), ("a", "1"), ("secret",), ("c",),
    ("secret",), ("a", "1"), ("b",), ("a",), ("secret",), ("a", "2"), ("secret",), ("secret",),
]  # fmt: skip
"""Of the events, most of which are hidden: between others, in front, and at the end."""

FEW: Final = 8


class Querying(Protocol):
    async def query(self, params: QueryParams, /) -> QueryResult: ...


@contextlib.asynccontextmanager
async def gateway_of(core: str, path: Path, quota: dict[str, int]) -> AsyncIterator[Gateway]:
    clients = [APP, {**NARROW, "quota": quota}]
    backend = {"type": "memory"}
    if core == "rocksdb":
        backend = {"type": "rocksdb", "path": str(path / "store")}
    listener = {"host": "127.0.0.1", "port": 0}
    served = {"server_id": 1, "backend": backend, "eventer_server": listener}
    if core != "relay":
        served["eventer_server"] = {**listener, "clients": clients}
        async with running_gateway(clients, event_core=served) as gateway:
            yield gateway
        return
    async with running_gateway(clients, event_core=served) as remote:
        assert remote.eventer_server is not None
        address = {"host": "127.0.0.1", "port": remote.eventer_server.address.port, "token": None}
        async with running_gateway(clients, eventer=address) as gateway:
            yield gateway


@contextlib.asynccontextmanager
async def client_of(gateway: Gateway, wire: str, name: str) -> AsyncIterator[Any]:
    if wire == "mariner":
        port = gateway.mariner.port
        async with await mariner_client.connect(
            "127.0.0.1", port, client_name=name, client_token="secret"
        ) as connected:
            yield connected
        return
    assert gateway.eventer_server is not None
    address = chatter.Address("127.0.0.1", gateway.eventer_server.address.port, False)
    async with await eventer_client.connect(address, name, client_token="secret") as to_eventer:
        yield to_eventer


async def register_all(gateway: Gateway) -> list[Event]:
    """Register the events, and return all that there are."""
    async with client_of(gateway, "mariner", "app") as connection:
        await connection.wait_status(Status.OPERATIONAL)
        for n, event_type in enumerate(TYPES):
            source = None if n % 3 == 0 else Timestamp(1_000 - n, 0)
            await connection.register([RegisterEvent(event_type, source, JsonPayload.of(n % 2))])
        params = QueryTimeseriesParams(order=Order.ASCENDING)
        return [*(await connection.query(params)).events]


def queries(events: list[Event]) -> list[QueryParams]:
    """Of all kinds, for what may be seen, for what may not, and for both."""
    hidden = [i for i in events if i.type == ("secret",)]
    last_ids: list[EventId | None] = [None, hidden[0].id, hidden[-1].id]
    last_ids += [i.id for i in events if i.type == ("a", "1")]
    asked: list[list[EventType] | None] = [
        None, [], [("*",)], [("?",)], [("a", "*")], [("a", "1", "*")], [("secret",)], [("a", "1")],
        [("b",), ("secret",)], [("a", "1"), ("unknown",)], [("c",), ("secret",)], [("unknown",)],
    ]  # fmt: skip
    found: list[QueryParams] = [QueryLatestParams(i, last) for i in asked for last in last_ids]
    for last in last_ids:
        for most in (None, *range(len(TYPES))):
            found += (QueryServerParams(1, i, most, last) for i in (False, True))
        for types in asked:
            for order in Order:
                found += (
                    QueryTimeseriesParams(
                        types, order=order, order_by=by, max_results=most, last_event_id=last
                    )
                    for by in OrderBy
                    for most in (None, 0, 1, 2, FEW)
                )
    return found


def mariners_queries(events: list[Event]) -> list[QueryParams]:
    """With conditions that the Eventer wire does not have."""
    found: list[QueryParams] = []
    for types in None, [("secret",)], [("a", "1"), ("secret",)], [("*",)]:
        for most in None, 0, 1, 2, FEW:
            common: dict[str, Any] = {"event_types": types, "max_results": most}
            found += (
                QueryTimeseriesParams(ids=[i.id for i in events], **common),
                QueryTimeseriesParams(ids=[i.id for i in events if i.type[0] != "a"], **common),
                QueryTimeseriesParams(payload=JsonPayload.of(1), **common),
                QueryTimeseriesParams(unique_type=True, **common),
            )
    return found


CORES: Final = [
    ("memory", "mariner"),
    ("memory", "eventer"),
    ("rocksdb", "mariner"),
    ("rocksdb", "eventer"),
    ("relay", "mariner"),
]


@pytest.mark.parametrize(("core", "wire"), CORES)
@pytest.mark.parametrize("way", ["at once", "by a task", "by readers"])
async def test_each_is_answered_as_far_as_its_client_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core: str, wire: str, way: str
) -> None:
    monkeypatch.setattr(limits, "SHORT_QUERIES_S", 0.0 if way == "by readers" else 60.0)
    quota = {"max_query_rows": limits.MAX_RESULTS} if way == "by a task" else {}
    async with gateway_of(core, tmp_path, quota) as gateway:
        events = await register_all(gateway)
        assert len(events) > len(TYPES)  # the engine's are hidden, too
        asked = queries(events) + (mariners_queries(events) if wire == "mariner" else [])
        async with client_of(gateway, wire, "narrow") as connection:
            for params in asked:
                result = await connection.query(params)
                assert is_right(result, events, params, SEEN), (params, result)


# --- who listens, or goes on from where it was ---------------------------------------------

MAY_SEE_SOME: Final[dict[str, Any]] = {
    "name": "some",
    "token": "secret",
    "subscriptions": [[*i] for i in model.SOME],
    "register_events": [],
}
AS_SOME: Final = {"client_name": "some", "client_token": "secret"}


def listening(gateways: Gateways) -> Iterator[tuple[AbstractAsyncContextManager[Reader], bool]]:
    """Every way to be told of events, as who wants all and may see some; see ``World``."""
    origin, relay, replica = (i.mariner.port for i in gateways)
    told: dict[str, Any] = {"told": model.SOME, **AS_SOME}
    for persisted in False, True:
        kept = {"persisted": persisted, **told}
        name = "persisted" if persisted else "registered"
        eventer = eventer_port(gateways.origin)
        yield readers.mariner_reader(origin, f"Mariner, {name}", **kept), True
        yield readers.eventer_reader(eventer, f"Eventer, {name}", **kept), True
        yield readers.mariner_reader(relay, f"relay, {name}", **kept), True
        yield readers.mariner_reader(replica, f"replica, {name}", **kept), True
    yield readers.live_replay(origin, "start", **told), False
    yield readers.live_replay(origin, "cursor", cursor="some", **told), False
    yield readers.live_replay(replica, "start at a replica", **told), False


@pytest.fixture(params=["compiled", "plain"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether requests are packed."""
    if request.param == "plain":
        without_compiled(monkeypatch)
    elif not packed.IS_COMPILED:
        pytest.skip("eventer_bridge.packed is not compiled (no compiler)")


async def test_nobody_is_told_of_what_it_may_not_see(how: None, tmp_path: Path) -> None:
    clients = [APP, MAY_SEE_SOME]
    async with (
        three_gateways(tmp_path, clients=clients) as gateways,
        contextlib.AsyncExitStack() as stack,
    ):
        told = {await stack.enter_async_context(i): it for i, it in listening(gateways)}
        to = World(gateways, told)
        port = gateways.origin.mariner.port
        for name in ("257 events", "together", "some binary", "2049 events", "more bytes"):
            case = {**model.SMALL, **model.LARGE}[name](name.replace(" ", "-"))
            await to.play(case.name, by_mariner(port, case), asks=False)
        for reader in told:
            reader.check_nothing_else()


async def test_who_comes_later_is_not_told_of_what_it_may_not_see(tmp_path: Path) -> None:
    """By pages of the store; and by the console, which is another client."""
    clients = [APP, MAY_SEE_SOME]
    async with three_gateways(tmp_path, clients=clients) as gateways:
        port = gateways.origin.mariner.port
        case = model.LARGE["2049 events"]("case")
        expected = (await by_mariner(port, case)).wanted(model.SOME)
        await until_replicated(gateways.replica, gateways.origin)
        for at in port, gateways.replica.mariner.port:
            await asking.check_replay("replay", at, EventId(1, 1, 1), expected, **AS_SOME)
            await asking.check_cursor("cursor", at, EventId(1, 1, 1), expected, **AS_SOME)
        await check_console(WatchedGateway("some", "127.0.0.1", "some", port, "secret"), expected)


async def check_console(at: WatchedGateway, expected: Expected) -> None:
    """Ask as each panel of the page does."""
    async with Watcher(at) as watcher, asyncio.timeout(60):
        while watcher.view.status is None:
            await asyncio.sleep(0.005)
        params = QueryTimeseriesParams(order=Order.ASCENDING)
        found, _ = await watcher.query(params, 2 * len(expected.events))
        assert found == expected.events
        latest = [i async for i in watcher.latest(QueryLatestParams([("*",)]))]
        assert {i.type for i in latest} == {i.type for i in expected.events}
        tail = await watcher.follow([("*",)])
        async with tail:
            case = model.SMALL["257 events"]("tail")
            of_tail = (await by_mariner(at.port, case)).wanted(model.SOME).events
            while tail.kept.n_seen < len(of_tail):
                await asyncio.sleep(0.005)
            newest = tail.kept.newest()
            assert newest == of_tail[: -len(newest) - 1 : -1]
