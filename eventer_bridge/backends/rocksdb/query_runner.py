"""Running queries: from the cache of latest events on the loop, or else on reader threads.

Belongs to the event loop's thread. What a query sees is up to the backend, which waits for
commits before or after it.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from eventer_bridge import limits
from eventer_bridge.backends.common import check_ids, take, visible_types
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import LatestCache
from eventer_bridge.backends.rocksdb.opening import ext_call
from eventer_bridge.backends.rocksdb.query import Reader, decode_rows
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import Types
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.subscription import Subscription

QUICK_TYPES: Final = 64
"""Types whose latest events are looked up on the loop; more would hold up others."""


class QueryRunner:
    """See the module.

    Args:
        store: what is read from.
        types: its event types.
        latest: its latest events.
        readers: threads that read; closed with the runner.
    """

    def __init__(
        self, store: Store, types: Types, latest: LatestCache, readers: ThreadPoolExecutor
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._types, self._latest = types, latest
        self._readers = readers

    def use(self, types: Types, latest: LatestCache) -> None:
        """The store was opened again: go on with these."""
        self._types, self._latest = types, latest

    async def run(self, params: QueryParams, subscription: Subscription | None) -> QueryResult:
        """Answer a query from what is written by now; see ``Backend.query``."""
        check_ids(params)
        types = visible_types(params, subscription)
        while (result := await self._answer(params, types)) is None:
            pass
        return result

    def ext_close(self) -> None:
        """Wait until nobody reads; nothing is run afterwards."""
        self._readers.shutdown()

    async def _answer(self, params: QueryParams, types: Subscription | None) -> QueryResult | None:
        """Answer a query; None: a new type came meanwhile, and may belong to the answer."""
        ids = None
        if types is not None and not types.is_everything:
            ids = [type_id for found in self._types.find(types) for type_id in found]
        if ids is not None and not ids:
            return QueryResult([], False)
        match params:
            case QueryLatestParams():
                return await self._query_latest(ids)
            case QueryTimeseriesParams():
                return await self._read(Reader.ext_timeseries, params, ids)
            case QueryServerParams():
                return await self._read(Reader.ext_server, params, ids)

    async def _query_latest(self, ids: list[TypeId] | None) -> QueryResult | None:
        names = self._types.names
        if ids is None:
            ids = list(islice(names, limits.MAX_LATEST_RESULTS + 1))
        if len(ids) <= QUICK_TYPES:
            rows = [row for type_id in ids if (row := self._latest.get(type_id))]
            if len(rows) == len(ids):
                return take(decode_rows(rows, names), limits.MAX_LATEST_RESULTS)
        return await self._read(Reader.ext_latest, ids)

    async def _read(self, ext_fn: Callable[..., QueryResult], *args: Any) -> QueryResult | None:
        """Read on a reader thread; None: the types among the arguments are not all any more."""
        if self._store.is_closing:
            raise ClosedError(f"{self._store.path}: the event store is closed")
        return await self._loop.run_in_executor(
            self._readers, self._ext_read, self._types.names, len(self._types), ext_fn, *args
        )

    def _ext_read(
        self,
        names: Mapping[TypeId, EventType],
        n_types: int,
        ext_fn: Callable[..., QueryResult],
        *args: Any,
    ) -> QueryResult | None:
        with self._store.in_use():
            reader = Reader(self._store.snapshot(), names)
            if len(names) != n_types:
                return None  # of a session with a new type the other events would be seen only
            return ext_call(ext_fn, reader, *args)
