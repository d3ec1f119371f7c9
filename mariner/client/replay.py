"""What a client gets that asked for what it missed: batches, each to be acknowledged.

Runs on the event loop's thread.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from eventer_bridge.model import Event, EventId
from mariner.client.notifications import Notifications
from mariner.errors import GapError, OtherHistoryError
from mariner.wire.messages import EventsAck, EventsMsg, Gap, Parked, UpToDate

Start: TypeAlias = Literal["earliest"] | Sequence[EventId] | Mapping[int, EventId]
"""Where a replay begins: at the oldest event, or behind the last one seen of each server."""

AcknowledgeCb: TypeAlias = Callable[[EventsAck], Awaitable[None]]
"""Sends it; raises what ``ReplayBatch.ack`` says."""

ReplayItem: TypeAlias = EventsMsg | Gap | UpToDate


class ReplayBatch:
    """Some events, in the order of each server.

    Attributes:
        events: the events.
        is_redelivered: whether they were parked, and are to be tried again.
        is_live: whether everything that was persisted before the connection came before them.
        acknowledge: see :data:`AcknowledgeCb`.
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
        again.

        Args:
            parked: events of the batch that cannot be dealt with now, each with the reason; people
                are to look at them.

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

    Raises:
        GapError: retention deleted events that were not seen; what follows is still there.
        OtherHistoryError: what was seen is not what the server has; what it has follows.
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
