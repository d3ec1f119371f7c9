"""What a server of a group tells the others, and what they make of it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import cursor_key
from eventer_bridge.core import group_events
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.group_events import ToldCursor, ToldParked
from eventer_bridge.errors import (
    ControlError,
    InvalidEventError,
    StorageError,
)
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.core.engines import SOURCE, submit
from tests.support.shifted import ShiftedClock

REQUEST: EventType = ("event", "1", "request")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TELL_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "CURSOR_PERIOD_S", 0.01)


@contextlib.asynccontextmanager
async def member(server_id: int, *, is_in_group: bool = True) -> AsyncIterator[Engine]:
    """A server of a group; it is not OPERATIONAL."""
    backend = await rocksdb.create_temporary()
    core = Engine(backend, server_id, is_in_group=is_in_group)
    try:
        yield core
    finally:
        await core.async_close()
        await backend.async_close()


@contextlib.asynccontextmanager
async def group() -> AsyncIterator[tuple[Engine, Engine]]:
    """An active server, and one that has what :func:`replicate` brings."""
    async with member(1) as active, member(2) as standby:
        await active.start()
        yield active, standby


async def replicate(source: Engine, target: Engine) -> None:
    """What ``Replication`` does."""
    assert source.server_id is not None
    last = EventId(source.server_id, target.replicated(source.server_id)[0], 0)
    params = QueryServerParams(source.server_id, persisted=True, last_event_id=last)
    sessions: dict[int, list[Event]] = {}
    for event in (await source.query(params)).events:
        if event.id.session > last.session:
            sessions.setdefault(event.id.session, []).append(event)
    for session in sessions.values():
        await target.replicate(session)


def of(*segments: str) -> RegisterEvent:
    return RegisterEvent(segments, None, JsonPayload.of(1))


def events_of(batch: Batch) -> list[EventId]:
    batch = batch.first or batch
    return [i.id for i in batch.events[: batch.requested]]


async def test_a_key_is_the_last_event_of_its_session_and_goes_with_it() -> None:
    async with group() as (active, standby):
        requests = [[of("a"), of("b")], [of("c")]]
        for n_before in range(2):  # one by one, and at one go
            keys = [request_key(f"{n_before}{i[0].type}", *i) for i in requests]
            first = submit(active, requests, keys)
            await asyncio.wait({i.committed for i in first})
            await replicate(active, standby)
            for batch in first:
                assert group_events.request_in(batch.events) in keys
                assert batch.events[-1].type == REQUEST
                assert batch.requested == len(batch.events) - 1
            await standby.start()
            again = submit(standby, requests, keys)
            assert all(i.first for i in again)
            assert [*map(events_of, again)] == [*map(events_of, first)]
            await standby.stop()
        assert active.pending_events == 0


async def test_they_are_committed_together(tmp_path: Path) -> None:
    async with (
        await rocksdb.create(tmp_path / "store") as backend,
        Engine(backend, 1, is_in_group=True) as core,
    ):
        await core.start()
        requests = [[of("a"), of("b")], [of("a")]]
        await core.register(SOURCE, requests[0]).committed
        for n_before in range(3):
            keys = [request_key(f"{n_before} {len(i)}", *i) for i in requests]
            batches = submit(core, requests, keys)
            assert len({i.committed for i in batches}) == 1
            await batches[0].committed
            assert [group_events.request_in(i.events) for i in batches] == keys
        assert core.pending_events == 0


async def test_without_a_group_nobody_is_told() -> None:
    async with member(1, is_in_group=False) as core:
        await core.start()
        batch = core.register(SOURCE, [of("a")], None, request_key("k", of("a")))
        assert len(batch.events) == 1
        await core.replicate(
            [event_of(REQUEST_OF_2, {"client": "app", "key": "x", "digest": "A" * 22 + "=="})]
        )
        assert core.register(SOURCE, [of("a")], None, request_key("x", of("a"))).first is None


REQUEST_OF_2: EventType = ("event", "2", "request")


def event_of(event_type: EventType, value: Any, session: int = 1) -> Event:
    payload: Payload | None = value if isinstance(value, JsonPayload) else JsonPayload.of(value)
    return Event(EventId(2, session, 1), event_type, Timestamp(1, 0), None, payload)


GOOD: Mapping[str, Any] = {"client": "app", "key": "k", "digest": "A" * 22 + "=="}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**GOOD, "key": ""},
        {**GOOD, "key": "x" * (limits.MAX_REQUEST_KEY_CHARACTERS + 1)},
        {**GOOD, "digest": "AAAA"},
        {**GOOD, "client": None},
    ],
)
async def test_what_no_server_tells_is_an_event_and_nothing_else(value: Any) -> None:
    assert group_events.request_in([event_of(REQUEST_OF_2, GOOD)]) is not None
    assert group_events.request_in([event_of(REQUEST_OF_2, value)]) is None
    cursor: EventType = ("event", "2", "cursor", "x")
    assert group_events.cursors_in([event_of(cursor, value)]) == []
    async with member(1) as core:
        await core.replicate([event_of(REQUEST_OF_2, value)])
        await core.replicate([event_of(cursor, value, 2)])
        assert core.cursors is not None
        assert [*core.cursors] == []
    # of another server than the one whose event it is
    assert group_events.request_in([event_of(REQUEST, GOOD)]) is None


async def test_clients_cannot_tell() -> None:
    async with group() as (active, _):
        for told in (REQUEST, ("event", "1", "cursor", "x"), ("event", "1", "parked", "x")):
            for _ in range(2):
                with pytest.raises(
                    InvalidEventError, match=rf"^event/1/{told[2]} is for the server"
                ):
                    active.register(SOURCE, [of(*told)])
        active.register(SOURCE, [of("event", "2", "request"), of("event", "1", "request", "x")])


# --- cursors ------------------------------------------------------------------------------


class Holder:
    """A connection that has a cursor."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def on_cursor_lost(self, reason: str) -> None:
        self.lost.append(reason)

    def redeliver(self) -> None:
        """Not looked at."""


