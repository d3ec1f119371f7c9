"""Events as Arrow columns: those of a gateway's answer, and rows of a store.

Figures about payloads (``schema.FIGURES``) are found here, where the payloads are.

Rows of a store are decoded a batch at once, by the layouts in ``keys`` of the backend.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import BinaryPayload, Event, EventType, JsonPayload, Timestamp
from mariner_spark import limits, times, type_path, values
from mariner_spark import schema as schemas
from mariner_spark.source.options import Selection

JSON: Final = "json"
BINARY: Final = "binary"


class Rows(Protocol):
    """Some events. Only the columns that are read are ever built."""

    def column(self, field: pa.Field) -> pa.Array:
        """The column of ``schema.SCHEMA`` with the name and the Arrow type of a field."""

    def payload_bytes(self) -> NDArray[np.int64]:
        """Size of each payload."""


class Columns(NamedTuple):
    """Columns to read: the schema of a batch, and where the numbers of payloads are."""

    schema: pa.Schema
    value_path: str = values.DEFAULT_PATH


def make_batch(rows: Rows, columns: Columns) -> pa.RecordBatch:
    """A batch of some columns."""
    figures = _Figures(rows, columns.value_path)
    arrays = [
        figures.column(field) if field.name in schemas.FIGURES.names else rows.column(field)
        for field in columns.schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


class _Figures:
    """Figures about the payloads of some events, found on demand."""

    def __init__(self, rows: Rows, value_path: str) -> None:
        self._rows = rows
        self._value_path = value_path

    @cached_property
    def _texts(self) -> pa.Array:
        return self._rows.column(pa.field("payload_json", pa.string()))

    @cached_property
    def _numbers(self) -> values.Numbers:
        return values.find(self._texts, self._value_path)

    def column(self, field: pa.Field) -> pa.Array:
        match field.name:
            case "payload":
                return pc.utf8_slice_codeunits(self._texts, 0, limits.REPORT_PAYLOAD_CHARACTERS)
            case "payload_bytes":
                return pa.array(self._rows.payload_bytes(), field.type)
            case "value":
                return self._numbers.values
            case _:
                return self._numbers.unread


def _type_column(field: pa.Field, types: Sequence[EventType], indices: pa.Array) -> pa.Array:
    """Column ``type`` or ``type_path``, from distinct types and the index of each row's type."""
    to_value: Any = type_path.encode if field.name == "type_path" else list
    return pa.array([to_value(i) for i in types], field.type).take(indices)


def _to_utf8(text: str) -> bytes:
    """Text for a column; invalid Unicode (lone surrogates) becomes ``?``."""
    return text.encode("utf-8", "replace")


