"""Answering queries from the store (000, "query events"; 001, "Queries", "timeseries").

The latest events of a few types come from the cache, on the event loop. A few events of one type
are read there, too: handing such a query to another thread and back takes as long as answering it,
and rocksdict holds the interpreter's lock while it reads, so that it would block the loop all the
same. If that takes too long, and for every other query, a reader thread answers, in turns.

Each is answered from one snapshot of the store, in two steps: find the keys of the answer and of
one more event, then read the values of the answer. The backend waits for commits before it or after
it.

Timeseries are sought in one or two parts of their order: by timestamp in one; by source timestamp
events that have one (``in_order``) and, behind them in either direction, those that have none in
``event``, where the others are passed over. In ``event``, those of one type follow each other: keys
and values are read in one pass, and what a span cannot express is a condition of the value.
Elsewhere keys are found first, by looking up ids or by ``scan``, through a filter of keys, which
may look up each value. An index key is the key that an event has, or would have, in the family in
whose order it is sought.

Cost of a query, besides what it returns:

- latest: a seek for each returned type, and finding the types of the query.
- timeseries of one type by timestamp: one seek; filters pass over a row in about 0.7 us, or 1.6 us
  if they compare its payload. Of several types, or with ``unique_type``, they look up each value,
  in some 3 to 5 us.
- timeseries of few types, or by source timestamp: a seek for each type (``scan.merge``).
- timeseries of many types by timestamp: blocks of sessions are walked (``scan.walk``).
- timeseries by source timestamp without bounds of it: events that have none are found as by
  timestamp; the others are passed over on a page that gets there, usually the last.
- timeseries with ``unique_type``: the same; events of a found type are skipped. Every page starts
  from the beginning, to know the types of the pages before it.
- timeseries with ``ids``: a look-up for each id, and each block of sessions once, nothing else.
- ``payload``: a filter, which reads the value of every event that satisfies the other conditions
  until the answer is full. Values that it passes over are not kept.
- bounds of the property that is ordered by, and ``last_event_id``: nothing, they are sought. Bounds
  of the other property are a filter.
- server: nothing; with rights to some types only, as timeseries.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from eventer_bridge import limits, packed
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.base import NO_WAY_ON, check_ids, result_limit, take
from eventer_bridge.backends.readers import LargeCb, PauseCb, Readers, Reading
from eventer_bridge.backends.rocksdb import keys, trimmed
from eventer_bridge.backends.rocksdb.in_order import find_contiguous, scan_by_source
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import LatestCache, Row
from eventer_bridge.backends.rocksdb.scan import (
    NOWHERE,
    Filter,
    KeyRange,
    find_in_blocks,
    merge,
    scan_blocks,
    scan_server,
    without_type,
)
from eventer_bridge.backends.rocksdb.snapshot import READ_FAMILIES, Condition, RowsRead, Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import (
    EveryType,
    SoughtTypes,
    TypeRegistry,
    VisibleTypes,
    all_wanted,
    find_wanted,
)
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.errors import ClosedError, StorageError, StoreDamagedError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    Event,
    EventId,
    EventType,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.payloads import same_as

Family: TypeAlias = Literal["event", "source"]
"""Order in which events are sought: of ``event``, or of ``source``, which has a part of them."""


class _Part(NamedTuple):
    """A part of the order of events in which an answer is sought.

    ``family`` is in whose order, ``sought`` the span of it. The ``shown`` part of it is returned:
    less only for unique types: an event of an earlier page still excludes later ones of its type.
    """

    family: Family
    sought: KeyRange
    shown: KeyRange


class Timeseries:
    """A timeseries query at a moment, of types of interest; its ``event_types`` are not read.

    Raises ``StorageError`` (the store could not be read) or ``ClosedError`` (it is about to close).
    """

    def __init__(
        self, snapshot: Snapshot, params: QueryTimeseriesParams, type_ids: Collection[TypeId]
    ) -> None:
        self._snapshot = snapshot
        self._params = params
        self._is_by_source = params.order_by is OrderBy.SOURCE_TIMESTAMP
        self._type_ids = type_ids
        self._candidates = None if params.ids is None else self._look_up(params.ids)
        # of sought ones, all would be sought; others may become more, as types become visible
        some = () if isinstance(type_ids, SoughtTypes) else tuple(islice(type_ids, 2))
        is_contiguous = len(some) == 1 and not params.unique_type and params.ids is None
        self._only_type = some[0] if is_contiguous else None

    def rows(self, limit: int) -> Iterator[RowsRead]:
        """Rows of the first ``limit`` events in order, a few at a time; some more if filtered."""
        done: set[TypeId] = set()
        for part in self._parts():
            span = self._contiguous_span(part)
            if span is not None:
                conditions = _make_conditions(self._params, part.family)
                if part.family == "source":
                    conditions.insert(0, keys.is_in_order)
                for rows in self._snapshot.event_rows(
                    *span, descending=part.sought.descending, limit=limit, conditions=conditions
                ):
                    limit -= len(rows[0])
                    yield rows
            else:
                found = self._find(part, done, limit)
                limit -= len(found)
                yield from self._snapshot.rows_of(map(keys.event_key, found))

    def _contiguous_span(self, part: _Part) -> tuple[bytes, bytes] | None:
        """The span in ``event`` that a part is; None: its events do not follow each other."""
        type_id, (start, stop, _) = self._only_type, part.sought
        if type_id is None:
            return None
        if part.family == "event":
            return type_id + start, type_id + stop
        if self._params.t_from is not None or self._params.t_to is not None:
            return None
        return find_contiguous(self._snapshot, type_id, part.sought)

    def first(self) -> bytes | None:
        """Key in ``event`` of the first event; None: there is none."""
        return next((key for rows, _ in self.rows(1) for key, _ in rows), None)

    def _find(self, part: _Part, done: set[TypeId], limit: int) -> list[bytes]:
        """First index keys in a part that are of the answer."""
        accept = _make_filter(self._snapshot, self._params, part.family)
        if self._params.unique_type:
            accept = _first_of_type(accept, part.shown, done)
        return self._search(part, accept, done, limit)

    def _parts(self) -> list[_Part]:
        params = self._params
        spans = self._spans()
        whole = [_Part(family, span, span) for family, span in spans]
        if params.last_event_id is None:
            return whole
        last = self._find_last(params.last_event_id)
        for n, (family, span) in enumerate(spans):
            if last is not None and last[0] == family and span.contains(last[1]):
                rest = span.after(last[1])
                if not params.unique_type:
                    return [_Part(family, rest, rest), *whole[n + 1 :]]
                before = [_Part(*earlier, NOWHERE) for earlier in spans[:n]]
                return [*before, _Part(family, span, rest), *whole[n + 1 :]]
        return []

    def _spans(self) -> list[tuple[Family, KeyRange]]:
        """Spans of the order of all events, without a last event."""
        params = self._params
        is_descending = params.order is Order.DESCENDING
        by_time = _time_range(params.t_from, params.t_to, descending=is_descending)
        if not self._is_by_source:
            return [("event", by_time)]
        bounds = params.source_t_from, params.source_t_to
        by_source = _time_range(*bounds, descending=is_descending)
        if bounds == (None, None):
            return [("source", by_source), ("event", by_time)]
        return [("source", by_source)]

    def _find_last(self, last_id: EventId) -> tuple[Family, bytes] | None:
        """Family and index key, without type, of the last event; None: not in the whole answer."""
        params, type_ids = self._params, self._type_ids
        key = self._snapshot.find(last_id)
        if key is None or key[: keys.TYPE_BYTES] not in type_ids:
            return None
        if params.ids is not None and last_id not in params.ids:
            return None
        family, index_key = self._index_key(key)
        if params.unique_type:
            whole = msgspec.structs.replace(params, last_event_id=None)
            of_type = Timeseries(self._snapshot, whole, [key[: keys.TYPE_BYTES]])
            is_contained = of_type.first() == key
        else:
            accept = _make_filter(self._snapshot, params, family)
            is_contained = accept is None or accept(index_key)
        return (family, without_type(index_key)) if is_contained else None

    def _search(
        self, part: _Part, accept: Filter | None, done: AbstractSet[TypeId], limit: int
    ) -> list[bytes]:
        """First index keys in a part."""
        family, span, _ = part
        if self._candidates is not None:
            some = self._candidates[family]
            found = (key for key in some if span.contains(without_type(key)))
            return list(islice(filter(accept, found), limit))
        if family == "source":
            return merge(
                self._snapshot,
                scan_by_source,
                self._type_ids,
                span,
                limit=limit,
                accept=accept,
                done=done,
            )
        return find_in_blocks(
            self._snapshot,
            scan_blocks(self._snapshot, span),
            self._type_ids,
            span,
            limit=limit,
            accept=accept,
            done=done,
        )

    def _look_up(self, event_ids: Sequence[EventId]) -> dict[Family, list[bytes]]:
        """Index keys of the events with these ids, in order, by family."""
        found: dict[Family, list[bytes]] = {"event": [], "source": []}
        for key in self._snapshot.find_all(event_ids):
            if key[: keys.TYPE_BYTES] in self._type_ids:
                family, index_key = self._index_key(key)
                found[family].append(index_key)
        for index_keys in found.values():
            index_keys.sort(key=without_type, reverse=self._params.order is Order.DESCENDING)
        return found

    def _index_key(self, key: bytes) -> tuple[Family, bytes]:
        """Family in which an event is sought, and its key there, from its key in ``event``."""
        if self._is_by_source:
            by_source = keys.by_source(key, self._snapshot.value(key))
            if by_source:
                return "source", by_source
        return "event", key


def _time_range(
    first: Timestamp | None, last: Timestamp | None, *, descending: bool = False
) -> KeyRange:
    """From a timestamp up to and including another; None: no bound."""
    start = keys.encode_timestamp(first) if first else b""
    stop = keys.encode_timestamp(last) if last else b""
    return KeyRange(start, stop + keys.KEY_MAX, descending)


def _make_conditions(params: QueryTimeseriesParams, family: Family) -> list[Condition]:
    """Conditions of values: the payload, and in ``event`` the source timestamp."""
    conditions: list[Condition] = []
    if family == "event":
        if params.order_by is OrderBy.SOURCE_TIMESTAMP:
            conditions.append(lambda value: not keys.source_of(value))
        elif params.source_t_from is not None or params.source_t_to is not None:
            sources = _time_range(params.source_t_from, params.source_t_to)
            conditions.append(
                lambda value: (source := keys.source_of(value)) != b"" and sources.contains(source)
            )
    if params.payload is not None:
        is_same = same_as(params.payload)
        conditions.append(lambda value: is_same(keys.payload_of(value)))
    return conditions


def _make_filter(
    snapshot: Snapshot, params: QueryTimeseriesParams, family: Family
) -> Filter | None:
    """Filter of what a span cannot express: payload, bounds of the other timestamp."""
    by_key: Filter | None = None
    if family == "source" and (params.t_from is not None or params.t_to is not None):
        by_key = _is_within(_time_range(params.t_from, params.t_to))
    conditions = _make_conditions(params, family)
    return value_filter(snapshot, conditions, by_key) if conditions else by_key


def _is_within(positions: KeyRange) -> Filter:
    return lambda key: positions.contains(key[-keys.POSITION_BYTES :])


def value_filter(
    snapshot: Snapshot, conditions: Sequence[Condition], by_key: Filter | None
) -> Filter:
    """Accepts the keys (of ``event`` or ``source``) whose values satisfy all conditions.

    Each value is read once, after another filter accepted its key (None: every key), and not kept.
    """

    def accept(key: bytes) -> bool:
        if by_key is not None and not by_key(key):
            return False
        value = snapshot.value(keys.event_key(key))
        snapshot.pause()
        return all(condition(value) for condition in conditions)

    return accept


def _first_of_type(accept: Filter | None, shown: KeyRange, done: set[TypeId]) -> Filter:
    """Accepts the first key of each type that another filter accepts (000, "unique type").

    Keys of a type must come in order. Of those, only keys in ``shown`` are accepted: earlier ones
    were returned by an earlier page, and exclude later keys of their types, as ``done`` says.
    """

    def accept_first(key: bytes) -> bool:
        type_id = key[: keys.TYPE_BYTES]
        if type_id in done or (accept and not accept(key)):
            return False
        done.add(type_id)
        return shown.contains(without_type(key))

    return accept_first


class QueryRunner:
    """Queries of a store, its types and latest events. On the loop, except ``ext_…``."""

    def __init__(self, store: Store, types: TypeRegistry, latest: LatestCache) -> None:
        self._store = store
        self._types, self._latest = types, latest
        self.readers = Readers(store.check_usable)
        self._short_end_s: float | None = None  # of short ones, in this iteration of the loop
        self._too_long: QueryParams | None = None  # the last one that was attempted in vain

    def use(self, types: TypeRegistry, latest: LatestCache) -> None:
        """The store was opened again: go on with these."""
        self._types, self._latest = types, latest

    async def run(self, query: VisibleQuery, client: str, holding: ExitStack | None) -> QueryResult:
        """Answer a query from all rows written by now; see ``Backend.answer``."""
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
        return await self.readers.run(client, partial(self._ext_run, query), holding)

    def at_once(self, query: VisibleQuery) -> QueryResult | None:
        """See ``Backend.answer_at_once``: from the cache, or from few rows."""
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
        return await self.readers.run(client, partial(self._ext_count_server, query))

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
        """Answer on the loop; None: it takes too long, or fails, as a reader will find."""
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
    """Whether few events answer it, without reading others, if it is of one type."""
    return (
        isinstance(params, QueryTimeseriesParams)
        and params.max_results is not None
        and params.max_results <= limits.SHORT_QUERY_EVENTS
        and params.payload is None
        and params.ids is None
    )


def _families_of(params: QueryParams) -> Sequence[str]:
    """Families that a short query reads: usually the type's events alone."""
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
    """Answers one query, on one thread; raises as :class:`Timeseries`.

    ``become_large`` is called before the answer gets large.
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
        """Latest event of each type, in the order of their numbers."""
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
        """Events by timestamp or source timestamp."""
        limit = result_limit(params.max_results) + 1
        found = Timeseries(self._snapshot, params, wanted).rows(limit)
        return self._take(found, params.max_results, limits.MAX_RESULTS)

    def ext_server(self, params: QueryServerParams, wanted: Collection[TypeId]) -> QueryResult:
        """Events of a server, by id."""
        limit = result_limit(params.max_results) + 1
        found = _server_keys(self._snapshot, params, wanted, limit)
        rows = self._snapshot.rows_at(found)
        return self._take(rows, params.max_results, limits.MAX_RESULTS)

    def _pausing(self, type_ids: Iterable[TypeId]) -> Iterator[TypeId]:
        for n_types, type_id in enumerate(type_ids):
            if n_types % store_limits.STEP_SEEKS == 0:
                self._snapshot.pause()
            yield type_id

    def _take(self, found: Iterable[RowsRead], max_results: int | None, most: int) -> QueryResult:
        """The first events of rows in order, cut as ``base.take`` does; waits before it gets large.

        Rows are taken out of the lists, a few at a time; ``most`` events are in any answer.
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
