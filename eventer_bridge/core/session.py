"""A session: the events of one registration request, from the request to the disk (000).

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.model import Event, ProcessEvent, RegisterEvent, Source, SourceType

REMOTE_SOURCE: Final = Source(SourceType.CONNECTION, 0)
"""Source of what other servers registered."""


class Session:
    """See the module. Made by ``Engine.register``.

    Attributes:
        source: who asked.
        requested: number of events that were asked for; they are the first of ``events``,
            in the order of the request. What modules added follows.
        events: its events; empty until they are created, which is before any observer
            hears of the session and before ``committed`` succeeds.
        payload_bytes: size of the payloads of its events.
        committed: done when the events are durable; fails with a branch of
            ``EventerBridgeError`` where they may not be. Sessions that are committed
            together may share it, so it is never to be cancelled: wait for it with
            ``asyncio.wait`` where that could happen.
        is_large: whether it is dealt with in slices (:func:`is_large`); what modules added counts.
        is_stepwise: whether it is handed over, and told of, in slices: a large one, or one
            that brings many event types.
        quota: of who asked, for event types that nobody used before.
        encodings: encoded events by wire, filled in by the wires themselves, so that an
            event is encoded once per wire and not once per receiver.
    """

    __slots__ = (
        "committed",
        "encodings",
        "events",
        "is_large",
        "is_stepwise",
        "payload_bytes",
        "quota",
        "requested",
        "source",
    )

    def __init__(
        self,
        source: Source,
        requested: int,
        payload_bytes: int,
        committed: asyncio.Future[None],
        events: Sequence[Event] = (),
        *,
        quota: TypeQuota | None = None,
    ) -> None:
        self.source = source
        self.quota = quota
        self.requested = requested
        self.is_large = self.is_stepwise = is_large(requested, payload_bytes)
        self.events = events
        self.payload_bytes = payload_bytes
        self.committed = committed
        self.encodings: dict[str, Any] = {}

    def resolve(self, error: BaseException | None) -> None:
        """Make ``committed`` succeed, or fail."""
        if error is None:
            self.committed.set_result(None)
        else:
            self.committed.set_exception(error)
            self.committed.exception()  # counts as looked at: nobody has to await it


def is_large(n_events: int, n_bytes: int) -> bool:
    """Whether a session of so many events and bytes of payload is dealt with in slices."""
    return n_events > limits.LARGE_SESSION_EVENTS or n_bytes > limits.LARGE_SESSION_BYTES


def payload_bytes(events: Sequence[RegisterEvent | ProcessEvent | Event]) -> int:
    """Size of the payloads of events."""
    return sum([len(event.payload.data) for event in events if event.payload is not None])
