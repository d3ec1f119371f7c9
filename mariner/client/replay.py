"""What a client missed: batches, each to be acknowledged. Runs on the event loop's thread.

:class:`Resumption` is where a replay goes on over the next connection, so that nothing is missed or
comes twice. Without a cursor, behind the last event of each server that was handed to the
application. With one, the server keeps what was acknowledged; an acknowledgement that was lost with
its connection is made up for when its events come again, which the application does not see, unless
the cursor was reset.

A position is one in the history of its server that the connection told over which it was reached.
It is told to the next server, which says where its own history departs from it. One that was
reached later, over a connection that is gone, is told over another connection, if need be.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from eventer_bridge import limits
from eventer_bridge.model import INT64_MAX, Event, EventId
from mariner.client.notifications import Notifications
from mariner.errors import ConnectionLostError, GapError, OtherHistoryError
from mariner.wire.messages import EventsAck, EventsMsg, Gap, Parked, UpToDate

Start: TypeAlias = Literal["earliest"] | Sequence[EventId] | Mapping[int, EventId]
"""Where a replay begins: at the oldest event, or behind the last one seen of each server."""

AcknowledgeCb: TypeAlias = Callable[[EventsAck], Awaitable[None]]
"""Sends it; raises what ``ReplayBatch.ack`` says."""

ReplayItem: TypeAlias = EventsMsg | Gap | UpToDate


class ReplayBatch:
    """Some events, in the order of each server.

    ``is_redelivered``: they were parked, and are to be tried again; ``is_live``: everything that
    was persisted before the connection came before them.
    """

    def __init__(self, message: EventsMsg, acknowledge: AcknowledgeCb, *, is_live: bool) -> None:
        self.events = message.events
        self.is_redelivered = message.redelivered
        self.is_live = is_live
        self.acknowledge = acknowledge

    def first(self, n_events: int) -> "ReplayBatch":
        """The first events of the batch, to be acknowledged alone."""
        return self.part(self.events[:n_events])

    def part(
        self, events: Sequence[Event], acknowledge: AcknowledgeCb | None = None
    ) -> "ReplayBatch":
        """Some events of the batch, to be acknowledged alone, or in another way."""
        message = EventsMsg(events, self.is_redelivered)
        return ReplayBatch(message, acknowledge or self.acknowledge, is_live=self.is_live)

    async def ack(self, parked: Mapping[EventId, str] | None = None) -> None:
        """Have the cursor go on behind these events, and so behind all that came before.

        It is sent, and written by the server a little later: after a crash of the server, some come
        again. ``parked`` are events of the batch that cannot be dealt with now, each with the
        reason; people are to look at them.

        Raises:
            LocalProtocolError: there is no cursor.
            CursorLostError: another connection has the cursor now.
            ConnectionLostError: the connection was lost.
        """
        left = parked or {}
        some = tuple(Parked(event_id, reason) for event_id, reason in left.items())
        if self.is_redelivered:
            done = tuple(i.id for i in self.events if i.id not in left)
            await self.acknowledge(EventsAck(parked=some, done=done))
            return
        last = {event.id.server: event.id for event in self.events}
        await self.acknowledge(EventsAck(tuple(last.values()), some))


async def batches(
    received: Notifications[ReplayItem], acknowledge: AcknowledgeCb, *, until_up_to_date: bool
) -> AsyncIterator[ReplayBatch]:
    """Batches of what was received, to its end, or until the client is up to date.

    Raises GapError if retention deleted events that were not seen, OtherHistoryError if what was
    seen is not what the server has; what follows is still there.
    """
    is_live = False
    async for item in received:
        if isinstance(item, EventsMsg):
            yield ReplayBatch(item, acknowledge, is_live=is_live)
        elif isinstance(item, Gap):
            raise _error_of(item)
        elif until_up_to_date:
            return
        else:
            is_live = True


def _error_of(gap: Gap) -> GapError:
    other = gap.other_history
    if other is None:
        return GapError(gap.server_id, gap.oldest)
    return OtherHistoryError(gap.server_id, other.reason, last=other.last, oldest=gap.oldest)


class Link(NamedTuple):
    """A connection: positions that its server was told, histories of the events that come over it.

    ``n_resets`` is how often the cursor had been reset.
    """

    sent: Mapping[int, EventId]
    histories: Mapping[int, str]
    n_resets: int


class Resumption:
    """See the module; ``link`` is the newest connection."""

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
        self._sent: Mapping[int, EventId] = {}

    def begin_at(self, ids: Iterable[EventId], histories: Mapping[int, str]) -> None:
        """Begin behind these events, which are of these histories; before the first connection."""
        first = self._done if self._cursor is None else self._begin
        first.update({i.server: i for i in ids})
        self._histories |= {i: name for i, name in histories.items() if i in first}

    @property
    def is_wanted(self) -> bool:
        """Whether there is a replay at all."""
        return self._is_wanted

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``connect``, for a connection that is made now."""
        ids = self._sent = {**self._begin, **self._done}
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
        self.link = Link(self._sent, histories, max(n_resets, self.link.n_resets))

    def is_foreign(self, batch: ReplayBatch, link: Link) -> bool:
        """Whether a batch is of other histories than positions that its server was not told."""
        if batch.is_redelivered:
            return False
        for server_id, done in self._done.items():
            if done == link.sent.get(server_id):
                self._know(server_id, link.histories)  # else it would have told that they differ
                continue
            found = {i[server_id] for i in (self._histories, link.histories) if server_id in i}
            if len(found) > 1:
                return True
        return False

    async def fresh(self, batch: ReplayBatch, link: Link) -> ReplayBatch | None:
        """What the application is to see of a batch, which is not foreign; None: nothing."""
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
        is_reported = gap.server_id in self._gaps and self._gaps[gap.server_id] == gap.oldest
        self._gaps[gap.server_id] = gap.oldest
        return not is_reported

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
