"""``spark.read.format("mariner")`` of a store: through Spark, from options to rows."""

import asyncio
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from eventer_bridge.model import Event
from mariner_spark import type_path
from tests.spark.support import (
    Row,
    count_scanned,
    few,
    fill,
    in_order,
    many_events,
    plain_events,
    read,
    rows_of,
)
from tests.support.gateway import gateway
from tests.support.peer import RawPeer, event, register_req

pytestmark = pytest.mark.usefixtures("other_time_zone")  # moments are the same in any

STORED = plain_events(6_000)
ROWS = rows_of(STORED)
MIDDLE = datetime(2025, 1, 1, 0, 50, tzinfo=UTC)
SOURCE_MIDDLE = datetime(2025, 1, 1, 0, 20, 0, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batch") / "store"
    fill(path, STORED)
    return path


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("mariner").options(path=str(path), **options).load()


@given(many_events, st.integers(1, 3))
@few
def test_every_event_once_and_equal(
    spark: SparkSession, stored: list[Event], n_partitions: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        fill(Path(directory, "store"), stored)
        given = {"partitions": str(n_partitions), "source_out_of_range": "clip"}
        frame = load(spark, Path(directory, "store"), **given)
        rows = frame.toArrow().to_pylist()
    for row in rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    assert in_order(rows) == rows_of(stored)


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({"types": "site/1/d7"}, lambda row: row["type"] == ["site", "1", "d7"]),
        (
            {"types": "site/?/d7,site/0/*,x"},
            lambda row: row["type"][1] == "0" or "d7" in row["type"],
        ),
        ({"from": "2025-01-01T00:50:00Z"}, lambda row: row["timestamp"] >= MIDDLE),
        ({"to": "2025-01-01T00:50:00"}, lambda row: row["timestamp"] <= MIDDLE),
        (
            {"from": "2025-01-01T00:50:00Z", "to": "2025-01-01T00:50:09.999999"},
            lambda row: MIDDLE <= row["timestamp"] < MIDDLE + timedelta(seconds=10),
        ),
        (
            {"source_from": "2025-01-01 00:20:00.000005"},
            lambda row: (
                (row["source_timestamp"] or datetime.min.replace(tzinfo=UTC)) >= SOURCE_MIDDLE
            ),
        ),
        (
            {"source_to": "2024-12-31"},
            lambda row: row["source_timestamp"] is not None and row["source_timestamp"].year < 2025,
        ),
        ({"servers": "7,9"}, lambda row: True),
        ({"servers": "8"}, lambda row: False),
        (
            {"types": "site/?/d7,x/*", "from": "2025-01-01T01:00:00Z", "to": "2025-01-01T01:09:59"},
            lambda row: (
                row["type"][2] == "d7"
                and (row["timestamp"].hour, row["timestamp"].minute // 10) == (1, 0)
            ),
        ),
    ],
)
def test_options_bound_what_is_read(
    spark: SparkSession, store: Path, options: dict[str, str], keeps: Callable[[Row], bool]
) -> None:
    """Spark is given nothing that it would leave out."""
    n_expected = sum(map(keeps, ROWS))
    assert n_expected < len(ROWS) or options == {"servers": "7,9"}
    assert count_scanned(load(spark, store, **options)) == (n_expected, n_expected)


def test_a_schema_reads_its_columns_only(spark: SparkSession, store: Path) -> None:
    reader = spark.read.format("mariner").schema("timestamp TIMESTAMP, type_path STRING")
    frame = reader.load(str(store))
    assert frame.columns == ["timestamp", "type_path"]
    expected = sorted((i["timestamp"], "/".join(i["type"])) for i in ROWS)
    assert sorted(tuple(i.values()) for i in frame.toArrow().to_pylist()) == expected


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("number DOUBLE", "schema: no column 'number', expected some of server, session"),
        ("server INT", "schema: column 'server' is int, expected bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_told(
    spark: SparkSession, store: Path, ddl: str, message: str
) -> None:
    frame = spark.read.format("mariner").schema(ddl).load(str(store))
    with pytest.raises(AnalysisException, match=message):
        frame.collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": "a/*/b"}, "types: 'a/\\*/b': query type"),
        ({"form": "2024"}, "form: no such option"),
        ({"token": "secret"}, "token: is for a gateway"),
    ],
)
def test_a_wrong_option_is_told_when_the_frame_is_loaded(
    spark: SparkSession, store: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load(spark, store, **options)


def test_a_path_that_is_no_store_is_told_before_any_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = load(spark, tmp_path / "nothing")
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    with pytest.raises(AnalysisException) as info:
        frame.count()
    *_, told, _ = str(info.value).splitlines()  # and Spark's SQLSTATE
    assert told.endswith(f": path: {tmp_path}/nothing: not an event store: no such directory")
    assert tracker.getJobIdsForGroup(None) == before


def test_a_frame_stays_at_the_moment_of_its_read(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "store", STORED[:100])
    frame = load(spark, tmp_path / "store")
    assert frame.toArrow().num_rows == 100
    fill(tmp_path / "store", STORED[100:200])
    assert frame.toArrow().num_rows == 100
    assert load(spark, tmp_path / "store").toArrow().num_rows == 200


def test_an_empty_store_gives_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "store", STORED[:1])
    frame = load(spark, tmp_path / "store", **{"from": "2030-01-01"})
    assert frame.collect() == []
    assert frame.where("type_path = 'x'").collect() == []


async def test_a_store_that_a_gateway_has_open(spark: SparkSession, tmp_path: Path) -> None:
    """What was acknowledged is read, also after the gateway ended or was started again."""
    async with gateway(tmp_path) as first:
        async with await RawPeer.init(first.port) as peer:
            answer = await peer.request(register_req(1, event("a", "b"), event("c")))
        frame = load(spark, tmp_path / "events", types="a/*,c")
        rows = await asyncio.to_thread(read, frame)
        assert [i["type"] for i in rows] == [["a", "b"], ["c"]]
        assert [i["session"] for i in rows] == [i["id"]["session"] for i in answer["events"]]
    async with gateway(tmp_path) as second:
        assert await asyncio.to_thread(read, frame) == rows
        async with await RawPeer.init(second.port) as peer:
            await peer.request(register_req(1, event("c")))
        again = load(spark, tmp_path / "events", types="a/*,c")
        assert len(await asyncio.to_thread(read, again)) == 3
    assert await asyncio.to_thread(read, load(spark, tmp_path / "events", types="a/*")) == rows[:1]
