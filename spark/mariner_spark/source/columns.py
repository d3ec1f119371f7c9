"""Rows as Arrow columns: the interface of every source of events."""

from collections.abc import Sequence
from typing import Final, Protocol

import pyarrow as pa

from eventer_bridge.model import EventType
from mariner_spark import type_path

JSON: Final = "json"
BINARY: Final = "binary"


class Rows(Protocol):
    """Some events. Only the columns that are read are ever built."""

    def column(self, field: pa.Field) -> pa.Array:
        """The column with the name and the Arrow type of a field."""


def make_batch(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the columns of a schema."""
    return pa.RecordBatch.from_arrays([rows.column(field) for field in schema], schema=schema)


def type_column(field: pa.Field, types: Sequence[EventType], indices: pa.Array) -> pa.Array:
    """Column ``type`` or ``type_path``, from distinct types and the index of each row's type."""
    if field.name == "type_path":
        values = pa.array([type_path.encode(i) for i in types], field.type)
    else:
        values = pa.array([list(i) for i in types], field.type)
    return values.take(indices)


def to_utf8(text: str) -> bytes:
    """Text for a column; invalid Unicode (lone surrogates) becomes ``?``."""
    return text.encode("utf-8", "replace")
