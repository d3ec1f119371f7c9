"""Base of backends without a disk: nothing is pending, nothing fails, marks are a dict.

Everything runs on the event loop's thread.
"""

import abc
import asyncio
import time
from collections.abc import Callable, Sequence

from hat import aio, util

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import Backend, HighWaterMark, QueryLoad
from eventer_bridge.backends.common import failed
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import Event


class VolatileBackend(Backend):
    """See the module. Subclasses store events, if at all, and answer queries."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._async_group = aio.Group()
        self._marks: dict[int, HighWaterMark] = {}
        self._reserved: dict[int, int] = {}
        self._history_id = history.new_id()
        self._is_whole = False

    @abc.abstractmethod
    def _keep(self, events: Sequence[Event], quota: TypeQuota | None, n_asked: int) -> None:
        """Store the events of a session, if at all; see :meth:`register`."""

    def _keep_request(self, request: RequestKey, event: Event) -> None:
        """Keep a request, if at all; ``event`` is one of its events."""

    @property
    def async_group(self) -> aio.Group:
        """Group of the backend's tasks (it has none)."""
        return self._async_group

    @property
    def failure(self) -> None:
        """See :class:`Backend`; memory does not fail."""
        return None

    def register_failure_cb(self, cb: Callable[[], None]) -> util.RegisterCallbackHandle:
        """See :class:`Backend`; ``cb`` is never called."""
        return util.RegisterCallbackHandle(lambda: None)

    def high_water_mark(self, server_id: int) -> HighWaterMark:
        """See :class:`Backend`."""
        session, timestamp = self.last_session(server_id)
        return HighWaterMark(max(session, self._reserved.get(server_id, 0)), timestamp)

    @property
    def history_id(self) -> str:
        """See :class:`Backend`; nothing outlives it."""
        return self._history_id

    @property
    def is_whole(self) -> bool:
        """See :class:`Backend`."""
        return self._is_whole

    async def note_whole(self) -> None:
        """See :class:`Backend`."""
        self._is_whole = True

    async def begin_history(self, server_id: int) -> None:
        """See :class:`Backend`."""
        self._history_id, self._is_whole = history.new_id(), False
        mark = self.high_water_mark(server_id).session
        self._reserved[server_id] = max(time.time_ns() // 1_000, mark + limits.RESTORED_SESSIONS)

    def last_session(self, server_id: int) -> HighWaterMark:
        """See :class:`Backend`."""
        self._check_open()
        return self._marks.get(server_id, HighWaterMark(0, None))

    def servers(self) -> list[int]:
        """See :class:`Backend`."""
        self._check_open()
        return sorted(self._marks)

    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        """See :class:`Backend`."""
        if self.is_open:
            self._reserved[server_id] = session
        return self._done()

    def register(
        self,
        events: Sequence[Event],
        quota: TypeQuota | None = None,
        n_asked: int = 0,
        request: RequestKey | None = None,
    ) -> asyncio.Future[None]:
        """See :class:`Backend`."""
        if self.is_open:
            last = events[-1]
            self._marks[last.id.server] = HighWaterMark(last.id.session, last.timestamp)
            self._keep(events, quota, n_asked)
            if request is not None:
                self._keep_request(request, last)
        return self._done()

    @property
    def query_load(self) -> QueryLoad:
        """See :class:`Backend`; queries are answered at once."""
        return QueryLoad(0, 0)

    async def flush(self) -> None:
        """See :class:`Backend`; nothing is ever pending but callbacks."""
        await asyncio.sleep(0)

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClosedError("the event store is closed")

    def _done(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self._check_open()
        except ClosedError as e:
            return failed(future, e)
        future.set_result(None)
        return future
