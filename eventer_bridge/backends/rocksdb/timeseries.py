"""Finding what a timeseries query asks for (001, "timeseries"; 000, "query events").

Runs on a reader thread. Events are sought in one or two spans of their order: by timestamp
in one, by source timestamp in those that have one and, behind, those that have none. In a
span they are found by looking up the ids that are asked for, or by what ``scan`` offers.

The position of an event in the order is its place, after the source timestamp if that is
ordered by; an index key is a type and a position (see ``keys``).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.filters import NOWHERE, FirstOfType, make_filter
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import (
    KeyRange,
    find_in_sessions,
    merge,
    scan_sessions,
    step,
    time_span,
    without_type,
)
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.wanted import every_type, the_only
from eventer_bridge.model import EventId, Order, OrderBy, QueryTimeseriesParams


class Timeseries:
    """One query.

    Args:
        snapshot: the moment that is asked about.
        n_types: number of types that rows can have.
        params: the query; its ``event_types`` and ``max_results`` are not looked at.
        type_ids: types of interest; None: all.

    Raises:
        StorageError: the store could not be read.
        ClosedError: the store is about to close.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        n_types: int,
        params: QueryTimeseriesParams,
        type_ids: Collection[TypeId] | None,
    ) -> None:
        self._snapshot = snapshot
        self._n_types = n_types
        self._params = params
        self._is_by_source = params.order_by is OrderBy.SOURCE_TIMESTAMP
        self._type_ids = type_ids
        self._filter = make_filter(snapshot, params)
        self._first_of_type = FirstOfType(self._filter) if params.unique_type else None
        self._accept = self._first_of_type or self._filter
        self._done = self._first_of_type.done if self._first_of_type else frozenset[TypeId]()
        self._candidates = None if params.ids is None else self._look_up(params.ids)

    def in_row(self) -> Iterator[bytes] | None:
        """As :meth:`find`, key by key; None where they do not follow each other in ``event``.

        The iterator of ``event`` stands at the key that was given last.
        """
        type_id = the_only(self._type_ids)
        is_by_id = self._candidates is not None
        if type_id is None or is_by_id or self._is_by_source or self._first_of_type is not None:
            return None
        [(sought, _)] = self._parts() or [(NOWHERE, NOWHERE)]
        span = KeyRange(type_id + sought.start, type_id + sought.stop, sought.descending)
        found = step(self._snapshot, self._snapshot.iterator("event"), span)
        return found if self._filter is None else filter(self._filter, found)

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
        spans = self._spans()
        whole = [(span, span) for span in spans]
        if self._params.last_event_id is None:
            return whole
        position = self._position_of(self._params.last_event_id)
        for n, span in enumerate(spans):
            if position is not None and span.contains(position):
                rest = span.after(position)
                if self._first_of_type is None:
                    return [(rest, rest), *whole[n + 1 :]]
                before = [(earlier, NOWHERE) for earlier in spans[:n]]
                return [*before, (span, rest), *whole[n + 1 :]]
        return []

    def _spans(self) -> list[KeyRange]:
        params = self._params
        is_descending = params.order is Order.DESCENDING
        if not self._is_by_source:
            return [time_span(params.t_from, params.t_to, descending=is_descending)]
        first, last = params.source_t_from, params.source_t_to
        spans = [time_span(first, last, descending=is_descending, prefix=keys.HAS_SOURCE)]
        if first is None and last is None:
            spans.append(time_span(None, None, descending=is_descending, prefix=keys.NO_SOURCE))
        return spans

    def _position_of(self, last_id: EventId) -> bytes | None:
        """Position of the last event; None if the query without it does not contain it."""
        params, type_ids = self._params, self._type_ids
        key = self._snapshot.find(last_id)
        if key is None or (type_ids is not None and key[: keys.TYPE_BYTES] not in type_ids):
            return None
        if params.ids is not None and last_id not in params.ids:
            return None
        index_key = self._index_key(key)
        if self._first_of_type is not None:
            whole = msgspec.structs.replace(params, last_event_id=None)
            of_type = Timeseries(self._snapshot, self._n_types, whole, [key[: keys.TYPE_BYTES]])
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
                self._types(),
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
            self._counted_types() if self._first_of_type else self._type_ids,
            span,
            limit=limit,
            accept=self._accept,
            done=self._done,
        )

    def _types(self) -> Iterable[TypeId]:
        return every_type(self._n_types) if self._type_ids is None else self._type_ids

    def _counted_types(self) -> Collection[TypeId]:
        return frozenset(self._types()) if self._type_ids is None else self._type_ids

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
                if wanted is None or key[: keys.TYPE_BYTES] in wanted
            )
        return sorted(found, key=without_type, reverse=self._params.order is Order.DESCENDING)

    def _index_key(self, key: bytes) -> bytes:
        """Index key, from the key in ``event``."""
        if not self._is_by_source:
            return key
        source = keys.source_of(self._snapshot.value(key))
        return key[: keys.TYPE_BYTES] + source + key[keys.TYPE_BYTES :]
