"""Where a replay goes on over the next connection, so that nothing is missed or comes twice.

Without a cursor, behind the last event of each server that was handed to the application. With one,
the server keeps what was acknowledged; an acknowledgement that was lost with its connection is made
up for when its events come again, which the application does not see, unless the cursor was reset.

A position is one in the history of its server that the connection told over which it was reached.
It is told to the next server, which says where its own history departs from it.

Runs on the event loop's thread.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from eventer_bridge.model import INT64_MAX, EventId
from mariner.client.replay import AcknowledgeCb, ReplayBatch, Start
from mariner.errors import ConnectionLostError, GapError, OtherHistoryError
from mariner.wire.messages import EventsAck


class Resumption:
    """See the module.

    Args:
        start: where the first connection begins.
        cursor: name of the cursor; None: there is none.
        histories: of the events in ``start``, by server, as far as they are known.
    """

    def __init__(
        self, start: Start | None, cursor: str | None, histories: Mapping[int, str]
    ) -> None:
        self._is_wanted = start is not None or cursor is not None
        self._cursor = cursor
        self._begin: dict[int, EventId] = {}  # of a new cursor
        self._done: dict[int, EventId] = {}  # of each server, what is not to be seen again
        self._histories = dict(histories)  # of these
        if start is not None and not isinstance(start, str):
            ids = start.values() if isinstance(start, Mapping) else start
            first = self._done if cursor is None else self._begin
            for event_id in ids:
                first[event_id.server] = max(event_id, first.get(event_id.server, event_id))
        self._n_departures = 0
        self._n_resets: int | None = None  # that the last server told
        self._gaps: dict[int, EventId | None] = {}  # that were told, until something follows

    @property
    def is_wanted(self) -> bool:
        """Whether there is a replay at all."""
        return self._is_wanted

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``connect``."""
        ids = {**self._begin, **self._done}
        histories = {i: name for i, name in self._histories.items() if i in ids}
        if not self._is_wanted:
            return {"histories": histories}
        start = {"start": [*ids.values()] if ids else "earliest", "histories": histories}
        return start if self._cursor is None else {"cursor": self._cursor, **start}

    def connected(self, n_resets: int) -> None:
        """There is a connection; the cursor was reset so often (``Client.cursor_resets``)."""
        if self._n_resets is not None and n_resets > self._n_resets:
            self._done.clear()
            self._gaps.clear()
        self._n_resets = n_resets

    async def fresh(self, batch: ReplayBatch, histories: Mapping[int, str]) -> ReplayBatch | None:
        """What the application is to see of a batch; None: nothing.

        Args:
            batch: what a server sent, behind the gaps that it told.
            histories: of its connection.

        Raises:
            CursorLostError: another connection has the cursor now.
        """
        for server_id in self._done.keys() - self._histories.keys():
            self._know(server_id, histories)  # else it would have told that they differ
        if batch.is_redelivered:
            return batch.part(batch.events, self._acknowledge_by(batch, histories))
        known = [i for i in batch.events if self._is_done(i.id)]
        new = [i for i in batch.events if not self._is_done(i.id)] if known else batch.events
        for event in new:
            self._gaps.pop(event.id.server, None)
        if self._cursor is None:
            self._note((i.id for i in new), histories)
            return batch.part(new) if new else None
        if known:
            with contextlib.suppress(ConnectionLostError):
                await batch.part(known).ack()
        return batch.part(new, self._acknowledge_by(batch, histories)) if new else None

    def go_back(self, departure: OtherHistoryError, histories: Mapping[int, str]) -> None:
        """Go on in another history, behind what it has in common with the one before."""
        server_id, last = departure.server_id, departure.last
        self._n_departures += 1
        common = EventId(server_id, last, INT64_MAX)
        for positions in (self._begin, self._done):
            if server_id in positions:
                positions[server_id] = min(positions[server_id], common)
                if not last:
                    del positions[server_id]
        self._know(server_id, histories)

    def is_new(self, gap: GapError) -> bool:
        """Whether the application is to be told: it was not, or saw something behind it since."""
        if isinstance(gap, OtherHistoryError):
            return True
        is_told = gap.server_id in self._gaps and self._gaps[gap.server_id] == gap.oldest
        self._gaps[gap.server_id] = gap.oldest
        return not is_told

    def _is_done(self, event_id: EventId) -> bool:
        done = self._done.get(event_id.server)
        return done is not None and event_id <= done

    def _note(self, ids: Iterable[EventId], histories: Mapping[int, str]) -> None:
        for event_id in ids:
            if not self._is_done(event_id):
                self._done[event_id.server] = event_id
                self._know(event_id.server, histories)

    def _know(self, server_id: int, histories: Mapping[int, str]) -> None:
        if server_id in histories:
            self._histories[server_id] = histories[server_id]
        else:
            self._histories.pop(server_id, None)

    def _acknowledge_by(self, batch: ReplayBatch, histories: Mapping[int, str]) -> AcknowledgeCb:
        n_departures = self._n_departures

        async def acknowledge(message: EventsAck) -> None:
            with contextlib.suppress(ConnectionLostError):
                await batch.acknowledge(message)
            # if it was lost, what is parked comes again, to be parked again
            if not message.parked and n_departures == self._n_departures:
                self._note(message.ids, histories)

        return acknowledge
