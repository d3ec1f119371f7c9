"""Finding what a timeseries query asks for (001, "timeseries"; 000, "query events").

Runs on a reader thread. Events are sought in one or two parts of their order: by timestamp in one;
by source timestamp those that have one (``in_order``) and, behind them in either direction, those
that have none in ``event``, where the others are passed over. In ``event``, those of one type
follow each other: keys and values are read in one pass, and what a span cannot say is a condition
of the value. Elsewhere keys are found first, by looking up the ids that are asked for or by what
``scan`` offers, and that is a filter of keys, which looks up each value it asks for.

An index key is the key that an event has, or would have, in the family in whose order it is sought.
"""

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.in_order import find_contiguous, scan_by_source
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import (
    NOWHERE,
    Filter,
    KeyRange,
    find_in_blocks,
    merge,
    scan_blocks,
    without_type,
)
from eventer_bridge.backends.rocksdb.snapshot import Condition, RowsRead, Snapshot
from eventer_bridge.backends.rocksdb.wanted import SoughtTypes
from eventer_bridge.model import EventId, Order, OrderBy, QueryTimeseriesParams, Timestamp
from eventer_bridge.payloads import same_as

Family: TypeAlias = Literal["event", "source"]
"""Order in which events are sought: of ``event``, or of ``source``, which has a part of them."""


class _Part(NamedTuple):
    """Where a part of the answer is sought.

    Attributes:
        family: in whose order its events are sought.
        sought: span of it.
        shown: part of that from which events are given. The two differ only for unique types: an
            event that an earlier page gave still keeps the later ones of its type out.
    """

    family: Family
    sought: KeyRange
    shown: KeyRange


class Timeseries:
    """One query.

    Args:
        snapshot: the moment that is asked about.
        params: the query; its ``event_types`` and ``max_results`` are not looked at.
        type_ids: types of interest.

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
        self._candidates = None if params.ids is None else self._look_up(params.ids)
        # of sought ones, all would be sought; others may become more, as types become visible
        some = () if isinstance(type_ids, SoughtTypes) else tuple(islice(type_ids, 2))
        is_contiguous = len(some) == 1 and not params.unique_type and params.ids is None
        self._only_type = some[0] if is_contiguous else None

    def rows(self, limit: int) -> Iterator[RowsRead]:
        """Rows of the first events in order, a few at a time.

        Args:
            limit: rows that are wanted; where some are left out, a few more may come.

        Raises:
            StorageError: the store could not be read.
            ClosedError: the store is about to close.
        """
        done: set[TypeId] = set()
        for part in self._parts():
            span = self._contiguous_span(part)
            if span is not None:
                conditions = _make_conditions(self._params, part.family)
                if part.family == "source":
                    conditions.insert(0, keys.is_in_order)
                for rows in self._snapshot.event_rows(
                    *span,
                    descending=part.sought.descending,
                    limit=limit,
                    conditions=conditions,
                ):
                    limit -= len(rows[0])
                    yield rows
            else:
                found = self._find(part, done, limit)
                limit -= len(found)
                yield from self._snapshot.rows_of(map(keys.event_key, found))

    def _contiguous_span(self, part: _Part) -> tuple[bytes, bytes] | None:
        """Where the events of a part follow each other in ``event``; None: they do not."""
        type_id, (start, stop, _) = self._only_type, part.sought
        if type_id is None:
            return None
        if part.family == "event":
            return type_id + start, type_id + stop
        if self._params.t_from is not None or self._params.t_to is not None:
            return None
        return find_contiguous(self._snapshot, type_id, part.sought)

    def first(self) -> bytes | None:
        """Key in ``event`` of the first event; None: there is none. Raises as :meth:`rows`."""
        return next((key for rows, _ in self.rows(1) for key, _ in rows), None)

    def _find(self, part: _Part, done: set[TypeId], limit: int) -> list[bytes]:
        """First index keys in a part that are of the answer."""
        accept = _make_filter(self._snapshot, self._params, part.family)
        if self._params.unique_type:
            accept = FirstOfType(accept, part.shown, done)
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
        """Where the last event is; None if the query without it does not contain it.

        Returns:
            Family, and its index key there without the type.
        """
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
    """From a timestamp up to and with another; None: no bound.

    Args:
        first: lower bound.
        last: upper bound.
        descending: in which direction it is read.
    """
    start = keys.encode_timestamp(first) if first else b""
    stop = keys.encode_timestamp(last) if last else b""
    return KeyRange(start, stop + keys.KEY_MAX, descending)


def _make_conditions(params: QueryTimeseriesParams, family: Family) -> list[Condition]:
    """What values have to satisfy: the payload, and in ``event`` the source timestamp."""
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
    """Filter of what a span of a family cannot say: payload, bounds of the other timestamp."""
    by_key: Filter | None = None
    if family == "source" and (params.t_from is not None or params.t_to is not None):
        by_key = _is_within(_time_range(params.t_from, params.t_to))
    conditions = _make_conditions(params, family)
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
        conditions: Sequence[Condition],
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
        shown: see above.
        done: types whose first key was found; more are added.
    """

    def __init__(self, accept: Filter | None, shown: KeyRange, done: set[TypeId]) -> None:
        self._accept = accept
        self._shown = shown
        self._done = done

    def __call__(self, key: bytes) -> bool:
        """See :data:`Filter`."""
        type_id = key[: keys.TYPE_BYTES]
        if type_id in self._done or (self._accept and not self._accept(key)):
            return False
        self._done.add(type_id)
        return self._shown.contains(without_type(key))
