"""Where a replay goes on over the next connection, so that nothing is missed or comes twice.

Without a cursor, behind the last event of each server that was handed to the application. With one,
the server keeps what was acknowledged; an acknowledgement that was lost with its connection is made
up for when its events come again, which the application does not see.

Runs on the event loop's thread.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from eventer_bridge.model import EventId
from mariner.client.replay import AcknowledgeCb, ReplayBatch, Start
from mariner.errors import ConnectionLostError, GapError
from mariner.wire.messages import EventsAck


class Resumption:
    """See the module.

    Args:
        start: where the first connection begins.
        cursor: name of the cursor; None: there is none.
    """

    def __init__(self, start: Start | None, cursor: str | None) -> None:
        self._start = start
        self._cursor = cursor
        self._done: dict[int, EventId] = {}  # of each server, what is not to be seen again
        if start is not None and not isinstance(start, str) and cursor is None:
            self._note(start.values() if isinstance(start, Mapping) else start)
        self._gaps: dict[int, EventId | None] = {}  # that were told, until something follows

    @property
    def is_wanted(self) -> bool:
        """Whether there is a replay at all."""
        return self._start is not None or self._cursor is not None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``connect``."""
        if self._cursor is not None:
            return {"cursor": self._cursor, "start": self._start}
        if self._done:
            return {"start": [*self._done.values()]}
        return {} if self._start is None else {"start": self._start}

    async def fresh(self, batch: ReplayBatch) -> ReplayBatch | None:
        """What the application is to see of a batch; None: nothing.

        Raises:
            CursorLostError: another connection has the cursor now.
        """
        if batch.is_redelivered:
            return batch.part(batch.events, self._acknowledge_by(batch))
        known = [i for i in batch.events if self._is_done(i.id)]
        new = [i for i in batch.events if not self._is_done(i.id)] if known else batch.events
        for event in new:
            self._gaps.pop(event.id.server, None)
        if self._cursor is None:
            self._note(i.id for i in new)
            return batch.part(new) if new else None
        if known:
            with contextlib.suppress(ConnectionLostError):
                await batch.part(known).ack()
        return batch.part(new, self._acknowledge_by(batch)) if new else None

    def is_new(self, gap: GapError) -> bool:
        """Whether the application is to be told: it was not, or saw something behind it since."""
        is_told = gap.server_id in self._gaps and self._gaps[gap.server_id] == gap.oldest
        self._gaps[gap.server_id] = gap.oldest
        return not is_told

    def _is_done(self, event_id: EventId) -> bool:
        done = self._done.get(event_id.server)
        return done is not None and event_id <= done

    def _note(self, ids: Iterable[EventId]) -> None:
        for event_id in ids:
            if not self._is_done(event_id):
                self._done[event_id.server] = event_id

    def _acknowledge_by(self, batch: ReplayBatch) -> AcknowledgeCb:
        async def acknowledge(message: EventsAck) -> None:
            with contextlib.suppress(ConnectionLostError):
                await batch.acknowledge(message)
            if not message.parked:  # if that was lost, they come again, to be parked again
                self._note(message.ids)

        return acknowledge