def cursors_of(core: Engine) -> Cursors:
    assert core.cursors is not None
    return core.cursors


def take(core: Engine, holder: Holder | None = None, name: str = "c") -> Cursor:
    wanted = Subscription([("a",)]), None
    return cursors_of(core).take("app", name, holder or Holder(), {}, wanted)


async def told_of(active: Engine, standby: Engine) -> Cursor:
    """The cursor as the other server knows it."""
    await active._tell_of_cursors()
    await replicate(active, standby)
    return cursors_of(standby).find("app", "c")


def at(session: int, server: int = 1) -> EventId:
    return EventId(server, session, 1)


async def test_a_cursor_goes_on_and_never_back_unless_it_is_reset() -> None:
    async with group() as (active, standby):
        cursor = take(active)
        cursors_of(active).acknowledge(cursor, [at(5), at(3, server=9)])
        other = await told_of(active, standby)
        assert other.seen == {1: at(5)}  # server 9 is not replicated
        cursors_of(standby).acknowledge(other, [at(8)])
        cursors_of(active).acknowledge(cursor, [at(6)])
        assert (await told_of(active, standby)).seen[1] == at(8)
        holder = Holder()
        take(standby, holder)
        cursors_of(active).reset(cursor, {1: at(2)})
        assert (await told_of(active, standby)).seen == {1: at(2)}
        assert holder.lost == ["the cursor was reset"]
        take(standby, holder)
        cursors_of(active).delete(cursor)
        with pytest.raises(ControlError, match=r"^client 'app' has no cursor 'c'$"):
            await told_of(active, standby)
        assert holder.lost[1:] == ["the cursor was deleted"]
        cursors_of(active).acknowledge(take(active), [at(9)])
        await told_of(active, standby)
        cursors_of(active).delete(cursors_of(active).find("app", "c"))
        cursors_of(active).acknowledge(take(active), [at(1)])  # made anew
        assert (await told_of(active, standby)).seen == {1: at(1)}
        cursors_of(standby).take_over(ToldCursor("app", "c", [at(9)]), 1)  # told long ago
        cursors_of(standby).take_over(ToldCursor("app", "c", None, 1), 1)
        assert cursors_of(standby).find("app", "c").seen == {1: at(1)}


