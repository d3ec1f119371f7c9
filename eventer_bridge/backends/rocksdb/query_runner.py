"""Running queries: from the cache of latest events on the loop, or else on reader threads.

What a query sees is up to the backend, which waits for commits before or after it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.base import QueryLoad
from eventer_bridge.backends.common import check_ids, take, visible_types
from eventer_bridge.backends.readers import PauseCb, Readers
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import LatestCache
from eventer_bridge.backends.rocksdb.query import Reader, decode_rows
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import Types
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.subscription import Subscription

QUICK_TYPES: Final = 64
"""Types whose latest events are looked up on the loop; more would hold up others."""

_ReadCb: TypeAlias = Callable[[Reader], QueryResult]


class QueryRunner:
    """See the module. Everything but ``ext_…`` belongs to the event loop's thread.

    Args:
        store: what is read from.
        types: its event types.
        latest: its latest events.
    """

    def __init__(self, store: Store, types: Types, latest: LatestCache) -> None:
        self._store = store
        self._types, self._latest = types, latest
        self._readers = Readers(store.check_usable)

    @property
    def load(self) -> QueryLoad:
        """Queries that are under way."""
        return self._readers.load

    def use(self, types: Types, latest: LatestCache) -> None:
        """The store was opened again: go on with these."""
        self._types, self._latest = types, latest

    async def run(
        self, params: QueryParams, subscription: Subscription | None, client: str
    ) -> QueryResult:
        """Answer a query from what is written by now; see ``Backend.query``."""
        check_ids(params)
        types = visible_types(params, subscription)
        while (result := await self._answer(params, types, client)) is None:
            pass
        return result

    def ext_close(self) -> None:
        """Wait until nobody reads; nothing is run afterwards. The store is to be closing."""
        self._readers.ext_close()

    async def _answer(
        self, params: QueryParams, types: Subscription | None, client: str
    ) -> QueryResult | None:
        """Answer a query; None: a new type came meanwhile, and may belong to the answer."""
        ids = None
        if types is not None and not types.is_everything:
            ids = [type_id for found in self._types.find(types) for type_id in found]
        if ids is not None and not ids:
            return QueryResult([], False)
        match params:
            case QueryLatestParams():
                return await self._query_latest(ids, client)
            case QueryTimeseriesParams():
                return await self._read(client, lambda i: i.ext_timeseries(params, ids))
            case QueryServerParams():
                return await self._read(client, lambda i: i.ext_server(params, ids))

    async def _query_latest(
        self, type_ids: Sequence[TypeId] | None, client: str
    ) -> QueryResult | None:
        names = self._types.names
        ids = type_ids or list(islice(names, limits.MAX_LATEST_RESULTS + 1))
        if len(ids) <= QUICK_TYPES:
            rows = [row for type_id in ids if (row := self._latest.get(type_id))]
            if len(rows) == len(ids):
                return take(decode_rows(rows, names), limits.MAX_LATEST_RESULTS)
        return await self._read(client, lambda reader: reader.ext_latest(ids))

    async def _read(self, client: str, ext_read: _ReadCb) -> QueryResult | None:
        """Read on a reader thread; None: the types among the arguments are not all any more."""
        if self._store.is_closing:
            raise ClosedError(f"{self._store.path}: the event store is closed")
        types, n_types = self._types, len(self._types)
        return await self._readers.run(client, partial(self._ext_read, types, n_types, ext_read))

    def _ext_read(
        self, types: Types, n_types: int, ext_read: _ReadCb, pause: PauseCb
    ) -> QueryResult | None:
        with self._store.in_use():
            return self._ext_in_use(types, n_types, ext_read, pause)

    def _ext_in_use(
        self, types: Types, n_types: int, ext_read: _ReadCb, pause: PauseCb
    ) -> QueryResult | None:
        # a function of its own, so that the snapshot is gone when the store is free again
        snapshot = self._store.snapshot(pause)
        if len(types) != n_types:
            return None  # of a session with a new type the other events would be seen only
        return ext_read(Reader(snapshot, types.names))
