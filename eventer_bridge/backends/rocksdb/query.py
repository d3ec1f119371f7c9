"""Answering queries from the store (001, "Queries").

The latest events of a few types come from the cache, on the event loop. A few events of one type
are read there, too: handing such a query to another thread and back takes as long as answering it,
and rocksdict keeps the interpreter's lock while it reads, so that it would hold up the loop all the
same. If that takes too long, and for every other query, a reader thread answers, in turns.

Each is answered from one snapshot of the store, in two steps: find the keys of the answer and of
one more event, then read the values of the answer. What a query sees is up to the backend, which
waits for commits before it or after it.

What a query costs, besides what it returns:

- latest: a seek for each type that is returned, and finding the types that are asked for.
- timeseries of one type by timestamp: one seek; keys and values are read in one pass, in which
  filters pass over a row in about 0.7 us, or 1.6 us if they compare its payload. Where there are
  several types or ``unique_type``, they look up each value, in some 3 to 5 us.
- timeseries of few types, or by source timestamp: a seek for each type (``scan.merge``).
- timeseries of many types by timestamp: blocks of sessions are walked (``scan.walk``).
- timeseries by source timestamp without bounds of it: events that have none, behind the others,
  are found as by timestamp; the others are passed over, as by a filter, on a page that gets there:
  usually the last.
- timeseries with ``unique_type``: the same; events of a type that was found are skipped.
  Every page starts from the beginning, to know which types the pages before it found.
- timeseries with ``ids``: a look-up for each id, and each block of sessions once, nothing else.
- ``payload``: a filter, which reads the value of every event that satisfies the other conditions
  until the answer is full. Values that it passes over are not kept.
- bounds of the property that is ordered by, and ``last_event_id``: nothing, they are
  sought. Bounds of the other property are a filter: what does not pass it is read too.
- server: nothing; with rights to some types only, as timeseries.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from eventer_bridge import limits, packed
from eventer_bridge.backends.base import QueryLoad
from eventer_bridge.backends.common import NO_WAY_ON, check_ids, result_limit, take
from eventer_bridge.backends.readers import LargeCb, PauseCb, Readers, Reading
from eventer_bridge.backends.rocksdb import keys, trimmed
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import LatestCache, Row
from eventer_bridge.backends.rocksdb.scan import KeyRange, find_in_blocks, scan_server
from eventer_bridge.backends.rocksdb.snapshot import READ_FAMILIES, RowsRead, Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.timeseries import Timeseries
from eventer_bridge.backends.rocksdb.types import TypeRegistry, VisibleTypes
from eventer_bridge.backends.rocksdb.wanted import EveryType, all_wanted, find_wanted
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.errors import ClosedError, StorageError, StoreDamagedError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    Event,
    EventType,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)

SEEKS_AT_A_TIME: Final = 16
"""Types that are sought before it pauses: some 0.1 ms."""


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
        self._short_end_s: float | None = None  # of short ones, in this iteration of the loop
        self._too_long: QueryParams | None = None  # the last one that was tried in vain

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

    async def run(self, query: VisibleQuery, client: str, holding: ExitStack | None) -> QueryResult:
        """Answer a query from what is written by now; see ``Backend.answer``."""
        params = query.params
        begun_s = time.perf_counter()
        result = None if params is self._too_long else self.at_once(query)
        self._too_long = None
        if isinstance(holding, Reading):
            holding.seconds += time.perf_counter() - begun_s
        if result is not None:
            return result
        if isinstance(params, QueryTimeseriesParams) and params.ids:
            check_ids(params)
        if self._store.is_closing:
            raise ClosedError(f"{self._store.path}: the event store is closed")
        return await self._readers.run(client, partial(self._ext_run, query), holding)

    def at_once(self, query: VisibleQuery) -> QueryResult | None:
        """Answer a query on the loop, from the cache or from few rows.

        See ``Backend.answer_at_once``.
        """
        params, types = query.params, query.few_types
        if types is None or (isinstance(params, QueryTimeseriesParams) and params.ids):
            return None
        if params.last_event_id is None:
            if self._types.ids.keys().isdisjoint(types):
                return QueryResult([], False)
            if isinstance(params, QueryLatestParams) and (rows := self._quick_latest(types)):
                events = keys.decode_events(rows, self._types.names)
                return take(events, limits.MAX_LATEST_RESULTS)
        if len(types) == 1 and _is_short(params) and not self._store.is_closing:
            result = self._answer_short(query)
            self._too_long = params if result is None else None
            return result
        return None

    async def count_server(self, query: VisibleQuery, client: str) -> tuple[int, Timestamp | None]:
        """See ``Backend.count_server``."""
        return await self._readers.run(client, partial(self._ext_count_server, query))

    def _ext_count_server(
        self, query: VisibleQuery, pause: PauseCb, _: LargeCb
    ) -> tuple[int, Timestamp | None]:
        with self._store.in_use() as opened:
            # in a function of its own: as in _ext_run
            return self._ext_count(Snapshot(self._store, *opened, pause), query)

    def _ext_count(self, snapshot: Snapshot, query: VisibleQuery) -> tuple[int, Timestamp | None]:
        params = query.params
        assert isinstance(params, QueryServerParams)
        wanted = find_wanted(self._types, query, snapshot.pause)
        found = _server_keys(snapshot, params, wanted, result_limit(params.max_results))
        first = keys.decode_timestamp(found[0], keys.TYPE_BYTES) if found else None
        return len(found), first

    def ext_close(self) -> None:
        """Wait until nobody reads; nothing is run afterwards. The store is to be closing."""
        self._readers.ext_close()

    def _quick_latest(self, types: AbstractSet[EventType]) -> list[Row]:
        """Latest events of some types, if all of them are known; else none."""
        rows: list[Row] = []
        for event_type in types:
            type_id = self._types.ids.get(event_type)
            row = None if type_id is None else self._latest.get(type_id)
            if row is None:
                return []
            rows.append(row)
        return rows

    def _answer_short(self, query: VisibleQuery) -> QueryResult | None:
        """Answer on the loop's thread; None: it takes too long, or a reader will say what fails."""
        if self._short_end_s is None:
            self._short_end_s = time.perf_counter() + limits.SHORT_QUERIES_S
            asyncio.get_running_loop().call_soon(self._end_short)
        try:
            with self._store.errors():  # all of them
                self._check_short()
                read = _families_of(query.params)
                return self._ext_run(query, self._check_short, _give_up, read=read)
        except StorageError:
            return None

    def _end_short(self) -> None:
        self._short_end_s = None

    def _check_short(self) -> None:
        assert self._short_end_s is not None
        if time.perf_counter() >= self._short_end_s:
            _give_up()

    def _ext_run(
        self,
        query: VisibleQuery,
        pause: PauseCb,
        become_large: LargeCb,
        *,
        read: Sequence[str] = READ_FAMILIES,
    ) -> QueryResult:
        with self._store.in_use() as opened:
            # in a function of its own: it is gone when the store is free again
            if isinstance(query.params, QueryServerParams):
                read = (*read, trimmed.FAMILY)
            snapshot = Snapshot(self._store, *opened, pause, read=read)
            return self._ext_answer(snapshot, query, become_large)

    def _ext_answer(
        self, snapshot: Snapshot, query: VisibleQuery, become_large: LargeCb
    ) -> QueryResult:
        params, few_types = query.params, query.few_types
        types = self._types  # after the snapshot: it has the type of each row of it
        reader = StoreReader(snapshot, types.names, become_large)
        if isinstance(params, QueryLatestParams):
            return reader.ext_latest(params, all_wanted(types, query, snapshot.pause))
        wanted: Collection[TypeId]
        if few_types is not None and types.ids.keys() >= few_types:
            wanted = frozenset(types.ids[i] for i in few_types)
            if not wanted:
                return QueryResult([], False)
        else:
            wanted = find_wanted(types, query, snapshot.pause)
        if isinstance(params, QueryServerParams):
            result = reader.ext_server(params, wanted)
            deleted, number = trimmed.ext_find(snapshot, params, wanted, query.n_deletions)
            return msgspec.structs.replace(result, deleted=deleted, n_deletions=number)
        return reader.ext_timeseries(params, wanted)


