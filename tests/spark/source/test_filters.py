"""One data frame in several queries, compared with the same queries of lists of rows.

What Spark filters in one query must not be missing in another one.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import mariner_spark
from mariner_spark import type_path
from tests.spark.source.test_network import served
from tests.spark.support import Row, few, not_simplest, plain_events, row_of

STORED: Final = plain_events(80) + plain_events(40, server=8)
ROWS: Final = [{**row_of(i), "type_path": type_path.encode(i.type)} for i in STORED]
PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"


class Condition(NamedTuple):
    """A condition on events, for Spark and in Python."""

    sql: str
    holds: Callable[[Row], bool]

    def of(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if self.holds(row)]


def _time(s: int) -> datetime:
    return datetime(2025, 1, 1, 0, s // 60, s % 60, tzinfo=UTC)


_SOURCE_END: Final = datetime(2024, 12, 31, 23, 0, 30, tzinfo=UTC)

_simple: Final = st.sampled_from(
    (
        Condition("type_path = 'site/0/d1'", lambda i: i["type_path"] == "site/0/d1"),
        Condition(
            "type_path IN ('site/0/d2', 'site/1/d7', 'x')",
            lambda i: i["type_path"] in {"site/0/d2", "site/1/d7"},
        ),
        Condition("type_path LIKE 'site/1/%'", lambda i: i["type"][1] == "1"),
        Condition("type = array('site', '0', 'd0')", lambda i: i["type"] == ["site", "0", "d0"]),
        Condition("server = 7", lambda i: i["server"] == 7),
        Condition("server IN (8, 9)", lambda i: i["server"] == 8),
        Condition("session > 3", lambda i: i["session"] > 3),
        Condition("timestamp >= '2025-01-01 00:00:40'", lambda i: i["timestamp"] >= _time(40)),
        Condition("timestamp = '2025-01-01 00:00:10'", lambda i: i["timestamp"] == _time(10)),
        Condition("source_timestamp IS NOT NULL", lambda i: i["source_timestamp"] is not None),
        Condition(
            "source_timestamp < '2024-12-31 23:00:30'",
            lambda i: i["source_timestamp"] is not None and i["source_timestamp"] < _SOURCE_END,
        ),
        Condition("payload_json LIKE '%7%'", lambda i: "7" in i["payload_json"]),
    )
)


def _and(one: Condition, other: Condition) -> Condition:
    return Condition(f"({one.sql} AND {other.sql})", lambda i: one.holds(i) and other.holds(i))


def _or(one: Condition, other: Condition) -> Condition:
    return Condition(f"({one.sql} OR {other.sql})", lambda i: one.holds(i) or other.holds(i))


# without NOT, what is unknown may count as false
_conditions: Final = st.recursive(
    _simple, lambda i: st.builds(_and, i, i) | st.builds(_or, i, i), max_leaves=3
)
_two: Final = not_simplest(st.lists(_conditions, min_size=2, max_size=2, unique_by=lambda i: i.sql))

Result: TypeAlias = list[list[tuple[Any, ...]]]


class Shape(NamedTuple):
    """Queries of a data frame, and the same of its rows."""

    of_frame: Callable[[DataFrame, str, str], Result]
    of_rows: Callable[[Condition, Condition], Result]


def one_after_the_other(frame: DataFrame, one: str, other: str) -> Result:
    return [ids(frame.where(one)), ids(frame), ids(frame.where(other)), ids(frame)]


def union(frame: DataFrame, one: str, other: str) -> Result:
    return [ids(frame.where(one).unionAll(frame.where(other)))]


def join(frame: DataFrame, one: str, other: str) -> Result:
    both = frame.where(one).join(frame.where(other).select("session"), "session")
    return [ids(frame.where(one).join(frame.select("session"), "session")), ids(both)]


def joined(rows: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    """Rows, each as often as one of the others has its session."""
    sessions = Counter(i["session"] for i in others)
    return [row for row in rows for _ in range(sessions[row["session"]])]


def sub_query(frame: DataFrame, one: str, other: str) -> Result:
    count = "SELECT count(*) FROM {frame} WHERE"
    counts = f"SELECT ({count} {one}) AS a, ({count} true) AS b, ({count} {other}) AS c"
    members = (
        f"SELECT * FROM {{frame}} WHERE session IN (SELECT session FROM {{frame}} WHERE {one})"  # noqa: S608  # ours
    )
    sql = frame.sparkSession.sql
    return [tuples(sql(counts, frame=frame)), ids(sql(members, frame=frame))]


def sub_query_of_rows(one: Condition, other: Condition) -> Result:
    found = one.of(ROWS)
    sessions = {i["session"] for i in found}
    members = [row for row in ROWS if row["session"] in sessions]
    return [[(len(found), len(ROWS), len(other.of(ROWS)))], ids_of(members)]


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
    return tuples(frame.select("server", "session", "instance", "type_path"))


def tuples(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(i.values()) for i in frame.toArrow().to_pylist())


def ids_of(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    return sorted(map(itemgetter("server", "session", "instance", "type_path"), rows))


SHAPES: Final = {
    "one_after_the_other": Shape(
        one_after_the_other,
        lambda one, other: [
            *(ids_of(one.of(ROWS)), ids_of(ROWS), ids_of(other.of(ROWS)), ids_of(ROWS))
        ],
    ),
    "union": Shape(union, lambda one, other: [ids_of(one.of(ROWS) + other.of(ROWS))]),
    "join": Shape(
        join,
        lambda one, other: [
            ids_of(joined(one.of(ROWS), ROWS)),
            ids_of(joined(one.of(ROWS), other.of(ROWS))),
        ],
    ),
    "sub_query": Shape(sub_query, sub_query_of_rows),
    "view": Shape(view, lambda one, other: [ids_of(one.of(ROWS) + other.of(ROWS)), ids_of(ROWS)]),
    "cached": Shape(
        cached,
        lambda one, other: [
            *(ids_of(one.of(ROWS)), ids_of(other.of(ROWS)), ids_of(ROWS), ids_of(one.of(ROWS)))
        ],
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A gateway and its store, as arguments of ``read``."""
    directory = tmp_path_factory.mktemp("filters")
    with asyncio.Runner() as runner:
        running = served(directory, STORED)
        options = dict(runner.run(running.__aenter__()))
        gateway = {"gateway": f"{options.pop('host')}:{options.pop('port')}", **options}
        yield {"store": {"store": directory / "events"}, "gateway": gateway}
        runner.run(running.__aexit__(None, None, None))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", ["store", "gateway"])
@given(data=st.data())
@few
def test_queries(
    spark: SparkSession, place: dict[str, Any], where: str, shape: str, data: st.DataObject
) -> None:
    one, other = data.draw(_two)
    of_frame, of_rows = SHAPES[shape]
    # ours has no use for it, and has to be right with it
    spark.conf.set(PUSH_DOWN, str(data.draw(st.booleans())).lower())
    try:
        frame = mariner_spark.read(spark, **place[where], types="site/*", partitions=1)
        assert of_frame(frame, one.sql, other.sql) == of_rows(one, other)
    finally:
        spark.conf.unset(PUSH_DOWN)
