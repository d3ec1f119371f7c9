"""Answering queries from the store (001, "Queries").

:class:`Reader` runs on a reader thread. Each query is answered from one iterator, which
sees one moment of the store (see ``store``), in two steps: find the keys of the answer and
of one event more, then read the values of what is returned.

What a query costs, besides what it returns:

- latest: a seek for each type.
- timeseries of few types, or by source timestamp: a seek for each type (``scan.merge``).
- timeseries of many types by timestamp: sessions are walked (``scan.walk``).
- bounds of the property that is ordered by, and ``last_event_id``: nothing, they are
  sought. Bounds of the other property are a filter: what does not pass it is read too.
- server: nothing; with rights to some types only, as timeseries.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from rocksdict import RdictIter

from eventer_bridge import limits
from eventer_bridge.backends.common import result_limit, take
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.scan import Filter, Span, give_way, merge, scan, walk
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    Event,
    EventType,
    Order,
    OrderBy,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)

FEW_TYPES: Final = 16
"""Up to so many types are always merged."""

ROWS_AT_A_TIME: Final = 128
"""After so many rows a reader thread gives way to the event loop's."""

_HAS_SOURCE: Final = b"\x00"
_NO_SOURCE: Final = b"\x01"


class Reader:
    """See the module.

    Args:
        store: the store.
        names: every type that rows can have, by id.
    """

    def __init__(self, store: Store, names: Mapping[TypeId, EventType]) -> None:
        self._store = store
        self._names = names

    def ext_latest(self, type_ids: Sequence[TypeId]) -> QueryResult:
        """Latest event of each type.

        Raises:
            StorageError: it could not be read (so for all queries).
            ClosedError: the store is about to close (so for all queries).
        """
        iterator = self._store.iterator("event")
        found: list[bytes] = []
        for n_types, type_id in enumerate(type_ids, 1):
            if n_types % ROWS_AT_A_TIME == 0:
                give_way()
            key = self._store.seek_last(iterator, type_id)
            if key is not None:
                found.append(key)
                if len(found) > limits.MAX_LATEST_RESULTS:
                    break
        return self._take(found, limits.MAX_LATEST_RESULTS)

    def ext_timeseries(
        self, params: QueryTimeseriesParams, type_ids: Sequence[TypeId] | None
    ) -> QueryResult:
        """Events by timestamp or source timestamp.

        Args:
            params: the query; its ``event_types`` are not looked at.
            type_ids: types of interest; None: all.
        """
        max_results = result_limit(params.max_results)
        if params.order_by is OrderBy.TIMESTAMP:
            found = self._by_timestamp(params, type_ids, max_results + 1)
        else:
            found = self._by_source(params, type_ids, max_results + 1)
        return self._take(found, max_results)

    def ext_server(
        self, params: QueryServerParams, type_ids: Sequence[TypeId] | None
    ) -> QueryResult:
        """Events of a server, by id.

        Args:
            params: the query.
            type_ids: types of interest; None: all.
        """
        if not INT64_MIN <= params.server_id <= INT64_MAX:
            return QueryResult([], False)
        max_results = result_limit(params.max_results)
        server = keys.encode_int(params.server_id)
        last_id = keys.encode_id(params.last_event_id) if params.last_event_id else b""
        low, stop = max(server, last_id), server + keys.PAST
        store = self._store
        servers, events = store.iterators("server", "event")
        sessions = (
            store.timestamp(server_key) + server_key
            for server_key in scan(store, servers, Span(low[: keys.SERVER_KEY_BYTES], stop))
        )
        first = next(sessions, None)
        if first is None:
            return QueryResult([], False)
        found = self._find(
            chain((first,), sessions),
            events,
            type_ids,
            Span(first, keys.PAST),
            limit=max_results + 1,
            accept=lambda key: low < key[-keys.ID_BYTES :] < stop,
        )
        return self._take(found, max_results)

    def _by_timestamp(
        self, params: QueryTimeseriesParams, type_ids: Sequence[TypeId] | None, limit: int
    ) -> list[bytes]:
        span = _span(params, params.t_from, params.t_to)
        accept = self._source_filter(params)
        if params.last_event_id:
            last = self._store.find(params.last_event_id)
            if last is None or not _is_wanted(last, type_ids):
                return []
            place = last[keys.TYPE_BYTES :]
            if not span.low <= place < span.stop or (accept and not accept(last)):
                return []
            span = span.after(place)
        sessions, events = self._store.iterators("session", "event")
        session_keys = scan(
            self._store,
            sessions,
            Span(
                span.low[: keys.SESSION_KEY_BYTES],
                span.stop[: keys.SESSION_KEY_BYTES] + keys.PAST,
                span.descending,
            ),
        )
        return self._find(session_keys, events, type_ids, span, limit=limit, accept=accept)

    def _by_source(
        self, params: QueryTimeseriesParams, type_ids: Sequence[TypeId] | None, limit: int
    ) -> list[bytes]:
        spans = [_span(params, params.source_t_from, params.source_t_to, _HAS_SOURCE)]
        if params.source_t_from is None and params.source_t_to is None:
            spans.append(_span(params, None, None, _NO_SOURCE))
        accept = _time_filter(params)
        if params.last_event_id:
            last = self._store.find(params.last_event_id)
            if last is None or not _is_wanted(last, type_ids) or (accept and not accept(last)):
                return []
            position = keys.source_of(self._store.value(last)) + last[keys.TYPE_BYTES :]
            while spans and not spans[0].low <= position < spans[0].stop:
                del spans[0]
            if not spans:
                return []
            spans[0] = spans[0].after(position)
        if type_ids is None:
            type_ids = list(self._names)
        sources = self._store.iterator("source")
        found: list[bytes] = []
        for span in spans:
            if len(found) < limit:
                n_left = limit - len(found)
                found += merge(self._store, sources, type_ids, span, limit=n_left, accept=accept)
        return [key[: keys.TYPE_BYTES] + key[-keys.PLACE_BYTES :] for key in found]

    def _find(
        self,
        session_keys: Iterable[bytes],
        events: RdictIter,
        type_ids: Sequence[TypeId] | None,
        span: Span,
        *,
        limit: int,
        accept: Filter | None,
    ) -> list[bytes]:
        found: list[bytes] = []
        if type_ids is None or len(type_ids) > FEW_TYPES:
            wanted = None if type_ids is None else frozenset(type_ids)
            found, rest = walk(self._store, session_keys, wanted, span, limit=limit, accept=accept)
            if rest is None or type_ids is None:
                return found
            span = rest
        n_left = limit - len(found)
        return found + merge(self._store, events, type_ids, span, limit=n_left, accept=accept)

    def _source_filter(self, params: QueryTimeseriesParams) -> Filter | None:
        if params.source_t_from is None and params.source_t_to is None:
            return None
        low, stop, _ = _span(params, params.source_t_from, params.source_t_to, _HAS_SOURCE)
        return lambda key: low <= keys.source_of(self._store.value(key)) < stop

    def _take(self, found: Sequence[bytes], max_events: int) -> QueryResult:
        return take(decode_rows(self._rows(found), self._names), max_events)

    def _rows(self, found: Iterable[bytes]) -> Iterator[Row]:
        for n_rows, key in enumerate(found, 1):
            if n_rows % ROWS_AT_A_TIME == 0:
                give_way()
            yield key, self._store.value(key)


def decode_rows(rows: Iterable[Row], names: Mapping[TypeId, EventType]) -> Iterator[Event]:
    """Decode rows of ``event``, one by one."""
    for key, value in rows:
        yield keys.decode_event(key, value, names)


def _span(
    params: QueryTimeseriesParams,
    first: Timestamp | None,
    last: Timestamp | None,
    prefix: bytes = b"",
) -> Span:
    low = prefix + keys.encode_timestamp(first) if first else prefix
    stop = prefix + keys.encode_timestamp(last) if last else prefix
    return Span(low, stop + keys.PAST, params.order is Order.DESCENDING)


def _time_filter(params: QueryTimeseriesParams) -> Filter | None:
    if params.t_from is None and params.t_to is None:
        return None
    low, stop, _ = _span(params, params.t_from, params.t_to)
    return lambda key: low <= key[-keys.PLACE_BYTES :] < stop


def _is_wanted(key: bytes, type_ids: Sequence[TypeId] | None) -> bool:
    return type_ids is None or key[: keys.TYPE_BYTES] in type_ids
