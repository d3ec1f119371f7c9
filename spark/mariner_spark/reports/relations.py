"""Relations that a report is computed of: Spark's data frames, or DuckDB's relations.

The queries of the reports are SQL that both read alike. It is Spark's dialect, as far as DuckDB has
the same; DuckDB lacks some functions, which are macros of its connection (:func:`connect`). What is
to be minded in a query:

* moments are numbers of microseconds (``unix_micros``) until the last ``SELECT``, which makes
  timestamps of them (``timestamp_micros``)
* DuckDB's sums of integers are wider than Spark's, and are cast; Spark's division by zero is an
  error, unless by ``nullif(…, 0)``
* an ``ORDER BY`` says where nulls are, if there may be some
* strings of users are :func:`text`; reserved names (``end``) are qualified, as ``run.end``

``/*+ BROADCAST(…) */`` is a hint for Spark, and a comment for DuckDB.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from mariner_spark import limits
from mariner_spark.conditions import spark_text, to_hex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Relation: TypeAlias = "DataFrame | DuckDBPyRelation"
R = TypeVar("R", bound=Relation)
T = TypeVar("T")

_MACROS: Final = {
    "unix_micros(moment)": "epoch_us(moment)",
    "timestamp_micros(us)": "make_timestamp(us) AT TIME ZONE 'UTC'",
    "substring_index(text, separator, number)": (
        "array_to_string(string_split(text, separator)[1:number], separator)"
    ),
    "regexp_like(text, pattern)": "regexp_matches(text, pattern)",
}
"""Functions of Spark by what they are in DuckDB."""

_numbers = itertools.count()


def connect() -> DuckDBPyConnection:
    """A connection to a database of its own, whose relations reports can be computed of."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    for function, body in _MACROS.items():
        connection.execute(f"CREATE OR REPLACE TEMP MACRO {function} AS {body}")
    return connection


def query(sql: str, **relations: R) -> R:
    """The result of a query, in which ``{events}`` stands for the relation of that name.

    All relations are of the same session or connection. Nothing is computed yet.
    """
    [first, *_] = relations.values()
    if not isinstance(first, DuckDBPyRelation):
        frames: dict[str, Any] = {**relations}
        return cast("R", first.sparkSession.sql(sql, **frames))
    views = {name: f"relation_{next(_numbers)}" for name in relations}
    for name, relation in relations.items():
        cast("DuckDBPyRelation", relation).create_view(views[name])
    return cast("R", first.query(f"relation_{next(_numbers)}", sql.format(**views)))


def text(like: Relation, value: str | None) -> str:
    """A string, or none, in a query of relations like this one."""
    if value is None:
        return "CAST(NULL AS STRING)"
    return duckdb_text(value) if isinstance(like, DuckDBPyRelation) else spark_text(value)


def duckdb_text(value: str) -> str:
    """A text in a query of DuckDB."""
    return f"decode(from_hex('{to_hex(value)}'))"


# --- results ------------------------------------------------------------------------------


@contextlib.contextmanager
def persisted(relation: R) -> Iterator[R]:
    """A relation that is computed once, however often it is used in the block."""
    if not isinstance(relation, DuckDBPyRelation):
        from pyspark import StorageLevel  # noqa: PLC0415  # not needed by DuckDB

        relation.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield relation
        finally:
            relation.unpersist()
        return
    table, view = f"table_{next(_numbers)}", f"relation_{next(_numbers)}"
    query = f"CREATE TEMP TABLE {table} AS SELECT * FROM {view}"
    _computed(relation, lambda: relation.query(view, query))
    try:
        yield cast("R", relation.query(view, f"SELECT * FROM {table}"))
    finally:
        relation.query(view, f"DROP TABLE {table}")


def to_arrow(relation: Relation) -> pa.Table:
    """All rows, in columns that are the same whichever engine they come from; moments are UTC."""
    found = (
        _computed(relation, relation.to_arrow_table)
        if isinstance(relation, DuckDBPyRelation)
        else relation.toArrow()
    )
    return found.cast(pa.schema([pa.field(i.name, _arrow_type(i.type)) for i in found.schema]))


def _computed(relation: DuckDBPyRelation, compute: Callable[[], T]) -> T:
    """What DuckDB computes; again, in one thread, if several ran out of memory.

    That happens now and then near the limit: what they use at the same moment cannot be spilled.
    """
    try:
        return compute()
    except duckdb.OutOfMemoryException:
        relation.query(f"relation_{next(_numbers)}", "SET threads = 1")
        return compute()


def of_batches(relation: DuckDBPyRelation, compute: Callable[[Iterable[pa.RecordBatch]], T]) -> T:
    """What is computed of all rows, which are there a few at a time."""
    return _computed(relation, lambda: compute(relation.to_arrow_reader(limits.FETCHED_ROWS)))


def _arrow_type(found: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(found) else found


def rows(relation: Relation) -> list[dict[str, Any]]:
    """All rows."""
    found: list[dict[str, Any]] = to_arrow(relation).to_pylist()
    return found


def row(relation: Relation) -> dict[str, Any]:
    """The only row."""
    [found] = rows(relation)
    return found
