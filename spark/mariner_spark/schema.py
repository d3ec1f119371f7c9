"""Columns of the data source ``mariner``, for batch, stream and lake alike."""

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mariner_spark.errors import SchemaError

SCHEMA: Final = StructType(
    [
        StructField("server", LongType(), nullable=False),
        StructField("session", LongType(), nullable=False),
        StructField("instance", LongType(), nullable=False),
        StructField("type", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("type_path", StringType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("source_timestamp", TimestampType()),
        StructField("payload_kind", StringType()),
        StructField("payload_json", StringType()),
        StructField("payload_type", StringType()),
        StructField("payload_binary", BinaryType()),
    ]
)
"""A row is an event. ``server``, ``session`` and ``instance`` are its id; ``type_path`` is
``type`` in one string (``type_path``); ``payload_kind`` is ``json``, ``binary`` or null (no
payload), ``payload_json`` the text of a JSON payload as it was registered, ``payload_type``
and ``payload_binary`` label and bytes of a binary one."""

WITHOUT_TYPE: Final = StructType([i for i in SCHEMA if i.name != "type"])
"""Of which ``type_path`` has the type, which is much faster to write."""

FIGURES: Final = StructType(
    [
        StructField("payload", StringType()),
        StructField("payload_bytes", LongType(), nullable=False),
        StructField("value", DoubleType()),
        StructField("value_unread", BooleanType(), nullable=False),
    ]
)
"""Figures about payloads, for those who ask for them: the begin of a JSON payload
(``limits.REPORT_PAYLOAD_CHARACTERS``), the size of any, the number in it (``values``), and whether
that cannot be read."""

KNOWN: Final = StructType([*SCHEMA.fields, *FIGURES.fields])
"""All columns of the data source; without a choice, a read has those of :data:`SCHEMA`."""

LAKE_SCHEMA: Final = StructType([*SCHEMA.fields, StructField("value", DoubleType())])
"""Columns of events in a lake: those of the data source, and the number in a JSON payload."""

ROLLUP_SCHEMA: Final = StructType(
    [
        StructField("type_path", StringType(), nullable=False),
        StructField("bucket", TimestampType(), nullable=False),
        StructField("events", LongType(), nullable=False),
        StructField("numbers", LongType(), nullable=False),
        StructField("min", DoubleType()),
        StructField("max", DoubleType()),
        StructField("mean", DoubleType()),
        StructField("first", DoubleType()),
        StructField("first_at", TimestampType()),
        StructField("last", DoubleType()),
        StructField("last_at", TimestampType()),
        StructField("held_mean", DoubleType()),
    ]
)
"""Columns of rollups in a lake: a row is about the events of a type in a bucket of time. The
columns after ``numbers`` are null if there is none."""


def check(schema: StructType) -> None:
    """Refuse a schema that does not consist of columns of :data:`KNOWN`, in any order.

    Raises SchemaError for an unknown column, another type of a known one, or no columns.
    """
    if not schema.fields:
        raise SchemaError("schema: no columns")
    known = {field.name: field.dataType for field in KNOWN.fields}
    for field in schema.fields:
        expected = known.get(field.name)
        if expected is None:
            some = ", ".join(known)
            raise SchemaError(f"schema: no column {field.name!r}, expected some of {some}")
        # types are compared by name: the nullability of elements does not matter
        found, wanted = field.dataType.simpleString(), expected.simpleString()
        if found != wanted:
            raise SchemaError(f"schema: column {field.name!r} is {found}, expected {wanted}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Exact schema that Spark expects of Arrow batches."""
    return to_arrow_schema(schema, timezone="UTC")