def without_out_of_range(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches with null for each source timestamp that is not in ``times.SAFE``."""
    for batch in batches:
        index = batch.schema.get_field_index("source_timestamp")
        if index < 0:
            yield batch
            continue
        found = batch.column(index)
        first, last = (pa.scalar(us, found.type) for us in times.SAFE)
        is_safe = pc.and_(pc.greater_equal(found, first), pc.less_equal(found, last))
        column = pc.if_else(is_safe, found, pa.scalar(None, found.type))
        yield batch.set_column(index, batch.schema.field(index), column)


# --- events of a gateway ------------------------------------------------------------------


def event_batches(events: Sequence[Event], columns: Columns) -> Iterator[pa.RecordBatch]:
    """Events in batches of ``limits.BATCH_ROWS``."""
    for begin in range(0, len(events), limits.BATCH_ROWS):
        yield make_batch(EventRows(events[begin : begin + limits.BATCH_ROWS]), columns)


class EventRows:
    """Some events, at least one, as :class:`Rows`."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def column(self, field: pa.Field) -> pa.Array:  # noqa: D102  # Rows
        if field.name in {"type", "type_path"}:
            index_of: dict[EventType, int] = {}
            indices = [index_of.setdefault(i.type, len(index_of)) for i in self._events]
            return _type_column(field, list(index_of), pa.array(indices))
        return _EVENT_COLUMNS[field.name](self._events, field.type)

    def payload_bytes(self) -> NDArray[np.int64]:  # noqa: D102  # Rows
        payloads = [i.payload for i in self._events]
        return np.array([0 if i is None else len(i.data) for i in payloads], np.int64)


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

_EVENT_COLUMNS: Final[dict[str, Callable[[Sequence[Event], pa.DataType], pa.Array]]] = {
    "server": lambda events, i: pa.array([event.id.server for event in events], i),
    "session": lambda events, i: pa.array([event.id.session for event in events], i),
    "instance": lambda events, i: pa.array([event.id.instance for event in events], i),
    "timestamp": lambda events, i: _moments([event.timestamp for event in events], i),
    "source_timestamp": _source_timestamps,
    "payload_kind": lambda events, i: pa.array([_KINDS[type(e.payload)] for e in events], i),
    "payload_json": _json,
    "payload_type": lambda events, i: _binary(events, i, lambda part: _to_utf8(part.data_type)),
    "payload_binary": lambda events, i: _binary(events, i, lambda part: part.data),
}

# --- rows of a store ----------------------------------------------------------------------


def _dtype(fields: Mapping[str, str]) -> np.dtype[np.void]:
    return np.dtype([(name, keys.BYTE_ORDER + code) for name, code in fields.items()])


_KEY: Final = _dtype(keys.EVENT_FIELDS)
_SOURCE: Final = _dtype(keys.TIMESTAMP_FIELDS)
_SOURCED: Final = keys.SOURCED_HEAD_BYTES
_SIGN: Final = np.uint64(keys.SIGN_BIT)

_KINDS_OF_FLAGS: Final = {0: None, keys.JSON_FLAG: JSON, keys.BINARY_FLAG: BINARY}
_KNOWN_BITS: Final = keys.SOURCE_FLAG | keys.INDEXED_FLAG
_IS_KNOWN: Final = np.array([i & ~_KNOWN_BITS in _KINDS_OF_FLAGS for i in range(256)])


class StoreRows:
    """Some rows of ``event``, at least one, as :class:`Rows`; ``names`` looks up types by id."""

    def __init__(
        self,
        row_keys: Sequence[bytes],
        values: Sequence[bytes],
        names: Callable[[Sequence[TypeId]], Sequence[EventType]],
    ) -> None:
        self._keys = np.frombuffer(b"".join(row_keys), _KEY)
        self._values = values
        self._names = names

    def wanted(self, selection: Selection) -> NDArray[np.bool_] | None:
        """Mask of the rows that match by server and source timestamp; None: all rows."""
        mask: NDArray[np.bool_] | None = None
        if selection.servers is not None:
            mask = np.isin(_signed(self._keys["server"]), list(selection.servers))
        if (source := selection.source) is not None:
            us, has_source = self._sources
            first = times.MIN_US if source.first is None else source.first
            last = times.MAX_US if source.last is None else source.last
            within = has_source & (us >= first) & (us <= last)
            mask = within if mask is None else mask & within
        return mask

    def column(self, field: pa.Field) -> pa.Array:
        """The column of a field; raises StoreDamagedError."""
        return _STORE_COLUMNS[field.name](self, field)

    def payload_bytes(self) -> NDArray[np.int64]:
        """Size of each payload; raises StoreDamagedError."""
        is_json = (self._flags & keys.JSON_FLAG) != 0
        found = np.where(is_json, self._packed[2] - self._begins, 0).astype(np.int64)
        for row in np.flatnonzero(self._flags & keys.BINARY_FLAG).tolist():
            payload = self._binary_payloads[row]
            found[row] = 0 if payload is None else len(payload.data)
        return found

    @cached_property
    def _begins(self) -> NDArray[np.int64]:
        """Size of each value before the payload."""
        return np.where(self._has_source, _SOURCED, keys.VALUE_HEAD_BYTES)

    def _types(self, field: pa.Field) -> pa.Array:
        numbers, indices = np.unique(self._keys["type"], return_inverse=True)
        types = self._names([keys.encode_type_id(int(i)) for i in numbers])
        return _type_column(field, types, pa.array(indices))

    def _json(self, field: pa.Field) -> pa.Array:
        is_json = (self._flags & keys.JSON_FLAG) != 0
        texts = [i[begin:] for i, begin in zip(self._values, self._begins.tolist(), strict=True)]
        try:
            return pa.array(texts, field.type, mask=None if is_json.all() else ~is_json)
        except pa.ArrowInvalid as e:
            raise StoreDamagedError(f"a JSON payload is not UTF-8: {e}") from e

    def _binary(self, field: pa.Field) -> pa.Array:
        if field.name == "payload_binary":
            return pa.array([i and i.data for i in self._binary_payloads], field.type)
        return pa.array([i and _to_utf8(i.data_type) for i in self._binary_payloads], field.type)

    @cached_property
    def _binary_payloads(self) -> list[BinaryPayload | None]:
        payloads: list[BinaryPayload | None] = [None] * len(self._values)
        for row in np.flatnonzero(self._flags & keys.BINARY_FLAG).tolist():
            value = self._values[row]
            try:
                keys.check_value(value)
            except ValueError as e:
                raise StoreDamagedError(f"the value of an event is damaged: {e}") from e
            payload = keys.payload_of(value)
            assert isinstance(payload, BinaryPayload)
            payloads[row] = payload
        return payloads

    @cached_property
    def _packed(self) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
        """The values, one after the other, the begin of each, and its size."""
        _, offsets, data = pa.array(self._values, pa.binary()).buffers()
        edges = np.frombuffer(offsets, np.int32, len(self._values) + 1)
        return np.frombuffer(data or b"", np.uint8), edges[:-1], np.diff(edges)

    @cached_property
    def _flags(self) -> NDArray[np.uint8]:
        data, begins, sizes = self._packed
        if sizes.all() and _IS_KNOWN[flags := data[begins]].all():
            return flags
        raise StoreDamagedError("the value of an event has unknown flags")

    @cached_property
    def _has_source(self) -> NDArray[np.bool_]:
        flags: NDArray[np.bool_] = (self._flags & keys.SOURCE_FLAG) != 0
        return flags

    @cached_property
    def _sources(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Source timestamps in microseconds, and a mask of the rows that have one."""
        has_source = self._has_source
        us = np.zeros(len(has_source), np.int64)
        data, begins, sizes = self._packed
        if (sizes[has_source] < _SOURCED).any():
            raise StoreDamagedError("the value of an event is cut off")
        rows = begins[has_source, np.newaxis] + np.arange(keys.VALUE_HEAD_BYTES, _SOURCED)
        us[has_source] = _micros(data[rows].view(_SOURCE)[:, 0])
        return us, has_source


@cache
def _kinds_of_flags() -> pa.Array:
    """Kinds of payloads by flags; not made on import, because ``pa.array`` imports pandas."""
    return pa.array([_KINDS_OF_FLAGS.get(i & keys.PAYLOAD_FLAGS) for i in range(256)])


_STORE_COLUMNS: Final[dict[str, Callable[[StoreRows, pa.Field], pa.Array]]] = {
    **dict.fromkeys(
        ("server", "session", "instance"),
        lambda rows, i: pa.array(_signed(rows._keys[i.name]), i.type),
    ),
    **dict.fromkeys(("type", "type_path"), StoreRows._types),
    "timestamp": lambda rows, i: pa.array(_micros(rows._keys), i.type),
    "source_timestamp": lambda rows, i: pa.array(rows._sources[0], i.type, mask=~rows._sources[1]),
    "payload_kind": lambda rows, i: _kinds_of_flags().cast(i.type).take(pa.array(rows._flags)),
    "payload_json": StoreRows._json,
    **dict.fromkeys(("payload_type", "payload_binary"), StoreRows._binary),
}


def _signed(biased: NDArray[Any]) -> NDArray[np.int64]:
    """Integers of keys, whose sign bits are flipped."""
    return (biased.astype(np.uint64) ^ _SIGN).view(np.int64)


def _micros(timestamps: NDArray[Any]) -> NDArray[np.int64]:
    return times.all_to_us(_signed(timestamps["s"]), timestamps["us"])
