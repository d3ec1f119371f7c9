"""A server whose store was restored, or made anew: whoever keeps a position is told."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryServerParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.net import limits as net_limits
from mariner import client
from mariner.client import ReconnectingClient
from mariner.errors import InitError, OtherHistoryError
from mariner.gateway.gateway import Gateway
from tests.mariner.client.test_resuming import acknowledged, seen
from tests.support.clients import connect
from tests.support.inprocess import running_gateway
from tests.support.restoring import back_up, restore
from tests.support.waiting import until

START: dict[str, Any] = {"start": "earliest"}
CURSOR: dict[str, Any] = {"cursor": "c"}


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.05)
    monkeypatch.setattr(limits, "CURSOR_PERIOD_S", 0.0)


class Place:
    """Where there is a gateway, now this one, now that one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.port = 0

    @property
    def store(self) -> Path | None:
        return None if self.path is None else self.path / "store"

    @contextlib.asynccontextmanager
    async def gateway(self) -> AsyncIterator[Gateway]:
        async with running_gateway(path=self.store) as running:
            self.port = running.mariner.port
            yield running

    async def connect(self, **options: Any) -> client.Client:
        return await connect(self.port, subscriptions=[("a",)], **options)

    async def register(self, *numbers: int) -> list[Event]:
        async with await self.connect() as connection:
            return [(await connection.register([of(i)]))[0] for i in numbers]

    async def back_up(self) -> Path:
        assert self.path is not None
        await back_up(self.path / "store", self.path / "backup")
        return self.path / "backup"

    def make_anew(self) -> None:
        if self.path is not None:
            shutil.rmtree(self.path / "store")


def of(number: int) -> RegisterEvent:
    return RegisterEvent(("a",), None, JsonPayload.of(number))


def history_of(gateway: Gateway, server_id: int = 1) -> str:
    return gateway.core.histories[server_id].id


def then_of(options: dict[str, Any]) -> Any:
    return acknowledged if "cursor" in options else None


async def told(reader: ReconnectingClient) -> OtherHistoryError:
    async with asyncio.timeout(10):
        with pytest.raises(OtherHistoryError) as caught:
            await seen(reader, 1)
    return caught.value


