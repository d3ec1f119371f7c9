"""Rows of a store as Arrow columns: decodes a batch at once, by the layouts in ``keys``."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import BinaryPayload, EventType
from mariner_spark import times
from mariner_spark.source.columns import BINARY, JSON, to_utf8, type_column
from mariner_spark.source.selection import Selection


def _dtype(fields: Mapping[str, str]) -> np.dtype[np.void]:
    return np.dtype([(name, keys.BYTE_ORDER + code) for name, code in fields.items()])


_KEY: Final = _dtype(keys.EVENT_FIELDS)
_SOURCE: Final = _dtype(keys.TIMESTAMP_FIELDS)
_SOURCED: Final = keys.SOURCED_HEAD_BYTES
_SIGN: Final = np.uint64(keys.SIGN_BIT)

_KINDS: Final = {0: None, keys.JSON_FLAG: JSON, keys.BINARY_FLAG: BINARY}
_KNOWN_BITS: Final = keys.SOURCE_FLAG | keys.INDEXED_FLAG
_IS_KNOWN: Final = np.array([i & ~_KNOWN_BITS in _KINDS for i in range(256)])


class StoreRows:
    """Some rows of ``event``; see ``columns.Rows``.

    Args:
        row_keys: their keys; at least one.
        values: their values.
        names: looks up event types by id.
    """

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
        """Rows that match a selection by server and source timestamp; the scan did the rest.

        Returns:
            A mask; None: all rows.
        """
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
        """See ``columns.Rows``.

        Raises:
            StoreDamagedError: a value is damaged.
        """
        return _COLUMNS[field.name](self, field)

    def _id(self, field: pa.Field) -> pa.Array:
        return pa.array(_signed(self._keys[field.name]), field.type)

    def _timestamp(self, field: pa.Field) -> pa.Array:
        return pa.array(_micros(self._keys), field.type)

    def _source_timestamp(self, field: pa.Field) -> pa.Array:
        us, has_source = self._sources
        return pa.array(us, field.type, mask=~has_source)

    def _kind(self, field: pa.Field) -> pa.Array:
        return _kinds_of_flags().cast(field.type).take(pa.array(self._flags))

    def _types(self, field: pa.Field) -> pa.Array:
        numbers, indices = np.unique(self._keys["type"], return_inverse=True)
        types = self._names([keys.encode_type_id(int(i)) for i in numbers])
        return type_column(field, types, pa.array(indices))

    def _json(self, field: pa.Field) -> pa.Array:
        begins = np.where(self._has_source, _SOURCED, keys.VALUE_HEAD_BYTES)
        is_json = (self._flags & keys.JSON_FLAG) != 0
        texts = [i[begin:] for i, begin in zip(self._values, begins.tolist(), strict=True)]
        try:
            return pa.array(texts, field.type, mask=None if is_json.all() else ~is_json)
        except pa.ArrowInvalid as e:
            raise StoreDamagedError(f"a JSON payload is not UTF-8: {e}") from e

    def _binary(self, field: pa.Field) -> pa.Array:
        if field.name == "payload_binary":
            return pa.array([i and i.data for i in self._binary_payloads], field.type)
        return pa.array([i and to_utf8(i.data_type) for i in self._binary_payloads], field.type)

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


_COLUMNS: Final[dict[str, Callable[[StoreRows, pa.Field], pa.Array]]] = {
    "server": StoreRows._id,
    "session": StoreRows._id,
    "instance": StoreRows._id,
    "type": StoreRows._types,
    "type_path": StoreRows._types,
    "timestamp": StoreRows._timestamp,
    "source_timestamp": StoreRows._source_timestamp,
    "payload_kind": StoreRows._kind,
    "payload_json": StoreRows._json,
    "payload_type": StoreRows._binary,
    "payload_binary": StoreRows._binary,
}


@cache
def _kinds_of_flags() -> pa.Array:
    """Kinds of payloads by flags; not made on import, because ``pa.array`` imports pandas."""
    return pa.array([_KINDS.get(i & keys.PAYLOAD_FLAGS) for i in range(256)])


def _signed(biased: NDArray[Any]) -> NDArray[np.int64]:
    """Integers of keys, whose sign bits are flipped."""
    return (biased.astype(np.uint64) ^ _SIGN).view(np.int64)


def _micros(timestamps: NDArray[Any]) -> NDArray[np.int64]:
    return times.all_to_us(_signed(timestamps["s"]), timestamps["us"])
