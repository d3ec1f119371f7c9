"""Cursors without clients: what a message of many parked events costs."""

import sys
from pathlib import Path
from types import FrameType

from eventer_bridge.backends import rocksdb
from eventer_bridge.core.cursors import Cursors
from eventer_bridge.model import EventId
from eventer_bridge.subscription import EVERYTHING

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
        await cursors.flush()
        cursors.done(cursor, ids)  # what is stored is found, too
        assert (cursor.n_parked, cursors.parked(cursor)) == (0, {})