@pytest.fixture(params=["memory", "rocksdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path if request.param == "rocksdb" else None)


@pytest.mark.parametrize("options", [START, CURSOR, START | CURSOR], ids=str)
async def test_a_store_that_was_made_anew(place: Place, options: dict[str, Any]) -> None:
    then = then_of(options)
    async with contextlib.AsyncExitStack() as stack:
        async with place.gateway() as gateway:
            before = history_of(gateway)
            reader = ReconnectingClient([place.connect], **options)
            await stack.enter_async_context(reader)
            events = await place.register(*range(10))
            assert await seen(reader, 10, then) == [*range(10)]
        place.make_anew()
        async with place.gateway() as gateway:
            await place.register(*range(100, 110))
            error = await told(reader)
            assert (error.server_id, error.last) == (1, 0)
            expected = f"its history is {history_of(gateway)}, but {before} was followed"
            assert str(error).startswith(f"server 1: {expected} up to session ")
            assert str(error).endswith(f" {events[-1].id.session}")
            assert await seen(reader, 10, then) == [*range(100, 110)]
            await place.register(110)
            assert await seen(reader, 1, then) == [110]
        if place.path is None:
            return
        async with place.gateway():  # the same: nothing is told
            await place.register(111)
            assert await seen(reader, 1, then) == [111]


@pytest.mark.parametrize("options", [START, CURSOR], ids=str)
async def test_a_store_that_was_restored(tmp_path: Path, options: dict[str, Any]) -> None:
    place, then = Place(tmp_path), then_of(options)
    async with contextlib.AsyncExitStack() as stack:
        async with place.gateway():
            behind, past = [ReconnectingClient([place.connect], **options) for _ in range(2)]
            await stack.enter_async_context(behind)
            kept = await place.register(*range(5))
            if "cursor" in options:  # there is one
                await behind.async_close()
            else:
                assert await seen(behind, 5) == [*range(5)]
            await stack.enter_async_context(past)
            assert await seen(past, 5, then) == [*range(5)]
            backup = await place.back_up()
            lost = await place.register(*range(5, 10))
            assert await seen(past, 5, then) == [*range(5, 10)]
        restore(backup, tmp_path / "store")
        async with place.gateway():
            await place.register(*range(100, 105))
            error = await told(past)
            assert kept[-1].id.session <= error.last < lost[0].id.session
            assert f" from session {error.last}, but that was followed up to " in str(error)
            assert await seen(past, 5, then) == [*range(100, 105)]
            if "cursor" not in options:
                assert await seen(behind, 5) == [*range(100, 105)]
            await check_declined(place, kept[-1].id, lost[-1].id)


async def check_declined(place: Place, kept: EventId, lost: EventId) -> None:
    """Who knows of no histories is declined if what it saw is not stored."""
    with pytest.raises(InitError) as caught:
        await place.connect(start=[lost])
    expected = f"start: server 1: session {lost.session} is in none of the histories that "
    assert str(caught.value).startswith(expected)
    async with await place.connect(start=[kept]) as connection:
        assert connection.histories == {}
    with pytest.raises(InitError, match=r"^start: server 1: its history is .* but x was followed"):
        await place.connect(start=[kept], histories={1: "x"}, decline_gap=True)
    async with await place.connect(start=[lost], histories={}) as connection:
        with pytest.raises(OtherHistoryError, match="is in none of the histories"):
            await anext(connection.replay())
        batch = await anext(connection.replay())
        assert batch.events[0].id > lost


async def test_positions_that_an_application_keeps(place: Place) -> None:
    async with place.gateway():
        [event] = await place.register(1)
        async with ReconnectingClient([place.connect], **START) as reader:
            assert await seen(reader, 1) == [1]
            histories = reader.histories
    kept: dict[str, Any] = {"start": [event.id], "histories": histories}
    if place.path is not None:
        async with place.gateway(), ReconnectingClient([place.connect], **kept) as reader:
            await place.register(2)
            assert await seen(reader, 1) == [2]
    place.make_anew()
    async with place.gateway(), ReconnectingClient([place.connect], **kept) as reader:
        await place.register(3)
        await told(reader)
        assert await seen(reader, 1) == [3]


async def test_an_acknowledgement_of_another_history(place: Place) -> None:
    """What was handed out before the store was made anew hides nothing of the new one."""
    async with contextlib.AsyncExitStack() as stack:
        batches: list[Any] = []
        async with place.gateway():
            reader = await stack.enter_async_context(ReconnectingClient([place.connect], **CURSOR))
            await place.register(*range(10))

            async def keep(batch: Any) -> None:
                batches.append(batch)
                if batch.events[0].payload.value() == 0:
                    await batch.first(1).ack()

            assert await seen(reader, 10, keep) == [*range(10)]
        place.make_anew()
        async with place.gateway():
            await told(reader)
            for batch in batches:
                await batch.ack()
            await place.register(*range(100, 105))
            assert await seen(reader, 5, acknowledged) == [*range(100, 105)]


async def test_what_is_acknowledged_when_there_is_another_history_already(place: Place) -> None:
    """The next connection was not told of it when it was made."""
    async with contextlib.AsyncExitStack() as stack:
        batches: list[Any] = []

        async def keep(batch: Any) -> None:
            batches.append(batch)

        async with place.gateway():
            reader = await stack.enter_async_context(ReconnectingClient([place.connect], **CURSOR))
            await place.register(*range(10))
            assert await seen(reader, 10, keep) == [*range(10)]
        place.make_anew()
        async with place.gateway() as gateway:
            await place.register(*range(100, 105))
            await until(lambda: reader.histories == {1: history_of(gateway)})
            for batch in batches:
                await batch.ack()
            assert (await told(reader)).last == 0
            assert await seen(reader, 5, acknowledged) == [*range(100, 105)]


async def test_pages_of_one_history(place: Place) -> None:
    pages = QueryServerParams(1, persisted=True, max_results=3)
    async with contextlib.AsyncExitStack() as stack:
        async with place.gateway() as gateway:
            reader = await stack.enter_async_context(ReconnectingClient([place.connect]))
            await place.register(*range(10))
            found = reader.query_all(pages)
            await anext(found)
            before = history_of(gateway)
        place.make_anew()
        async with place.gateway() as gateway:
            await place.register(*range(10))
            expected = f"server 1: its history is {history_of(gateway)}, but {before} was queried"
            with pytest.raises(OtherHistoryError, match=f"^{expected} before: query again$"):
                async for _ in found:
                    pass
            assert len([i async for i in reader.query_all(pages)]) >= 10


async def test_a_replica_that_learns_of_a_history(place: Place) -> None:
    """Who keeps how far it is reconnects, and then knows of which history that is."""
    async with place.gateway() as gateway:
        assert isinstance(gateway.core, Engine)
        async with (
            await place.connect(histories={}) as other,
            ReconnectingClient([place.connect], **START) as reader,
        ):
            while reader.address is None:
                await asyncio.sleep(0)
            connection = reader._client
            assert connection is not None
            assert reader.histories == other.histories == {1: history_of(gateway)}
            event = history.begin(2, "x", None, None)
            stored = Event(EventId(2, 1, 1), event.type, Timestamp.now(), None, event.payload)
            await gateway.core.replicate([stored])
            await connection.wait_closed()
            while reader.histories.get(2) != "x":
                await asyncio.sleep(0)
            assert other.is_open
