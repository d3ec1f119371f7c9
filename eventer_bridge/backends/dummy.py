"""Backend that stores nothing: for gateways that only distribute events.

Registrations succeed at once, and answers to queries are empty. It keeps the last session and
timestamp of each server in memory, so that ids ascend; a restart forgets them.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import ExitStack

from hat import util
from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import (
    Backend,
    HighWaterMark,
    QueryLoad,
    StoreStats,
    check_ids,
    failed,
)
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import EventType, QueryResult, Timestamp
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps


class DummyBackend(Backend):
    """See the module."""

    is_whole = True
    is_keeping = False

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._marks: dict[int, HighWaterMark] = {}
        self._reserved: dict[int, int] = {}
        self.history_id = history.new_id()
        self.failure_cbs = util.CallbackRegistry()

    @override
    async def begin_history(self, server_id: int) -> None:
        self.history_id = history.new_id()
        mark = self.high_water_mark(server_id).session
        self._reserved[server_id] = max(time.time_ns() // 1_000, mark + limits.RESTORED_SESSIONS)

    @override
    def high_water_mark(self, server_id: int) -> HighWaterMark:
        session, timestamp = self.last_session(server_id)
        return HighWaterMark(max(session, self._reserved.get(server_id, 0)), timestamp)

    @override
    def last_session(self, server_id: int) -> HighWaterMark:
        self._check_open()
        return self._marks.get(server_id, HighWaterMark(0, None))

    @override
    def servers(self) -> list[int]:
        self._check_open()
        return sorted(self._marks)

    @override
    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        if self.is_open:
            self._reserved[server_id] = session
        return self._done()

    @override
    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        pass  # no type is stored

    @override
    def register(self, batches: list[Batch]) -> Steps[asyncio.Future[None]]:
        yield
        if self.is_open:
            last = batches[-1]
            self._marks[last.server] = HighWaterMark(last.session, Timestamp(last.s, last.us))
        return self._done()

    @override
    async def answer(
        self, query: VisibleQuery, client: str = "", holding: ExitStack | None = None
    ) -> QueryResult:
        self._check_open()
        check_ids(query.params)  # refuses what every backend refuses
        _ = query.types
        return QueryResult([], False)

    @property
    @override
    def query_load(self) -> QueryLoad:
        return QueryLoad(0, 0)

    @override
    async def flush(self) -> None:
        await asyncio.sleep(0)  # the callbacks of futures are called first

    @override
    def stats(self) -> StoreStats:
        self._check_open()
        return StoreStats(0, 0, 0)

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
