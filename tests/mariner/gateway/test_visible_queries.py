"""Answers to queries have what the client may see, whichever way they take.

Every query is compared with a naive answer, of which the client may see some types: on both wires,
of each core, answered at once, on the event loop, and by reader threads. ``more_follows`` is
compared, too: it must not count what is hidden.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from eventer_bridge import chatter, limits
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
from tests.eventer_bridge.backends.oracle import is_right
from tests.support.inprocess import APP, running_gateway

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
