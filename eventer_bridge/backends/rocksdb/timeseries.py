"""Finding what a timeseries query asks for (001, "timeseries"; 000, "query events").

Runs on a reader thread. Events are sought in one or two spans of their order: by timestamp
in one, by source timestamp in those that have one and, behind, those that have none. In a
span they are found by looking up the ids that are asked for, in one pass where they are contiguous
(events of one type), or by what ``scan`` offers. What a span cannot say is a filter of keys.

An index key is a type and a position (see ``keys``), with the source timestamp in between if that
is ordered by.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

import msgspec

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import (
    NOWHERE,
    Filter,
    KeyRange,
    find_in_sessions,
    merge,
    scan_sessions,
    without_type,
)
from eventer_bridge.backends.rocksdb.snapshot import RowsRead, Snapshot
from eventer_bridge.backends.rocksdb.wanted import SoughtTypes
from eventer_bridge.model import EventId, Order, OrderBy, QueryTimeseriesParams, Timestamp
from eventer_bridge.payloads import same_as


class Timeseries:
    """One query.

    Args:
        snapshot: the moment that is asked about.
        params: the query; its ``event_types`` and ``max_results`` are not looked at.
        type_ids: types of interest.

    Attributes:
        is_contiguous: whether all events that may be found follow each other in ``event``.

    Raises:
        StorageError: the store could not be read.
        ClosedError: the store is about to close.
    """

    def __init__(
        self, snapshot: Snapshot, params: QueryTimeseriesParams, type_ids: Collection[TypeId]
    ) -> None:
        self._snapshot = snapshot
        self._params = params
        self._is_by_source = params.order_by is OrderBy.SOURCE_TIMESTAMP
        self._type_ids = type_ids
        self._filter = _make_filter(snapshot, params)
        self._first_of_type = FirstOfType(self._filter) if params.unique_type else None
        self._accept = self._first_of_type or self._filter
        self._done = self._first_of_type.done if self._first_of_type else frozenset[TypeId]()
        self._candidates = None if params.ids is None else self._look_up(params.ids)
        # of sought ones, all would be sought; others may become more, as types become visible
        some = () if isinstance(type_ids, SoughtTypes) else tuple(islice(type_ids, 2))
        self._only_type = some[0] if len(some) == 1 else b""
        self.is_contiguous = (
            len(some) == 1 and not (self._is_by_source or params.unique_type) and params.ids is None
        )

    def contiguous_rows(self, max_results: int | None) -> Iterator[RowsRead]:
        """Rows of the first events in order, a few at a time, where :attr:`is_contiguous`.

        Args:
            max_results: one row more is read, and perhaps a few; None: all.
        """
        type_id = self._only_type
        [(sought, _)] = self._parts() or [(NOWHERE, NOWHERE)]
        return self._snapshot.event_rows(
            type_id + sought.start,
            type_id + sought.stop,
            descending=sought.descending,
            limit=sys.maxsize if max_results is None else max_results + 1,
            accept=self._filter,
        )

    def find(self, limit: int) -> list[bytes]:
        """Keys in ``event`` of the first events, in order.

        Args:
            limit: keys at most.

        Raises:
            StorageError: the store could not be read.
            ClosedError: the store is about to close.
        """
        found: list[bytes] = []
        for sought, shown in self._parts():
            if self._first_of_type is not None:
                self._first_of_type.shown = shown
            if len(found) < limit:
                found += self._search(sought, limit - len(found))
        return [keys.event_key(key) for key in found]

    def _parts(self) -> list[tuple[KeyRange, KeyRange]]:
        """Spans in which events are sought, each with its part from which they are given.

        The two differ only for unique types: an event that an earlier page gave still keeps
        the later ones of its type out.
        """
        params = self._params
        is_descending = params.order is Order.DESCENDING
        if not self._is_by_source:
            spans = [_time_range(params.t_from, params.t_to, descending=is_descending)]
        else:
            bounds = params.source_t_from, params.source_t_to
            spans = [_time_range(*bounds, descending=is_descending, prefix=keys.HAS_SOURCE)]
            if bounds == (None, None):
                spans.append(_time_range(*bounds, descending=is_descending, prefix=keys.NO_SOURCE))
        whole = [(span, span) for span in spans]
        if params.last_event_id is None:
            return whole
        position = self._position_of(params.last_event_id)
        for n, span in enumerate(spans):
            if position is not None and span.contains(position):
                rest = span.after(position)
                if self._first_of_type is None:
                    return [(rest, rest), *whole[n + 1 :]]
                before = [(earlier, NOWHERE) for earlier in spans[:n]]
                return [*before, (span, rest), *whole[n + 1 :]]
        return []

    def _position_of(self, last_id: EventId) -> bytes | None:
        """Position of the last event; None if the query without it does not contain it."""
        params, type_ids = self._params, self._type_ids
        key = self._snapshot.find(last_id)
        if key is None or key[: keys.TYPE_BYTES] not in type_ids:
            return None
        if params.ids is not None and last_id not in params.ids:
            return None
        index_key = self._index_key(key)
        if self._first_of_type is not None:
            whole = msgspec.structs.replace(params, last_event_id=None)
            of_type = Timeseries(self._snapshot, whole, [key[: keys.TYPE_BYTES]])
            is_contained = of_type.find(1) == [key]
        else:
            is_contained = self._filter is None or self._filter(index_key)
        return without_type(index_key) if is_contained else None

    def _search(self, span: KeyRange, limit: int) -> list[bytes]:
        """First index keys in a span."""
        if self._candidates is not None:
            found = (key for key in self._candidates if span.contains(without_type(key)))
            return list(islice(filter(self._accept, found), limit))
        if self._is_by_source:
            return merge(
                self._snapshot,
                self._snapshot.iterator("source"),
                self._type_ids,
                span,
                limit=limit,
                accept=self._accept,
                done=self._done,
            )
        session_span = KeyRange(
            span.start[: keys.SESSION_KEY_BYTES],
            span.stop[: keys.SESSION_KEY_BYTES] + keys.KEY_MAX,
            span.descending,
        )
        return find_in_sessions(
            self._snapshot,
            scan_sessions(self._snapshot, session_span),
            self._type_ids,
            span,
            limit=limit,
            accept=self._accept,
            done=self._done,
        )

    def _look_up(self, event_ids: Sequence[EventId]) -> list[bytes]:
        """Index keys of the events with these ids, in order."""
        snapshot, wanted = self._snapshot, self._type_ids
        # not sorted: comparing as many as are allowed is one step of some milliseconds
        sessions: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for i in event_ids:
            snapshot.pause()
            sessions[i.server, i.session].add(i.instance)
        found: list[bytes] = []
        for (server, session), instances in sessions.items():
            snapshot.pause()
            found.extend(
                self._index_key(key)
                for key in snapshot.find_in_session(server, session, instances)
                if key[: keys.TYPE_BYTES] in wanted
            )
        return sorted(found, key=without_type, reverse=self._params.order is Order.DESCENDING)

    def _index_key(self, key: bytes) -> bytes:
        """Index key, from the key in ``event``."""
        if not self._is_by_source:
            return key
        source = keys.source_of(self._snapshot.value(key))
        return key[: keys.TYPE_BYTES] + source + key[keys.TYPE_BYTES :]


def _time_range(
    first: Timestamp | None,
    last: Timestamp | None,
    *,
    descending: bool = False,
    prefix: bytes = b"",
) -> KeyRange:
    """From a timestamp up to and with another; None: no bound.

    Args:
        first: lower bound.
        last: upper bound.
        descending: in which direction it is read.
        prefix: what stands in front of the timestamp.
    """
    start = prefix + keys.encode_timestamp(first) if first else prefix
    stop = prefix + keys.encode_timestamp(last) if last else prefix
    return KeyRange(start, stop + keys.KEY_MAX, descending)


def _make_filter(snapshot: Snapshot, params: QueryTimeseriesParams) -> Filter | None:
    """Filter of what the span of a query cannot say: payload, bounds of the other timestamp."""
    by_key: Filter | None = None
    conditions: list[Callable[[bytes], bool]] = []
    if params.order_by is OrderBy.SOURCE_TIMESTAMP:
        if params.t_from is not None or params.t_to is not None:
            by_key = _is_within(_time_range(params.t_from, params.t_to))
    elif params.source_t_from is not None or params.source_t_to is not None:
        sources = _time_range(params.source_t_from, params.source_t_to, prefix=keys.HAS_SOURCE)
        conditions.append(lambda value: sources.contains(keys.source_of(value)))
    if params.payload is not None:
        is_same = same_as(params.payload)
        conditions.append(lambda value: is_same(keys.payload_of(value)))
    return ValueFilter(snapshot, conditions, by_key) if conditions else by_key


def _is_within(positions: KeyRange) -> Filter:
    return lambda key: positions.contains(key[-keys.POSITION_BYTES :])


class ValueFilter:
    """Accepts the keys (of ``event`` or ``source``) whose values satisfy conditions.

    Each value is read once, and not kept.

    Args:
        snapshot: what is read from.
        conditions: all of them must hold, of the value of an event.
        by_key: another filter, which is asked first; None accepts everything.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        conditions: Sequence[Callable[[bytes], bool]],
        by_key: Filter | None,
    ) -> None:
        self._snapshot = snapshot
        self._conditions = conditions
        self._by_key = by_key

    def __call__(self, key: bytes) -> bool:
        """See :data:`Filter`.

        Raises:
            StorageError: the value could not be read.
            ClosedError: the store is about to close.
        """
        if self._by_key is not None and not self._by_key(key):
            return False
        value = self._snapshot.value(keys.event_key(key))
        self._snapshot.pause()
        return all(condition(value) for condition in self._conditions)


class FirstOfType:
    """Accepts the first key of each type that another filter accepts (000, "unique type").

    Keys of a type must come in order. Of those, only keys in ``shown`` are accepted: what
    lies before it was answered by an earlier page, and keeps later keys of its type out.

    Args:
        accept: the other filter; None accepts everything.

    Attributes:
        shown: see above; nothing, until it is set.
        done: types whose first key was found.
    """

    def __init__(self, accept: Filter | None) -> None:
        self._accept = accept
        self.shown = NOWHERE
        self.done: set[TypeId] = set()

    def __call__(self, key: bytes) -> bool:
        """See :data:`Filter`."""
        type_id = key[: keys.TYPE_BYTES]
        if type_id in self.done or (self._accept and not self._accept(key)):
            return False
        self.done.add(type_id)
        return self.shown.contains(key[keys.TYPE_BYTES :])
