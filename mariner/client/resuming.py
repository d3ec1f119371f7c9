"""Where a replay goes on over the next connection, so that nothing is missed or comes twice.

Without a cursor, behind the last event of each server that was handed to the application. With one,
the server keeps what was acknowledged; an acknowledgement that was lost with its connection is made
up for when its events come again, which the application does not see, unless the cursor was reset.

A position is one in the history of its server that the connection told over which it was reached.
It is told to the next server, which says where its own history departs from it. One that was
reached later, over a connection that is gone, is told over another connection, if need be.

Runs on the event loop's thread.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from eventer_bridge import limits
from eventer_bridge.model import INT64_MAX, EventId
from mariner.client.replay import AcknowledgeCb, ReplayBatch, Start
from mariner.errors import ConnectionLostError, GapError, OtherHistoryError
from mariner.wire.messages import EventsAck


class Link(NamedTuple):
    """A connection.

    Attributes:
        told: positions that its server was told.
        histories: of the events that come over it, by server.
        n_resets: how often the cursor had been reset.
    """

    told: Mapping[int, EventId]
    histories: Mapping[int, str]
    n_resets: int


class Resumption:
    """See the module.

    Args:
        start: where the first connection begins.
        cursor: name of the cursor; None: there is none.
        histories: of the events in ``start``, by server, as far as they are known.

    Attributes:
        link: the newest connection.
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
        self._parked: dict[EventId, str] = {}  # of what is not to be seen again
        self._n_departures = 0
        self._gaps: dict[int, EventId | None] = {}  # that were told, until something follows
        self.link = Link({}, {}, 0)
        self._told: Mapping[int, EventId] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether there is a replay at all."""
        return self._is_wanted

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``connect``, for a connection that is made now."""
        ids = self._told = {**self._begin, **self._done}
        histories = {i: name for i, name in self._histories.items() if i in ids}
        if not self._is_wanted:
            return {"histories": histories}
        start = {"start": [*ids.values()] if ids else "earliest", "histories": histories}
        return start if self._cursor is None else {"cursor": self._cursor, **start}

    def connected(self, histories: Mapping[int, str], n_resets: int) -> None:
        """There is a connection, made with :attr:`options`; see :class:`Link`."""
        if n_resets > self.link.n_resets:
            for known in self._done, self._parked, self._gaps:
                known.clear()
        self.link = Link(self._told, histories, max(n_resets, self.link.n_resets))

    def is_foreign(self, batch: ReplayBatch, link: Link) -> bool:
        """Whether a batch is of other histories than positions that its server was not told.

        Args:
            batch: what came, behind the gaps that were told.
            link: over which it came.
        """
        if batch.is_redelivered:
            return False
        for server_id, done in self._done.items():
            if done == link.told.get(server_id):
                self._know(server_id, link.histories)  # else it would have told that they differ
                continue
            found = {i[server_id] for i in (self._histories, link.histories) if server_id in i}
            if len(found) > 1:
                return True
        return False

    async def fresh(self, batch: ReplayBatch, link: Link) -> ReplayBatch | None:
        """What the application is to see of a batch, which is not foreign; None: nothing.

        Raises:
            CursorLostError: another connection has the cursor now.
        """
        if batch.is_redelivered:
            return batch.part(batch.events, self._acknowledge_by(batch, link))
        known = [i for i in batch.events if self._is_done(i.id)]
        new = [i for i in batch.events if not self._is_done(i.id)] if known else batch.events
        for event in new:
            self._gaps.pop(event.id.server, None)
        if self._cursor is None:
            self._note((i.id for i in new), link.histories)
            return batch.part(new) if new else None
        if known:
            parked = {i.id: self._parked[i.id] for i in known if i.id in self._parked}
            with contextlib.suppress(ConnectionLostError):
                await batch.part(known).ack(parked)
        return batch.part(new, self._acknowledge_by(batch, link)) if new else None

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

    def _acknowledge_by(self, batch: ReplayBatch, link: Link) -> AcknowledgeCb:
        n_departures = self._n_departures

        async def acknowledge(message: EventsAck) -> None:
            with contextlib.suppress(ConnectionLostError):
                await batch.acknowledge(message)
            if (n_departures, link.n_resets) != (self._n_departures, self.link.n_resets):
                return  # the cursor went back meanwhile
            for event_id in message.done:
                self._parked.pop(event_id, None)
            self._parked |= {i.id: i.reason for i in message.parked}
            for event_id in [*self._parked][: -limits.MAX_PARKED]:
                del self._parked[event_id]
            self._note(message.ids, link.histories)

        return acknowledge
