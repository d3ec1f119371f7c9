"""One data frame in several queries, compared with a Parquet copy of its rows.

What Spark filters in one query must not be missing in another one.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import mariner_spark
from mariner_spark import schema, type_path
from tests.spark.source.test_network import served
from tests.spark.support import few, not_simplest, plain_events, row_of

STORED: Final = plain_events(80) + plain_events(40, server=8)
PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"

_conditions: Final = st.recursive(
    st.sampled_from(
        (
            "type_path = 'site/0/d1'",
            "type_path IN ('site/0/d2', 'site/1/d7', 'x')",
            "type_path LIKE 'site/1/%'",
            "type = array('site', '0', 'd0')",
            "server = 7",
            "server IN (8, 9)",
            "session > 3",
            "timestamp >= '2025-01-01 00:00:40'",
            "timestamp = '2025-01-01 00:00:10'",
            "source_timestamp IS NOT NULL",
            "source_timestamp < '2024-12-31 23:00:30'",
            "payload_json LIKE '%7%'",
        )
    ),
    lambda i: st.builds("({} {} {})".format, i, st.sampled_from(("AND", "OR")), i),
    max_leaves=3,
)
_two: Final = not_simplest(st.lists(_conditions, min_size=2, max_size=2, unique=True))

Result = list[list[tuple[Any, ...]]]
Shape = Callable[[DataFrame, str, str], Result]


def one_after_the_other(frame: DataFrame, one: str, other: str) -> Result:
    return [ids(frame.where(one)), ids(frame), ids(frame.where(other)), ids(frame)]


def union(frame: DataFrame, one: str, other: str) -> Result:
    return [ids(frame.where(one).unionAll(frame.where(other)))]


def join(frame: DataFrame, one: str, other: str) -> Result:
    both = frame.where(one).join(frame.where(other).select("session"), "session")
    return [ids(frame.where(one).join(frame.select("session"), "session")), ids(both)]


def sub_query(frame: DataFrame, one: str, other: str) -> Result:
    count = "SELECT count(*) FROM {frame} WHERE"
    counts = f"SELECT ({count} {one}) AS a, ({count} true) AS b, ({count} {other}) AS c"
    members = (
        f"SELECT * FROM {{frame}} WHERE session IN (SELECT session FROM {{frame}} WHERE {one})"  # noqa: S608  # ours
    )
    sql = frame.sparkSession.sql
    return [rows(sql(counts, frame=frame)), ids(sql(members, frame=frame))]


def view(frame: DataFrame, one: str, other: str) -> Result:
    name = f"view_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        table = frame.sparkSession.table(name)
        return [*union(table, one, other), ids(table)]
    finally:
        frame.sparkSession.catalog.dropTempView(name)


def cached(frame: DataFrame, one: str, other: str) -> Result:
    part = frame.where(one).persist()
    try:
        return [ids(part), ids(frame.where(other)), ids(frame), ids(part)]
    finally:
        part.unpersist()


def ids(frame: DataFrame) -> list[tuple[Any, ...]]:
    return rows(frame.select("server", "session", "instance", "type_path"))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(i.values()) for i in frame.toArrow().to_pylist())


SHAPES: Final[tuple[Shape, ...]] = (one_after_the_other, union, join, sub_query, view, cached)


@pytest.fixture(scope="module")
def copy(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = tmp_path_factory.mktemp("copy") / "events.parquet"
    events = [{**row_of(i), "type_path": type_path.encode(i.type)} for i in STORED]
    table = pa.Table.from_pylist(events, schema=schema.arrow_schema(schema.SCHEMA))
    pyarrow.parquet.write_table(table, path)
    return spark.read.schema(schema.SCHEMA).parquet(str(path))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A gateway and its store, as arguments of ``read``."""
    directory = tmp_path_factory.mktemp("filters")
    with asyncio.Runner() as runner:
        running = served(directory, STORED)
        options = dict(runner.run(running.__aenter__()))
        gateway = {"gateway": f"{options.pop('host')}:{options.pop('port')}", **options}
        yield {"store": {"store": directory / "events"}, "gateway": gateway}
        runner.run(running.__aexit__(None, None, None))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda i: i.__name__)
@given(data=st.data())
@few
def test_queries_of_a_store_and_of_a_gateway(
    spark: SparkSession, source: dict[str, Any], copy: DataFrame, shape: Shape, data: st.DataObject
) -> None:
    one, other = data.draw(_two)
    expected = shape(copy, one, other)
    for where in source.values():
        # ours has no use for it, and has to be right with it
        spark.conf.set(PUSH_DOWN, str(data.draw(st.booleans())).lower())
        try:
            frame = mariner_spark.read(spark, **where, types="site/*", partitions=1)
            assert shape(frame, one, other) == expected
        finally:
            spark.conf.unset(PUSH_DOWN)
