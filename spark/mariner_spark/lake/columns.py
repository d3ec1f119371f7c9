"""Named columns of a lake: values in JSON payloads that are columns of its events.

A column is written ``NAME=PATH:TYPE``, such as ``quality=$.quality:string``; the path is one of
``values``. A lake keeps those of its first ingestion, in a property of its table.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.types import BooleanType, DoubleType, StringType, StructField

from mariner_spark import schema, values
from mariner_spark.errors import OptionError

COLUMNS: Final = "mariner.columns"
"""Table property: a JSON array of columns as text."""

TYPES: Final = {
    "boolean": (bool, pa.bool_(), BooleanType()),
    "double": (float, pa.float64(), DoubleType()),
    "string": (str, pa.string(), StringType()),
}
"""Types of Python, Arrow and Spark, by name."""

_COLUMN: Final = re.compile(f"([a-z][a-z0-9_]*)=(.*):({'|'.join(TYPES)})", re.DOTALL)
_TAKEN: Final = frozenset((*schema.KNOWN.names, "date"))


class NamedColumn(NamedTuple):
    """A column; ``type_name`` is a key of :data:`TYPES`."""

    name: str
    path: str
    type_name: str

    def __str__(self) -> str:
        return f"{self.name}={self.path}:{self.type_name}"

    @property
    def field(self) -> pa.Field:
        """As a column of Arrow."""
        return pa.field(self.name, TYPES[self.type_name][1])

    @property
    def spark_field(self) -> StructField:
        """As a column of Spark."""
        return StructField(self.name, TYPES[self.type_name][2])

    def find(self, payloads: pa.Array) -> pa.Array:
        """Its values in JSON payloads; null: none of its type."""
        return values.find_typed(payloads, self.path, TYPES[self.type_name][0])


def parse(texts: Iterable[str]) -> tuple[NamedColumn, ...]:
    """Columns; raises OptionError if a text is wrong, or a name is taken."""
    found: dict[str, NamedColumn] = {}
    for text in texts:
        match = _COLUMN.fullmatch(text)
        if match is None:
            example = f"quality=$.quality:string, with a type of {', '.join(TYPES)}"
            raise OptionError("column", f"{text!r}: expected NAME=PATH:TYPE, such as {example}")
        column = NamedColumn(match[1], match[2], match[3])
        if column.name in _TAKEN or column.name in found:
            raise OptionError("column", f"{text!r}: there is a column {column.name} already")
        try:
            values.parse(column.path)
        except OptionError as e:
            raise OptionError("column", e.reason) from e
        found[column.name] = column
    return tuple(found.values())


def of_properties(properties: Mapping[str, str | None]) -> tuple[NamedColumn, ...]:
    """Columns of a table with these properties."""
    return parse(msgspec.json.decode(properties.get(COLUMNS) or "[]", type=list[str]))


def to_property(columns: Iterable[NamedColumn]) -> str:
    """The opposite of :func:`of_properties`."""
    return msgspec.json.encode([str(i) for i in columns]).decode()