async def test_a_deletion_is_known_to_who_was_away_then() -> None:
    async with group() as (active, standby):
        cursors_of(active).acknowledge(take(active), [at(9)])
        await told_of(active, standby)
        cursors = cursors_of(active)
        cursors.park(cursors.find("app", "c"), {at(2): "x"})
        cursors.delete(cursors.find("app", "c"))
        await cursors.rows.flush()
        again = Cursors(active._backend, is_in_group=True)  # it was killed before it told of it
        assert [*again] == []
        assert again.to_tell(lambda a, b: False) == [ToldCursor("app", "c", None, 1)]
        # made anew, it tells of that only: retention left nothing else
        cursors.acknowledge(take(active), [at(1)])
        stale = Cursors(standby._backend, is_in_group=True)  # restarted
        for told in cursors.to_tell(lambda a, b: False):
            stale.take_over(told, 1)
        assert stale.find("app", "c").seen == {1: at(1)}
        for told in stale.to_tell(lambda a, b: False):
            cursors.take_over(told, 2)
        assert cursors.find("app", "c").seen == {1: at(1)}


async def test_a_deleted_cursor_does_not_come_back_from_who_has_not_heard_of_it() -> None:
    async with group() as (active, standby):
        cursors_of(active).acknowledge(take(active), [at(9)])
        await told_of(active, standby)
        stale = Cursors(standby._backend, is_in_group=True)
        cursors_of(active).delete(cursors_of(active).find("app", "c"))
        for told in stale.to_tell(lambda a, b: False):
            cursors_of(active).take_over(told, 2)
        assert [*cursors_of(active)] == []
        cursors_of(active).take_over(ToldParked("app", "c", at(2), "x", Timestamp(1, 0)), 2)
        assert [*cursors_of(active)] == []


async def test_the_number_of_deleted_cursors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DELETED_CURSORS", 2)
    async with member(1) as core:
        cursors = cursors_of(core)
        for i in range(4):
            take(core, name=f"c{i}")
            cursors.delete(cursors.find("app", f"c{i}"))
        assert [*cursors.rows.find(b"c")] == [cursor_key("app", "c2"), cursor_key("app", "c3")]


async def test_cursors_are_told_of_when_the_store_can_be_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with group() as (active, standby):
        cursor = take(active)
        cursors_of(active).acknowledge(cursor, [at(2)])
        cursors_of(active).park(cursor, {at(1): "x"})
        with monkeypatch.context() as patch:
            patch.setattr(Cursors, "parked", failing)
            await active._tell_of_cursors()
        assert "other servers are not told of cursors" in caplog.messages
        other = await told_of(active, standby)
        assert (other.n_parked, other.seen) == (1, {1: at(2)})


def failing(*_: object) -> None:
    raise StorageError("cannot be read")


async def test_parked_events_go_with_it() -> None:
    async with group() as (active, standby):
        cursor = take(active)
        for i in range(3):
            cursors_of(active).park(cursor, {at(i): f"reason {i}"})
        other = await told_of(active, standby)
        assert other.n_parked == 3
        assert [i.reason for i in cursors_of(standby).parked(other).values()] == [
            f"reason {i}" for i in range(3)
        ]
        cursors_of(active).done(cursor, [at(1)])
        cursors_of(active).redeliver(cursor, [at(2)])
        await told_of(active, standby)
        parked = cursors_of(standby).parked(other)
        assert {i: row.is_due for i, row in parked.items()} == {at(0): False, at(2): True}
        assert other.n_parked == 2
        cursors_of(active).delete(cursor)
        with pytest.raises(ControlError):
            await told_of(active, standby)
        assert [*cursors_of(standby).rows.find(b"")] == [cursor_key("app", "c")]  # how often


async def test_what_is_told_of_another_history_is_not_taken_over() -> None:
    """One made anew is told of cursors in the events that it had before."""
    async with group() as (active, standby):
        cursors_of(active).acknowledge(take(active), [at(1)])
        cursors_of(active).park(take(active), {at(1): "x"})
        cursor = await told_of(active, standby)
        own = active.histories[1].id
        assert cursor.row.histories == {1: own}
        for histories in ({1: "other"}, {1: own}):
            told = ToldCursor("app", "c", [at(3)], histories=histories)
            cursors_of(standby).take_over(told, 1)
            assert cursor.seen == {1: at(3 if histories[1] == own else 1)}
        told = ToldCursor("app", "new", [at(1)], histories={1: "other"})
        cursors_of(active).take_over(told, 2)
        made = cursors_of(active).find("app", "new")
        assert made.seen == {}
        for history_id in ("other", own):
            parked = ToldParked("app", "new", at(1), "x", Timestamp(1, 0), history=history_id)
            cursors_of(active).take_over(parked, 2)
            assert made.n_parked == (history_id == own)


