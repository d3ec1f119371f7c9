"""Events of a gateway's answer as Arrow columns."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eventer_bridge.model import BinaryPayload, Event, EventType, JsonPayload, Timestamp
from mariner_spark import times
from mariner_spark.source.columns import BINARY, JSON, to_utf8, type_column


class EventRows:
    """Some events; see ``columns.Rows``.

    Args:
        events: the events; at least one.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def column(self, field: pa.Field) -> pa.Array:
        """See ``columns.Rows``."""
        if field.name in {"type", "type_path"}:
            index_of: dict[EventType, int] = {}
            indices = [index_of.setdefault(i.type, len(index_of)) for i in self._events]
            return type_column(field, list(index_of), pa.array(indices))
        return _COLUMNS[field.name](self._events, field.type)


def _timestamps(events: Sequence[Event], arrow_type: pa.DataType) -> pa.Array:
    return _moments([i.timestamp for i in events], arrow_type)


def _source_timestamps(events: Sequence[Event], arrow_type: pa.DataType) -> pa.Array:
    found = [i.source_timestamp for i in events]
    is_null = np.array([i is None for i in found])
    return _moments([i or _EPOCH for i in found], arrow_type, is_null)


def _moments(
    timestamps: Sequence[Timestamp],
    arrow_type: pa.DataType,
    is_null: NDArray[np.bool_] | None = None,
) -> pa.Array:
    s = np.array([i.s for i in timestamps], np.int64)
    us = np.array([i.us for i in timestamps], np.int64)
    return pa.array(times.all_to_us(s, us), arrow_type, mask=is_null)


def _json(events: Sequence[Event], arrow_type: pa.DataType) -> pa.Array:
    payloads = [i.payload for i in events]
    texts = [bytes(i.data) if type(i) is JsonPayload else None for i in payloads]
    return pa.array(texts, arrow_type)


def _binary(
    events: Sequence[Event], arrow_type: pa.DataType, part: Callable[[BinaryPayload], bytes]
) -> pa.Array:
    payloads = [i.payload for i in events]
    if BinaryPayload not in set(map(type, payloads)):
        return pa.nulls(len(payloads), arrow_type)
    parts = [part(i) if isinstance(i, BinaryPayload) else None for i in payloads]
    return pa.array(parts, arrow_type)


_EPOCH: Final = Timestamp(0, 0)
_KINDS: Final = {JsonPayload: JSON, BinaryPayload: BINARY, type(None): None}

_COLUMNS: Final[dict[str, Callable[[Sequence[Event], pa.DataType], pa.Array]]] = {
    "server": lambda events, i: pa.array([event.id.server for event in events], i),
    "session": lambda events, i: pa.array([event.id.session for event in events], i),
    "instance": lambda events, i: pa.array([event.id.instance for event in events], i),
    "timestamp": _timestamps,
    "source_timestamp": _source_timestamps,
    "payload_kind": lambda events, i: pa.array([_KINDS[type(e.payload)] for e in events], i),
    "payload_json": _json,
    "payload_type": lambda events, i: _binary(events, i, lambda part: to_utf8(part.data_type)),
    "payload_binary": lambda events, i: _binary(events, i, lambda part: part.data),
}
