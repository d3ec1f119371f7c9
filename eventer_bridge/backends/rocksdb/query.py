"""Answering queries from the store (001, "Queries").

A :class:`StoreReader` answers one query, on a reader thread, from one snapshot of the store, in
two steps: find the keys of the answer and of one event more, then read the values of what
is returned.

What a query costs, besides what it returns:

- latest: a seek for each type that is returned, and finding the types that are asked for.
- timeseries of few types, or by source timestamp: a seek for each type (``scan.merge``).
- timeseries of many types by timestamp: sessions are walked (``scan.walk``).
- timeseries with ``unique_type``: the same; events of a type that was found are skipped.
  Every page begins at the begin, to know which types the pages before it found.
- timeseries with ``ids``: a look-up for each id, nothing else.
- ``payload``: a filter as the next, which reads the value of every event that satisfies
  the other conditions, until the answer is full. Values are read one by one and not kept.
- bounds of the property that is ordered by, and ``last_event_id``: nothing, they are
  sought. Bounds of the other property are a filter: what does not pass it is read too.
- server: nothing; with rights to some types only, as timeseries.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.common import NO_WAY_ON, result_limit, take
from eventer_bridge.backends.readers import LargeCb
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.scan import KeyRange, find_in_sessions, scan_server
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.timeseries import Timeseries
from eventer_bridge.backends.rocksdb.types import VisibleTypes
from eventer_bridge.backends.rocksdb.wanted import every_type
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    Event,
    EventType,
    QueryLatestParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)

ValueCb: TypeAlias = Callable[[bytes], bytes]
"""Gives the value of a row of ``event``, by its key."""

ROWS_AT_A_TIME: Final = 16
"""Rows that are read before it pauses: some 0.1 ms."""


class StoreReader:
    """See the module.

    Args:
        snapshot: the moment that is asked about.
        names: every type that rows can have, by id.
        become_large: called before the answer gets large.
    """

    def __init__(
        self, snapshot: Snapshot, names: Mapping[TypeId, EventType], become_large: LargeCb
    ) -> None:
        self._snapshot = snapshot
        self._names = names
        self._become_large = become_large

    def ext_latest(self, params: QueryLatestParams, wanted: VisibleTypes | None) -> QueryResult:
        """Latest event of each type, in the order of their numbers.

        Args:
            params: the query; its ``event_types`` are not looked at.
            wanted: types of interest; None: all.

        Raises:
            StorageError: it could not be read (so for all queries).
            ClosedError: the store is about to close (so for all queries).
        """
        first = 0
        if params.last_event_id is not None:
            key = self._snapshot.find(params.last_event_id)
            if key is None or (wanted is not None and key[: keys.TYPE_BYTES] not in wanted):
                return NO_WAY_ON
            first = keys.decode_type_id(key[: keys.TYPE_BYTES]) + 1
        type_ids = every_type(len(self._names), first) if wanted is None else wanted.since(first)
        iterator, seek_last = self._snapshot.iterator("event"), self._snapshot.seek_last
        each = (seek_last(iterator, type_id) for type_id in self._pausing(type_ids))
        found = (key for key in each if key is not None)
        # it stands at the key that was found last
        return self._take(found, lambda _: iterator.value(), limits.MAX_LATEST_RESULTS)

    def ext_timeseries(
        self, params: QueryTimeseriesParams, type_ids: Collection[TypeId] | None
    ) -> QueryResult:
        """Events by timestamp or source timestamp.

        Args:
            params: the query; its ``event_types`` are not looked at.
            type_ids: types of interest; None: all.
        """
        max_results = result_limit(params.max_results)
        timeseries = Timeseries(self._snapshot, len(self._names), params, type_ids)
        if (in_row := timeseries.in_row()) is not None:
            iterator = self._snapshot.iterator("event")
            return self._take(in_row, lambda _: iterator.value(), max_results)
        found = timeseries.find(max_results + 1)
        return self._take(found, self._snapshot.value, max_results)

    def ext_server(
        self, params: QueryServerParams, type_ids: Collection[TypeId] | None
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
        start, stop = max(server, last_id), server + keys.KEY_MAX
        sessions = scan_server(self._snapshot, server, start[: keys.SERVER_KEY_BYTES])
        first = next(sessions, None)
        if first is None:
            return QueryResult([], False)
        found = find_in_sessions(
            self._snapshot,
            chain((first,), sessions),
            type_ids,
            KeyRange(first, keys.KEY_MAX),
            limit=max_results + 1,
            accept=lambda key: start < key[-keys.ID_BYTES :] < stop,
        )
        return self._take(found, self._snapshot.value, max_results)

    def _pausing(self, type_ids: Iterable[TypeId]) -> Iterator[TypeId]:
        for n_types, type_id in enumerate(type_ids):
            if n_types % ROWS_AT_A_TIME == 0:
                self._snapshot.pause()
            yield type_id

    def _take(self, found: Iterable[bytes], value: ValueCb, max_events: int) -> QueryResult:
        try:
            return take(self._events(found, value), max_events)
        except KeyError as e:
            raise StoreDamagedError(
                f"{self._snapshot.path}: the event store is damaged: there is no type {e}"
            ) from None

    def _events(self, found: Iterable[bytes], value: ValueCb) -> Iterator[Event]:
        """Read and decode events; waits until there may be so many bytes of them."""
        # one function for all of it: what it does for each event is most of a query's time
        pause, names, decode = self._snapshot.pause, self._names, keys.decode_event
        n_free_bytes = limits.LARGE_ANSWER_BYTES
        for n_rows, key in enumerate(found):
            if n_rows % ROWS_AT_A_TIME == 0:
                pause()
            data = value(key)
            if n_free_bytes >= 0:
                n_free_bytes -= limits.ANSWER_EVENT_BYTES + len(data)
                if n_free_bytes < 0:
                    del data  # it may be large itself
                    self._become_large()
                    data = value(key)
            yield decode(key, data, names)


def decode_rows(rows: Iterable[Row], names: Mapping[TypeId, EventType]) -> Iterator[Event]:
    """Decode rows of ``event``, one by one."""
    for key, value in rows:
        yield keys.decode_event(key, value, names)
