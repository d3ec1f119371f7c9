"""Sessions: batches from their registration to the disk (000), and the ids that they get.

A session is a batch (``eventer_bridge.packed``) that was registered: it has an id, a timestamp and
a commit. Thousands of events may wait for a commit. As objects, they would be out of the
processor's caches when it is done, and would push out what comes meanwhile: so they stay bytes
until somebody looks at them.

Session ids are never reused, even after kill -9, and timestamps never go back. Ids are reserved on
disk ahead of use (``limits.RESERVED_SESSIONS``), because an observer may see one before its commit.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.core.clock import ahead_s
from eventer_bridge.errors import LimitError
from eventer_bridge.model import Event, ProcessEvent, RegisterEvent, Source, SourceType, Timestamp
from eventer_bridge.packed import Batch, assign

REMOTE_SOURCE: Final = Source(SourceType.CONNECTION, 0)
"""Source of events registered by other servers."""


def resolve(committed: asyncio.Future[None], error: BaseException | None) -> None:
    """Resolve the ``committed`` of batches: success, or an error, without its traceback."""
    if error is None:
        committed.set_result(None)
    else:
        committed.set_exception(error.with_traceback(None))
        committed.exception()  # marks it as retrieved: no caller has to await it


def is_large(n_events: int, n_bytes: int) -> bool:
    """Whether a session of so many events and payload bytes is processed in slices."""
    return n_events > limits.LARGE_SESSION_EVENTS or n_bytes > limits.LARGE_SESSION_BYTES


def payload_bytes(events: Iterable[RegisterEvent | ProcessEvent | Event]) -> int:
    """Size of the payloads of events."""
    return sum([len(event.payload.data) for event in events if event.payload is not None])


class SessionIdAllocator:
    """See the module. ``newest`` is the greatest timestamp used, or the least that may be."""

    def __init__(self, backend: Backend, server_id: int) -> None:
        self._backend = backend
        self.server_id = server_id
        self.newest = Timestamp(0, 0)
        self.renew()

    def renew(self) -> None:
        """Resume after the stored and reserved ids; no session is under way."""
        mark = self._backend.high_water_mark(self.server_id)
        self._session = mark.session
        self._ceiling = mark.session  # session ids up to here are reserved durably
        self._requested_ceiling = mark.session
        self.newest = max(self.newest, mark.timestamp or self.newest)

    def assign(self, batches: list[Batch], first: int | None = None) -> None:
        """Give batches session ids (from ``first`` on), and one timestamp that never goes back."""
        if first is None:
            first = self.next_sessions(len(batches))
        self.newest = now = max(self.newest, Timestamp.now())
        assign(batches, self.server_id, first, now.s, now.us)

    def next_sessions(self, n_sessions: int = 1) -> int:
        """Allocate consecutive session ids, greater than all before; returns the first.

        ``LimitError``: they are not reserved on disk (it is slow, or failed).
        """
        last = self._session + n_sessions
        if last + limits.RESERVED_SESSIONS // 2 > self._requested_ceiling:
            self.reserve()
        if last > self._ceiling:
            raise LimitError("session ids are not reserved on disk yet, try again")
        self._session = last
        return last - n_sessions + 1

    def see(self, timestamp: Timestamp) -> None:
        """Give only later timestamps than one that the other server of a pair gave.

        What is registered after it took over from a server whose clock is ahead is found behind
        what that one registered. A clock that is wrong by more (``limits.MAX_SEEN_AHEAD_S``) is not
        followed.
        """
        if timestamp >= self.newest and ahead_s(timestamp) <= limits.MAX_SEEN_AHEAD_S:
            # equal ones are ordered by server
            self.newest = Timestamp(*divmod(timestamp.s * 1_000_000 + timestamp.us + 1, 1_000_000))

    def reserve(self) -> asyncio.Future[None]:
        """Reserve ids ahead; returns when that is durable."""
        ceiling = self._requested_ceiling = self._session + limits.RESERVED_SESSIONS
        future = self._backend.reserve(self.server_id, ceiling)

        def on_done(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and not future.exception():
                self._ceiling = max(self._ceiling, ceiling)
            elif self._requested_ceiling == ceiling:
                self._requested_ceiling = self._ceiling  # the next request tries again

        if future.done():
            on_done(future)
        else:
            future.add_done_callback(on_done)
        return future

    def release(self) -> asyncio.Future[None]:
        """Give back reserved, unused ids; no more ids can be allocated."""
        self._ceiling = self._session
        return self._backend.reserve(self.server_id, self._session)