def _is_short(params: QueryParams) -> bool:
    """Whether few events answer it, without looking at others, if it asks for one type."""
    return (
        isinstance(params, QueryTimeseriesParams)
        and params.max_results is not None
        and params.max_results <= limits.SHORT_QUERY_EVENTS
        and params.payload is None
        and params.ids is None
    )


def _families_of(params: QueryParams) -> Sequence[str]:
    """What the answer to a short query is read from: usually from the type's events alone."""
    is_plain = (
        isinstance(params, QueryTimeseriesParams)
        and params.order_by is OrderBy.TIMESTAMP
        and params.last_event_id is None
        and not params.unique_type
    )
    return ("event",) if is_plain else READ_FAMILIES


def _give_up() -> None:
    raise StorageError("not a short query")


class StoreReader:
    """Answers one query, on the thread that it is made on.

    Args:
        snapshot: the moment that is asked about.
        names: every type that rows can have, by id.
        become_large: called before the answer gets large.
    """

    def __init__(
        self, snapshot: Snapshot, names: dict[TypeId, EventType], become_large: LargeCb
    ) -> None:
        self._snapshot = snapshot
        self._names = names
        self._become_large = become_large

    def ext_latest(
        self, params: QueryLatestParams, wanted: VisibleTypes | EveryType
    ) -> QueryResult:
        """Latest event of each type, in the order of their numbers.

        Args:
            params: the query; its ``event_types`` are not looked at.
            wanted: types of interest.

        Raises:
            StorageError: it could not be read (so for all queries).
            ClosedError: the store is about to close (so for all queries).
        """
        first = 0
        if params.last_event_id is not None:
            key = self._snapshot.find(params.last_event_id)
            if key is None or key[: keys.TYPE_BYTES] not in wanted:
                return NO_WAY_ON
            first = keys.decode_type_id(key[: keys.TYPE_BYTES]) + 1
        iterator, seek_last = self._snapshot.iterator("event"), self._snapshot.seek_last
        each = (seek_last(iterator, type_id) for type_id in self._pausing(wanted.since(first)))
        found = (key for key in each if key is not None)
        # it stands at the key that was found last
        rows = self._snapshot.rows_of(found, lambda _: iterator.value())
        return self._take(rows, None, limits.MAX_LATEST_RESULTS)

    def ext_timeseries(
        self, params: QueryTimeseriesParams, wanted: Collection[TypeId]
    ) -> QueryResult:
        """Events by timestamp or source timestamp.

        Args:
            params: the query; its ``event_types`` are not looked at.
            wanted: types of interest.
        """
        limit = result_limit(params.max_results) + 1
        found = Timeseries(self._snapshot, params, wanted).rows(limit)
        return self._take(found, params.max_results, limits.MAX_RESULTS)

    def ext_server(self, params: QueryServerParams, wanted: Collection[TypeId]) -> QueryResult:
        """Events of a server, by id.

        Args:
            params: the query.
            wanted: types of interest.
        """
        limit = result_limit(params.max_results) + 1
        found = _server_keys(self._snapshot, params, wanted, limit)
        rows = self._snapshot.rows_at(found)
        return self._take(rows, params.max_results, limits.MAX_RESULTS)

    def _pausing(self, type_ids: Iterable[TypeId]) -> Iterator[TypeId]:
        for n_types, type_id in enumerate(type_ids):
            if n_types % SEEKS_AT_A_TIME == 0:
                self._snapshot.pause()
            yield type_id

    def _take(self, found: Iterable[RowsRead], max_results: int | None, most: int) -> QueryResult:
        """The first events, cut as ``common.take`` does; waits until there may be so many bytes.

        Args:
            found: their rows, in order, a few at a time; they are taken out of the lists.
            max_results: of the query.
            most: events in any answer.
        """
        n_left = most if max_results is None else min(max_results, most)
        few: list[Row] = []  # of a small answer, which wires encode as they are
        taken: list[Event] = []
        most_bytes = min(limits.STEP_BYTES, limits.MAX_RESULT_BYTES)
        n_bytes, n_free_bytes = 0, limits.LARGE_ANSWER_BYTES
        try:
            for rows, n_value_bytes in found:
                n_bytes += n_value_bytes
                if n_free_bytes >= 0:
                    n_free_bytes -= limits.ANSWER_EVENT_BYTES * len(rows) + n_value_bytes
                    if n_free_bytes < 0:
                        last, _ = rows.pop()  # it may be large itself
                        self._become_large()
                        rows.append((last, self._snapshot.value(last)))
                has_more = len(rows) > n_left
                few += rows[:n_left]
                if taken or len(few) > limits.STEP_EVENTS or n_bytes > most_bytes:
                    taken += keys.decode_events(few, self._names)
                    few.clear()
                if n_bytes > limits.MAX_RESULT_BYTES:  # their payloads may have fewer
                    result = take(taken, len(taken))
                    if result.more_follows:
                        return result
                if has_more:
                    return QueryResult(self._events(few) or taken, True)
                n_left -= len(rows)
            return QueryResult(self._events(few) or taken, False)
        except KeyError as e:
            raise StoreDamagedError(
                f"{self._snapshot.path}: the event store is damaged: there is no type {e}"
            ) from None

    def _events(self, rows: list[Row]) -> Sequence[Event]:
        """Events from few rows; raises ``KeyError`` if there is no such type."""
        names = self._names
        if packed.IS_COMPILED:
            events = packed.stored_events(rows, names, msgspec.json.encode, keys.decode_events)
            if events is not None:
                return events
        return keys.decode_events(rows, names)


def _server_keys(
    snapshot: Snapshot, params: QueryServerParams, wanted: Collection[TypeId], limit: int
) -> list[bytes]:
    """Keys of events of a server, by id."""
    if not INT64_MIN <= params.server_id <= INT64_MAX:
        return []
    server = keys.encode_int(params.server_id)
    last_id = keys.encode_id(params.last_event_id) if params.last_event_id else b""
    start, stop = max(server, last_id), server + keys.KEY_MAX
    blocks = scan_server(snapshot, server, start[: keys.SERVER_KEY_BYTES])
    first = next(blocks, None)
    if first is None:
        return []
    return find_in_blocks(
        snapshot,
        chain((first,), blocks),
        wanted,
        KeyRange(first, keys.KEY_MAX),
        limit=limit,
        accept=lambda key: start < key[-keys.ID_BYTES :] < stop,
    )
