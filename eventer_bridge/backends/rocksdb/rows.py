"""Rows of batches in plain Python, where ``eventer_bridge.packed`` is not compiled.

Belongs to the event loop's thread, as everything that commits.
"""

from collections.abc import Callable, Mapping
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple, cast

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.model import EventType, Timestamp
from eventer_bridge.packed import IS_COMPILED, Batch, BatchRows, Staged

Place = tuple[bytes, bytes, int]

_NEVER: Final[Place] = keys.KEY_MAX, keys.KEY_MAX, 0


class _Order(NamedTuple):
    """The order of types (``source_order``), and where it ended."""

    last: dict[TypeId, Place]
    ends: dict[TypeId, bytes]
    floor: bytes
    max_passed_events: int
    max_value_bytes: int
    ended: list[tuple[TypeId, bytes]]

    def follow(self, type_id: TypeId, source: bytes, position: bytes, size: int) -> bool:
        """Whether an event is in the order of its type."""
        last_source, last_position, n_passed = self.last.get(type_id, _NEVER)
        is_small = size <= self.max_value_bytes
        if last_source <= source != b"" and last_position < position and is_small:
            self.last[type_id] = source, position, n_passed and n_passed - 1
            return True
        if type_id in self.ends:
            return False
        most = self.max_passed_events
        source, end, n_passed = self.last.pop(type_id, (b"", self.floor, most))
        if source and n_passed < most and is_small and end < position:
            self.last[type_id] = source, end, n_passed + 1
        else:
            self.ends[type_id] = end
            self.ended.append((type_id, end))
        return False


class PlainRows:
    """See ``packed.BatchRows``."""

    def __init__(self, max_passed_events: int, max_value_bytes: int) -> None:
        self._max_passed_events = max_passed_events
        self._max_value_bytes = max_value_bytes
        self._rows: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def stage(  # noqa: PLR0917 (as the compiled one)
        self,
        batches: list[Batch],
        ids: Mapping[EventType, TypeId],
        last: dict[TypeId, Place],
        ends: dict[TypeId, bytes],
        floor: bytes,
        is_counted: bool,
        begin: int = 0,
        end: int = -1,
    ) -> Staged:
        """See ``packed.BatchRows``."""
        part = slice(begin, None if end < 0 else end)
        order = _Order(last, ends, floor, self._max_passed_events, self._max_value_bytes, [])
        entries: list[bytes] = []
        session_keys: list[bytes] = []
        source_keys: list[bytes] = []
        counts: dict[TypeId, tuple[int, int]] = {}
        n_bytes = 0
        all_ids = [[ids[event.type] for event in batch[part]] for batch in batches]
        for batch, type_ids in zip(batches, all_ids, strict=True):
            moment = Timestamp(batch.s, batch.us)
            session_key = keys.session_key(moment, batch.server, batch.session)
            session_keys.append(session_key)
            events = batch[part]
            instances = [*map(keys.encode_int, batch.instances[part])]
            local_ids = [*map(add, repeat(session_key[-keys.INT_BYTES :]), instances)]
            sources = keys.encode_sources(events)
            values = keys.encode_values(events, sources)
            positions = map(add, repeat(session_key), instances)
            of_events = zip(type_ids, sources, positions, values, strict=True)
            for type_id, source, position, value in of_events:
                key, size = type_id + position, len(value)
                n_bytes += size
                n_events, n_value_bytes = counts.get(type_id, (0, 0))
                counts[type_id] = n_events + 1, n_value_bytes + size
                is_in_order = order.follow(type_id, source, position, size)
                row = value if is_in_order or not source else keys.indexed(value)
                if row is not value:
                    source_keys.append(keys.source_key(key, row))
                self._rows[key] = row
            entries += map(add, local_ids, type_ids)
        totals = [(type_id, *i) for type_id, i in counts.items()] if is_counted else []
        return b"".join(entries), session_keys, source_keys, n_bytes, totals, order.ended

    def put(
        self, put: Callable[[bytes, bytes, Any], None], family: Any
    ) -> list[tuple[TypeId, tuple[bytes, bytes]]]:
        """See ``packed.BatchRows``."""
        rows = sorted(self._rows.items())
        for key, value in rows:
            put(key, value, family)
        self._rows = {}
        return [*{row[0][: keys.TYPE_BYTES]: row for row in rows}.items()]


ROWS: Final[type[BatchRows]] = BatchRows if IS_COMPILED else cast(Any, PlainRows)
"""The implementation that is used."""
