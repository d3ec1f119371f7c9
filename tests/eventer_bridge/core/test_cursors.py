"""Cursors without clients: what many parked events cost, what holds retention, deletions."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import cursor_key
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.model import EventId
from eventer_bridge.subscription import EVERYTHING, Subscription
from tests.eventer_bridge.backends.oracle import Writer, draft

N_EVENTS = 200


class Holder:
    def on_cursor_lost(self, reason: str) -> None: ...

    def redeliver(self) -> None: ...


async def test_parking_does_not_look_at_what_else_was_parked(tmp_path: Path) -> None:
    ids = [EventId(1, i, 1) for i in range(N_EVENTS)]
    n_compared = 0

    def count(frame: FrameType, what: str, function: object) -> None:
        nonlocal n_compared
        n_compared += what == "c_call" and getattr(function, "__name__", "") == "startswith"

    async with await rocksdb.create(tmp_path / "store") as backend:
        cursors = Cursors(backend)
        cursor = cursors.take("a", "c", Holder(), {}, (EVERYTHING, None))
        sys.setprofile(count)
        try:
            for event_id in ids:
                cursors.park(cursor, {event_id: "x"})
            cursors.done(cursor, ids[1:])
        finally:
            sys.setprofile(None)
        assert cursor.n_parked == 1
        assert [*cursors.parked(cursor)] == ids[:1]
        assert n_compared < 3 * N_EVENTS
        await cursors.rows.flush()
        cursors.done(cursor, ids)  # what is stored is found, too
        assert (cursor.n_parked, cursors.parked(cursor)) == (0, {})


ONLY_A = Subscription([("a",)])


def take(cursors: Cursors, wanted: Subscription, server_id: int | None = None) -> Cursor:
    return cursors.take("a", "c", Holder(), {}, (wanted, server_id))


@pytest.mark.parametrize(
    "change",
    [
        lambda cursors, cursor: cursors.reset(cursor, {}),
        lambda cursors, cursor: cursors.reset(cursor, {1: EventId(1, 1, 1)}),
        lambda cursors, cursor: take(cursors, EVERYTHING),
        lambda cursors, cursor: take(cursors, ONLY_A, 1),
    ],
    ids=["reset", "reset to an event", "other types", "another server"],
)
async def test_what_is_behind_by_then_is_not_what_was_measured(
    change: Callable[[Cursors, Cursor], object],
) -> None:
    """Else retention would not wait for what it is behind now."""
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        for _ in range(3):
            await writer.session(draft("a"), draft("b"))
        cursors = Cursors(backend, 3_600)
        cursor = take(cursors, ONLY_A)
        cursors.acknowledge(cursor, [writer.events[2].id])
        await cursors.measure(cursor)
        assert cursors._held_since() == writer.events[4].timestamp
        measuring = asyncio.create_task(cursors.measure(cursor))
        await asyncio.sleep(0)  # the store is being asked
        change(cursors, cursor)
        found = [cursor.oldest]
        await measuring
        found.append(cursor.oldest)
        await cursors.measure(cursor)
        assert found == [None, None]
        assert cursor.oldest is not None


async def test_a_cursor_that_goes_on_while_it_is_measured() -> None:
    async with await rocksdb.create_temporary() as backend:
        writer = Writer(backend)
        for _ in range(3):
            await writer.session(draft("a"))
        cursors = Cursors(backend, 3_600)
        cursor = take(cursors, ONLY_A)
        measuring = asyncio.create_task(cursors.measure(cursor))
        await asyncio.sleep(0)
        cursors.acknowledge(cursor, [writer.events[1].id])
        take(cursors, ONLY_A)
        await measuring
        assert (cursor.oldest, cursor.lag_events) == (writer.events[0].timestamp, 3)


async def test_how_often_a_cursor_was_reset_outlives_its_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its readers would take the next reset for one that they know of."""
    monkeypatch.setattr(limits, "MAX_DELETED_CURSORS", 2)
    async with await rocksdb.create(tmp_path / "store") as backend:
        cursors = Cursors(backend)
        cursor = take(cursors, EVERYTHING)
        cursors.park(cursor, {EventId(1, 1, 1): "x"})
        cursors.reset(cursor, {})
        cursors.delete(cursor)
        assert [*cursors.rows.find(b"")] == [cursor_key("a", "c")]
        await cursors.rows.flush()
        cursors = Cursors(backend)  # restarted
        assert [*cursors] == []
        assert take(cursors, EVERYTHING).row.n_resets == 2
        for name in "defg":  # only of the last ones
            made = cursors.take("a", name, Holder(), {}, (EVERYTHING, None))
            cursors.delete(made)
        names = [key for key in cursors.rows.find(b"c") if key != cursor_key("a", "c")]
        assert names == [cursor_key("a", "f"), cursor_key("a", "g")]
