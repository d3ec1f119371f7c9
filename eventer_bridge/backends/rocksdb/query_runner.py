"""Running queries: from the cache of latest events on the loop, or else on reader threads.

What a query sees is up to the backend, which waits for commits before or after it.
"""

from contextlib import ExitStack
from functools import partial
from typing import Final

from eventer_bridge import limits
from eventer_bridge.backends.base import QueryLoad
from eventer_bridge.backends.common import check_ids, take
from eventer_bridge.backends.readers import LargeCb, PauseCb, Readers
from eventer_bridge.backends.rocksdb.latest import LatestCache, Row
from eventer_bridge.backends.rocksdb.query import StoreReader, decode_rows
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.backends.rocksdb.wanted import all_wanted, find_wanted
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import (
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
)
from eventer_bridge.subscription import Subscription

QUICK_TYPES: Final = 64
"""Types whose latest events are looked up on the loop; more would hold up others."""


class QueryRunner:
    """See the module. Everything but ``ext_…`` belongs to the event loop's thread.

    Args:
        store: what is read from.
        types: its event types.
        latest: its latest events.
    """

    def __init__(self, store: Store, types: TypeRegistry, latest: LatestCache) -> None:
        self._store = store
        self._types, self._latest = types, latest
        self._readers = Readers(store.check_usable)

    @property
    def load(self) -> QueryLoad:
        """Queries that are under way."""
        return self._readers.load

    @property
    def turns(self) -> int:
        """Turns that queries had so far."""
        return self._readers.n_turns

    @property
    def is_whole(self) -> bool:
        """Whether every thread that was started lives."""
        return self._readers.is_whole

    def use(self, types: TypeRegistry, latest: LatestCache) -> None:
        """The store was opened again: go on with these."""
        self._types, self._latest = types, latest

    async def run(
        self,
        params: QueryParams,
        subscription: Subscription | None,
        client: str,
        holding: ExitStack | None,
    ) -> QueryResult:
        """Answer a query from what is written by now; see ``Backend.query``."""
        check_ids(params)
        rights = None if subscription is None or subscription.is_everything else subscription
        if self._is_of_no_type(params):
            return QueryResult([], False)
        if isinstance(params, QueryLatestParams) and (rows := self._quick_latest(params, rights)):
            return take(decode_rows(rows, self._types.names), limits.MAX_LATEST_RESULTS)
        if self._store.is_closing:
            raise ClosedError(f"{self._store.path}: the event store is closed")
        return await self._readers.run(client, partial(self._ext_run, params, rights), holding)

    def ext_close(self) -> None:
        """Wait until nobody reads; nothing is run afterwards. The store is to be closing."""
        self._readers.ext_close()

    def _is_of_no_type(self, params: QueryParams) -> bool:
        """Whether it asks for a few types, none of which is known."""
        if isinstance(params, QueryServerParams) or params.last_event_id is not None:
            return False
        asked, find_one = params.event_types, self._types.find_one
        if asked is None or len(asked) > QUICK_TYPES:
            return False
        return all(find_one(tuple(i)) is None and _is_single(i) for i in asked)

    def _quick_latest(self, params: QueryLatestParams, rights: Subscription | None) -> list[Row]:
        """Latest events of a few types, if all of them are known; else none."""
        asked = params.event_types
        if asked is None or len(asked) > QUICK_TYPES or params.last_event_id is not None:
            return []
        rows: list[Row] = []
        for event_type in dict.fromkeys(map(tuple, asked)):
            type_id = self._types.find_one(event_type)
            row = None if type_id is None else self._latest.get(type_id)
            if row is None or not _is_single(event_type):
                return []
            if rights is None or rights.matches(event_type):
                rows.append(row)
        return rows

    def _ext_run(
        self,
        params: QueryParams,
        rights: Subscription | None,
        pause: PauseCb,
        become_large: LargeCb,
    ) -> QueryResult:
        with self._store.in_use():
            return self._ext_in_use(params, rights, pause, become_large)

    def _ext_in_use(
        self,
        params: QueryParams,
        rights: Subscription | None,
        pause: PauseCb,
        become_large: LargeCb,
    ) -> QueryResult:
        # a function of its own, so that the snapshot is gone when the store is free again
        snapshot = self._store.snapshot(pause)
        types = self._types  # after the snapshot: it has the type of each row of it
        reader = StoreReader(snapshot, types.names, become_large)
        visible = None if rights is None else types.visible(rights)
        if isinstance(params, QueryLatestParams):
            return reader.ext_latest(params, all_wanted(types, params, visible, pause))
        wanted = find_wanted(types, params, visible, pause)
        if isinstance(params, QueryServerParams):
            return reader.ext_server(params, wanted)
        return reader.ext_timeseries(params, wanted)


def _is_single(query_type: EventType) -> bool:
    """Whether no other type than the one of the same segments matches."""
    return "?" not in query_type and "*" not in query_type
