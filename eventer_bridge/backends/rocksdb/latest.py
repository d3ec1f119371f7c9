"""The latest event of the most recently written types, as encoded rows.

Belongs to the event loop's thread. An event may reference the whole request that it came in, so
rows are kept; large ones are left to the store, which bounds the memory
(``limits.LATEST_CACHE_TYPES`` times ``MAX_ROW_BYTES``).
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb.keys import TYPE_BYTES, TypeId
from eventer_bridge.memory import LastingDict
from eventer_bridge.slices import Steps

Row: TypeAlias = tuple[bytes, bytes]
"""Key in ``event``, value."""


class LatestCache:
    """See the module.

    A written row is the latest of its type only if no greater one was written before: events of
    another server may be older. So a type enters only with a row behind everything that the store
    has and the cache has not: ``stored`` is the greatest position in the store, or empty.
    """

    def __init__(self, stored: bytes, rows: Iterable[tuple[TypeId, Row]] = ()) -> None:
        small = (i for i in rows if len(i[1][1]) <= limits.LATEST_CACHE_ROW_BYTES)
        self._rows: dict[TypeId, Row] = LastingDict(small)  # that written last comes last
        self._floor = stored

    def get(self, type_id: TypeId) -> Row | None:
        """Latest row of a type; None: ask the store."""
        return self._rows.get(type_id)

    def update_in_steps(self, written: Mapping[TypeId, Row]) -> Steps[None]:
        """As :meth:`update`, of a large session. Until it is done, the next commit waits."""
        waiting = iter(written.items())
        while some := list(islice(waiting, store_limits.NOTED_ROWS)):
            self.update(some)
            yield

    def update(self, written: Iterable[tuple[TypeId, Row]]) -> None:
        """Note a commit: the greatest row of each type that was written."""
        rows = self._rows
        for type_id, row in written:
            key, value = row
            known = rows.pop(type_id, None)
            if key <= known[0] if known else key[TYPE_BYTES:] <= self._floor:
                if known:  # not later, but written last
                    rows[type_id] = known
            elif len(value) > limits.LATEST_CACHE_ROW_BYTES:
                self._floor = max(self._floor, key[TYPE_BYTES:])
            else:
                rows[type_id] = row
                if len(rows) > limits.LATEST_CACHE_TYPES:
                    self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget those that were written longest ago.

        Several at a time: finding the first entry of a dictionary takes the longer, the more were
        removed before it.
        """
        rows = self._rows
        n_types = 1 + limits.LATEST_CACHE_TYPES // store_limits.FORGOTTEN_PART
        for type_id in [*islice(rows, n_types)]:
            key, _ = rows.pop(type_id)
            self._floor = max(self._floor, key[TYPE_BYTES:])
