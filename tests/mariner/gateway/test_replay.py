"""Replay: what was persisted before, and then what is new, without a gap and without a double."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    JsonPayload,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.throttle import QUERIES, Throttle
from mariner import client
from mariner.gateway.gateway import Gateway
from tests.support import clients
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer

LISTEN: Final = {"host": "127.0.0.1", "port": 0}
FEW: Final = {**APP, "name": "few", "subscriptions": [["b", "*"]]}
PAYING: Final = {**APP, "name": "paying", "quota": {"query_ms_per_s": 1_000}}


@contextlib.asynccontextmanager
async def serving(path: Path | None, **keys: Any) -> AsyncIterator[Gateway]:
    backend: dict[str, Any] = {"type": "memory"}
    if path is not None:
        backend = {"type": "rocksdb", "path": str(path / "store")}
    core = {"server_id": 1, "backend": {**backend, **keys}}
    async with running_gateway([APP, FEW, PAYING], event_core=core) as gateway:
        yield gateway


async def connect(gateway: Gateway, **keys: Any) -> client.Client:
    return await clients.connect(gateway.mariner.port, **keys)


async def reader(gateway: Gateway, start: Any, **keys: Any) -> RawPeer:
    wanted = {"subscriptions": [["a"]], "persisted": True, **keys}
    return await RawPeer.init(gateway.mariner.port, start=start, **wanted)


def of(*segments: str, value: Any = 1) -> RegisterEvent:
    return RegisterEvent(segments, None, JsonPayload.of(value))


def id_of(event: Event) -> dict[str, int]:
    return {"server": event.id.server, "session": event.id.session, "instance": event.id.instance}


async def received(peer: RawPeer, n_events: int = 0, *, until: str = "up_to_date") -> list[Any]:
    """Events up to a mark, or so many of them."""
    events: list[Any] = []
    while not n_events or len(events) < n_events:
        message = await peer.receive()
        if message["msg_type"] == until and not n_events:
            return events
        assert message["msg_type"] == "events", message
        events += message["events"]
    assert len(events) == n_events
    return events


async def register(connection: client.Client, *values: int) -> list[Event]:
    return [(await connection.register([of("a", value=i), of("b")]))[0] for i in values]


def values(events: Sequence[Any]) -> list[Any]:
    return [i["payload"]["data"] for i in events]


@pytest.fixture(params=["memory", "rocksdb"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "rocksdb" else None


async def test_from_the_earliest_and_then_live(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLAY_PAGE_EVENTS", 3)
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, *range(10))
        async with await reader(gateway, "earliest") as peer:
            assert values(await received(peer)) == [*range(10)]
            await register(connection, 10, 11)
            assert values(await received(peer, 2)) == [10, 11]


async def test_behind_the_last_one_that_was_seen(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(10))
        async with await reader(gateway, [id_of(events[6])]) as peer:
            assert values(await received(peer)) == [7, 8, 9]
        async with await reader(gateway, [id_of(events[9])]) as peer:
            assert await received(peer) == []
        async with await reader(gateway, []) as peer:
            assert len(await received(peer)) == 10


async def test_rights_and_filters_hold(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        await register(connection, 1, 2)
        of_few = {"client_name": "few", "subscriptions": [["*"]]}
        async with await reader(gateway, "earliest", **of_few) as peer:
            assert [i["type"] for i in await received(peer)] == [["b"], ["b"]]
        async with await reader(gateway, "earliest", server_id=2) as peer:
            assert await received(peer) == []
            await register(connection, 3)
        async with await reader(gateway, "earliest", subscriptions=[]) as peer:
            assert await received(peer) == []


async def declined(gateway: Gateway, **properties: Any) -> str:
    async with await RawPeer.connect(gateway.mariner.port) as peer:
        peer.send(
            {
                "msg_type": "init_req",
                "client_name": "app",
                "client_token": "secret",
                "subscriptions": [["*"]],
                "server_id": None,
                "persisted": True,
                **properties,
            }
        )
        response = await peer.receive()
        assert response["success"] is False
        return str(response["error"])


async def test_what_cannot_be_replayed_is_declined(path: Path | None) -> None:
    async with serving(path) as gateway:
        text = await declined(gateway, start="earliest", persisted=False)
        assert text == "start: expected with persisted events only"
        seen = {"server": 1, "session": 10**6, "instance": 1}
        assert (
            await declined(gateway, start=[seen]) == "start: event 1/1000000/1 is not stored here"
        )
        assert "/start" in await declined(gateway, start="latest")
        assert "start" in await declined(gateway, start=[seen] * 1025)


async def test_a_core_without_events_declines() -> None:
    core = {"server_id": 1, "backend": {"type": "dummy"}}
    async with running_gateway(event_core=core) as gateway:
        text = await declined(gateway, start="earliest")
        assert text == "start: this server does not keep events"


async def test_others_get_no_marks(path: Path | None) -> None:
    wanted: Any = {"subscriptions": [["a"]], "persisted": True}
    async with (
        serving(path) as gateway,
        await connect(gateway) as connection,
        await RawPeer.init(gateway.mariner.port, **wanted) as peer,
    ):
        await register(connection, 1)
        assert values(await received(peer, 1)) == [1]


async def test_what_retention_deleted_is_told(path: Path | None) -> None:
    rules = [{"subscriptions": [["a"]], "max_entries": 3}]
    async with serving(path, retention=rules) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(10))
        while len((await connection.query(timeseries("a"))).events) > 3:
            await asyncio.sleep(0.01)
        for index, is_gap in ((2, True), (5, True), (6, False), (8, False)):
            async with await reader(gateway, [id_of(events[index])]) as peer:
                if is_gap:
                    gap = {"msg_type": "gap", "server_id": 1, "oldest": id_of(events[7])}
                    assert await peer.receive() == gap
                assert values(await received(peer)) == [*range(max(7, index + 1), 10)]
            if is_gap:
                text = await declined(gateway, start=[id_of(events[index])], decline_gap=True)
                assert text == "start: events that this client did not see were deleted"
        # types that were not deleted have no gap
        async with await reader(gateway, [id_of(events[2])], subscriptions=[["b"]]) as peer:
            assert len(await received(peer)) == 8  # b of the same session, too


def timeseries(*segments: str) -> QueryTimeseriesParams:
    return QueryTimeseriesParams([segments])


async def test_a_client_that_does_not_read_is_told_later(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 2 << 20)
    async with (
        serving(path) as gateway,
        await connect(gateway) as connection,
        await reader(gateway, "earliest") as peer,
    ):
        assert await received(peer) == []
        large = [of("a", value="x" * 50_000) for _ in range(10)]
        ids = []
        for _ in range(20):  # 10 MB
            ids += [id_of(i) for i in await connection.register(large)]
        events: list[Any] = []
        while len(events) < len(ids):
            message = await peer.receive()
            events += message.get("events", ())
        assert [i["id"] for i in events] == ids


async def test_joining_at_full_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPLAY_PAGE_EVENTS", 100)
    async with (
        serving(tmp_path) as gateway,
        await connect(gateway) as connection,
        contextlib.AsyncExitStack() as peers,
    ):
        is_over = False
        stored = await register(connection, *range(50))

        async def write() -> None:
            while not is_over:
                some = (connection.register([of("a", value=i)] * (i % 3 + 1)) for i in range(8))
                for events in await asyncio.gather(*some):
                    stored.extend(events)

        writing = asyncio.create_task(write())
        found: list[tuple[int, RawPeer, list[Any]]] = []
        for _ in range(30):
            begin = len(stored) - 50
            start = [id_of(stored[begin - 1])] if begin else "earliest"
            peer = await peers.enter_async_context(await reader(gateway, start))
            found.append((begin, peer, await received(peer)))
        is_over = True
        await writing
        for begin, peer, events in found:
            while not events or events[-1]["id"] != id_of(stored[-1]):
                events.extend((await peer.receive()).get("events", ()))
            assert [i["id"] for i in events] == [id_of(i) for i in stored[begin:]]


class Reads:
    """What replays read, one after the other for each client.

    Args:
        gateway: that reads.
        monkeypatch: of the test.

    Attributes:
        asked: behind what was read, of each server.
    """

    def __init__(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(gateway.core, Engine)
        self._answer = gateway.core.answer
        self.asked: dict[int, list[EventId | None]] = {}
        monkeypatch.setattr(gateway.core, "answer", self._read)

    async def before(self, client: str, last: EventId | None) -> None:
        """Awaited before each of them."""

    async def after(self, client: str, last: EventId | None) -> None:
        """Awaited after each of them."""

    async def _read(self, query: VisibleQuery, client: str, *others: Any) -> QueryResult:
        params = query.params
        if not isinstance(params, QueryServerParams):
            return await self._answer(query, client, *others)
        self.asked.setdefault(params.server_id, []).append(params.last_event_id)
        await self.before(client, params.last_event_id)
        result = await self._answer(query, client, *others)
        await self.after(client, params.last_event_id)
        return result


def of_server(server_id: int, session: int) -> Event:
    event_id = EventId(server_id, session, 1)
    return Event(event_id, ("a",), Timestamp.now(), None, JsonPayload.of(session))


async def test_what_was_read_is_not_read_again(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        assert isinstance(gateway.core, Engine)
        await gateway.core.replicate([of_server(2, 5)])
        last = (await register(connection, *range(10)))[-1].id
        reads = Reads(gateway, monkeypatch)

        async def register_one(client: str, behind: EventId | None) -> None:
            if behind is None:
                await connection.register([of("rare")])

        monkeypatch.setattr(reads, "after", register_one)
        async with await reader(gateway, "earliest", subscriptions=[["rare"]]) as peer:
            assert len(await received(peer)) == 2
            await connection.register([of("rare")])
            assert len(await received(peer, 1)) == 1
        # what came meanwhile is read from where the store ended, not from the beginning
        first, *others = reads.asked[1]
        assert first is None
        assert others
        assert all(i is not None and i > last and i.instance == INT64_MAX for i in others)
        assert reads.asked[2] == [None]  # nothing came


async def test_joins_of_one_client_do_not_hold_up_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_joining = limits.MAX_JOINING + 4
    async with (
        serving(tmp_path) as gateway,
        await connect(gateway) as connection,
        contextlib.AsyncExitStack() as peers,
    ):
        reads = Reads(gateway, monkeypatch)
        is_released = asyncio.Event()

        async def wait(client: str, behind: EventId | None) -> None:
            if behind is not None and client == "app":
                await is_released.wait()

        async def register_one(client: str, behind: EventId | None) -> None:
            if behind is None:
                await register(connection, 1)

        monkeypatch.setattr(reads, "before", wait)
        monkeypatch.setattr(reads, "after", register_one)
        of_app = [
            await peers.enter_async_context(await reader(gateway, "earliest"))
            for _ in range(n_joining)
        ]
        while len(reads.asked.get(1, ())) < n_joining + limits.MAX_CLIENT_JOINING:
            await asyncio.sleep(0.01)
        wanted = {"client_name": "few", "subscriptions": [["b"]]}
        async with await reader(gateway, "earliest", **wanted) as peer, asyncio.timeout(20):
            assert await received(peer)
        is_released.set()
        for peer in of_app:
            await received(peer)


async def test_who_has_to_pay_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        reads = Reads(gateway, monkeypatch)
        is_paid = []

        def throttle() -> Throttle:
            found = next(i.throttle for i in gateway.accounts["mariner"] if i.name == "paying")
            assert found is not None
            return found

        async def note(client: str, behind: EventId | None) -> None:
            is_paid.append(throttle().is_paid)

        async def spend(client: str, behind: EventId | None) -> None:
            if behind is None:
                throttle().spend(QUERIES, 1_100)
                await register(connection, 1)

        monkeypatch.setattr(reads, "before", note)
        monkeypatch.setattr(reads, "after", spend)
        async with await reader(gateway, "earliest", client_name="paying") as peer:
            assert values(await received(peer)) == [1]
        assert is_paid == [True, True]


async def test_servers_that_are_not_known(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{"subscriptions": [["a"]], "max_entries": 3}]
    async with serving(path, retention=rules) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(10))
        while len((await connection.query(timeseries("a"))).events) > 3:
            await asyncio.sleep(0.01)
        reads = Reads(gateway, monkeypatch)
        made_up = [{"server": i, "session": 5, "instance": 1} for i in range(2, 1_025)]
        async with await reader(gateway, [id_of(events[8]), *made_up]) as peer:
            assert values(await received(peer)) == [9]  # without a gap
            assert reads.asked.keys() == {1}
            # later, what such a server registered comes, behind what the client saw
            assert isinstance(gateway.core, Engine)
            for session in 4, 5, 6:
                await gateway.core.replicate([of_server(77, session)])
            assert values(await received(peer, 1)) == [6]
