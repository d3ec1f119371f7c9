"""Which events need a row in ``source``: those that ``event`` does not have in that order already.

Most events of a type come in the order of their source timestamps, so that their rows in
``event`` are in this order, too. Such an event is *in order*: it has a source timestamp, and
follows every earlier event of its type that is in order, by both timestamps. In ``event`` a query
by source timestamp finds it by bisection (``in_order``). Every other event with a source timestamp
has a row in ``source``, and a flag that says so (``keys.INDEXED_FLAG``).

A search passes over the others. So the order of a type *ends* when more than a few of them come
together, or a large one, or one with an earlier timestamp than the last in order (of another
server), or if its first event is not in order. It ends for good: the later events of the type all
have a row. ``default`` has where (``keys.IN_ORDER_KEY``), which only bounds the search: the flags
tell what is in order, also where that row is lost.

After a start the order is known of as many types as the latest events are; that of each other type
ends with its next event.

Belongs to the event loop's thread, as everything that commits, but for :func:`ext_read_order`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.memory import LastingDict
from eventer_bridge.model import EventType
from eventer_bridge.packed import Batch, BatchRows, Staged

Place: TypeAlias = tuple[bytes, bytes, int]
"""Source timestamp and position of the last event of a type that is in order, and how many events
were passed since (``store_limits.MAX_PASSED_EVENTS``)."""

NOTHING: Final[Place] = b"", b"", 0
"""Of a type of which nothing is stored."""


class SourceOrder:
    """See the module.

    ``ends`` is where the order of types ended: the position of the last event in order, or nothing.
    More are added, for who reads (``Database.in_order_ends``). ``last`` is where that of other
    types is. The order of those that are in neither of the two ends with their next event.
    ``floor`` is a position behind all events.
    """

    def __init__(
        self, ends: dict[TypeId, bytes], last: dict[TypeId, Place], floor: bytes = keys.KEY_MAX
    ) -> None:
        self._ends = ends
        self._last = last
        self._floor = floor[: keys.POSITION_BYTES]

    def add_types(self, type_ids: Iterable[TypeId]) -> None:
        """Add types of which nothing is stored."""
        for type_id in type_ids:
            if type_id not in self._ends:
                self._last.setdefault(type_id, NOTHING)

    def stage(
        self,
        made: BatchRows,
        batches: list[Batch],
        ids: Mapping[EventType, TypeId],
        begin: int,
        end: int,
        *,
        is_counted: bool,
    ) -> Staged:
        """Add events in the order of their positions; see ``packed.BatchRows.stage``."""
        known: Any = ids
        return made.stage(
            batches, known, self._last, self._ends, self._floor, is_counted, begin, end
        )


def ext_read_order(
    snapshot: Snapshot,
    ends: dict[TypeId, bytes],
    latest: Iterable[tuple[TypeId, Row | None]],
    floor: bytes,
) -> SourceOrder:
    """Read the order of what is stored, from the latest row, if any, of each type to be known."""
    last: dict[TypeId, Place] = LastingDict()
    for type_id, row in latest:
        if type_id in ends:
            continue
        place = NOTHING if row is None else _place(snapshot, type_id, row)
        if place is not None:
            last[type_id] = place
    return SourceOrder(ends, last, floor)


def _place(snapshot: Snapshot, type_id: TypeId, latest: Row) -> Place | None:
    """Where the order of a type is; None: too far away."""
    rows: list[Row] = [latest]
    if not keys.is_in_order(latest[1]):
        stop = type_id + keys.KEY_MAX
        n_rows = store_limits.MAX_PASSED_EVENTS + 1
        found = snapshot.event_rows(type_id, stop, descending=True, limit=n_rows)
        rows = [row for some, _ in found for row in some]
    for n_passed, (key, value) in enumerate(rows):
        if keys.is_in_order(value):
            return keys.source_of(value), key[keys.TYPE_BYTES :], n_passed
    return None