async def test_a_server_that_comes_back_tells_what_it_could_not() -> None:
    async with group() as (active, standby):
        cursors_of(standby).acknowledge(take(standby), [at(4)])
        cursors_of(standby).park(take(standby), {at(3): "x"})
        assert not standby._published_sessions  # it is STANDBY
        backend = active._backend
        await cursors_of(active).rows.flush()
        cursor = take(active)
        cursors_of(active).park(cursor, {at(2): "x"})
        await cursors_of(active).rows.flush()
        again = Cursors(backend, is_in_group=True)  # it was killed
        told = again.to_tell(lambda a, b: False)
        assert [type(i) for i in told] == [ToldParked, ToldCursor]
        again.tell_again(told)
        assert again.to_tell(lambda a, b: False) == told
        assert again.to_tell(lambda a, b: False) == []


async def test_readers_of_everything_do_not_have_it_told_for_ever() -> None:
    """What tells of a cursor is acknowledged, too."""
    async with group() as (active, _):
        cursor = take(active)
        session = active.register(SOURCE, [of("a")])
        await session.committed
        for _ in range(10):
            last = active.last_persisted(1)
            cursors_of(active).acknowledge(cursor, [at(last)])
            await active._tell_of_cursors()
        n_told = len(active._published_sessions)
        assert n_told <= 3
        session = active.register(SOURCE, [of("a")])
        await session.committed
        cursors_of(active).acknowledge(cursor, [session.last_id])
        await active._tell_of_cursors()
        assert len(active._published_sessions) == n_told + 1


async def test_the_number_of_cursors_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with member(1) as core:
        cursors = cursors_of(core)
        for i in range(limits.MAX_CURSORS + 2):
            cursors.take_over(ToldCursor("app", f"c{i}", [at(i)]), 1)
        assert len([*cursors]) == limits.MAX_CURSORS
        reasons = [i.message for i in caplog.records if i.levelno == logging.ERROR]
        assert reasons == ["a cursor of another server is not kept: there are too many"] * 2
        for i in range(limits.MAX_PARKED + 2):
            cursors.take_over(ToldParked("app", "c0", at(i), "x", Timestamp(1, 0)), 1)
        assert cursors.find("app", "c0").n_parked == limits.MAX_PARKED
        cursors.take_over(ToldCursor("app", "c0", None, 1), 1)
        await cursors.rows.flush()
        assert core._backend.reader_rows(cursors_prefix("c0")) == {}


def cursors_prefix(name: str) -> bytes:
    return f'p["app","{name}"]'.encode()


async def test_many_cursors_are_told_of_in_turns() -> None:
    async with group() as (active, standby):
        for i in range(limits.TOLD_CURSORS * 2 + 1):
            take(active, name=f"c{i}")
        await active._tell_of_cursors()
        assert len(active._published_sessions) == 3
        await replicate(active, standby)
        assert len([*cursors_of(standby)]) == limits.TOLD_CURSORS * 2 + 1


async def newest(core: Engine) -> list[EventId]:
    """The newest event of type ``a``: as the latest one, and at the end of the timeseries."""
    queries = QueryLatestParams([("a",)]), QueryTimeseriesParams([("a",)], max_results=1)
    return [(await core.query(i)).events[0].id for i in queries]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_comes_after_a_take_over_is_newer_though_the_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    clock = ShiftedClock(monkeypatch)
    backend = await rocksdb.create(tmp_path / "store")
    async with member(2) as dead:
        await dead.start()
        standby = Engine(backend, 1, is_in_group=True)
        last = dead.register(SOURCE, [of("a")])
        await last.committed
        await replicate(dead, standby)
        if is_restarted:
            await standby.async_close()
            standby = Engine(backend, 1, is_in_group=True)
        clock.seconds = -30
        await standby.start()
        again = standby.register(SOURCE, [of("a")])
        await again.committed
        assert await newest(standby) == [again.events[0].id] * 2
        assert again.events[0].timestamp > last.events[0].timestamp
        await standby.async_close()
    await backend.async_close()


async def test_a_clock_that_is_far_ahead_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock(monkeypatch)
    async with group() as (active, standby):
        await active.register(SOURCE, [of("a")]).committed
        await replicate(active, standby)
        clock.seconds = limits.MAX_SEEN_AHEAD_S + 60
        await active.register(SOURCE, [of("a")]).committed
        clock.seconds = 0
        await replicate(active, standby)
        await standby.start()
        session = standby.register(SOURCE, [of("a")])
        await session.committed
        assert abs(session.events[0].timestamp.to_float() - time.time()) < 60
