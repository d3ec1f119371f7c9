"""Filters of keys: what a timeseries query asks for beyond the span that it is sought in.

Runs on a reader thread. A filter belongs to one query.
"""

from collections.abc import Callable, Sequence
from typing import Final

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.scan import Filter, KeyRange, time_span
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.model import OrderBy, QueryTimeseriesParams
from eventer_bridge.payloads import same_as

NOWHERE: Final = KeyRange(b"", b"")


def make_filter(snapshot: Snapshot, params: QueryTimeseriesParams) -> Filter | None:
    """Filter of what the span of a query cannot say: payload, bounds of the other timestamp."""
    by_key: Filter | None = None
    conditions: list[Callable[[bytes], bool]] = []
    if params.order_by is OrderBy.SOURCE_TIMESTAMP:
        if params.t_from is not None or params.t_to is not None:
            by_key = _is_within(time_span(params.t_from, params.t_to))
    elif params.source_t_from is not None or params.source_t_to is not None:
        sources = time_span(params.source_t_from, params.source_t_to, prefix=keys.HAS_SOURCE)
        conditions.append(lambda value: sources.contains(keys.source_of(value)))
    if params.payload is not None:
        is_same = same_as(params.payload)
        conditions.append(lambda value: is_same(keys.payload_of(value)))
    return ValueFilter(snapshot, conditions, by_key) if conditions else by_key


def _is_within(places: KeyRange) -> Filter:
    return lambda key: places.contains(key[-keys.PLACE_BYTES :])


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
