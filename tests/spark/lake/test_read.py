"""Reading a lake: by Spark, and as README.md tells others to."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import mariner_spark.lake
from mariner_spark import times
from mariner_spark.errors import LakeError
from mariner_spark.lake import compact, manifest
from mariner_spark.lake.files import Files
from mariner_spark.lake.read import read
from mariner_spark.times import Interval
from tests.spark.lake.support import append
from tests.spark.support import COLUMNS, in_order, plain_events, rows_of
from tests.spark.support import read as rows_by_spark

EVENTS = plain_events(200_000, every=200)
README = (Path(mariner_spark.lake.__file__).parent / "README.md").read_text()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with what readers of folders stumble over: replaced files, and an odd path."""
    root = tmp_path / "l a[k]e*%41é"
    for begin in range(0, 1_000, 100):
        append(root, EVENTS[begin : begin + 100])
    compact.compact(str(root))
    return root


def test_by_spark(spark: SparkSession, lake: Path) -> None:
    assert rows_by_spark(read(spark, str(lake))) == rows_of(EVENTS)


def test_an_empty_lake(spark: SparkSession, tmp_path: Path) -> None:
    manifest.update(Files(str(tmp_path)), lambda old: old)
    frame = read(spark, str(tmp_path))
    assert frame.collect() == []
    assert frame.columns[-2:] == ["payload_binary", "value"]


def test_no_lake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"no lake: it has no _manifest\.json"):
        read(spark, str(tmp_path))


def test_only_the_files_of_a_time_are_opened(spark: SparkSession, lake: Path) -> None:
    first = times.from_datetime(datetime(2025, 1, 2, tzinfo=UTC))
    time = Interval(first, first + 3_600_000_000 - 1)
    frame = read(spark, str(lake), time=time)
    expected = [i for i in rows_of(EVENTS) if time.contains(times.from_datetime(i["timestamp"]))]
    assert len(expected) == 18
    assert rows_by_spark(frame) == expected
    assert len(frame.inputFiles()) == 1
    assert len(read(spark, str(lake)).inputFiles()) == 3
    assert read(spark, str(lake), time=Interval(last=0)).collect() == []


def snippet(language: str, word: str) -> str:
    """The code of README.md with a word in it."""
    [code] = [i for i in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in i]
    return str(code)


@pytest.fixture
def beside(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory of the README's reader."""
    lake.rename(lake.parent / "lake")
    monkeypatch.chdir(lake.parent)


def test_by_plain_spark(spark: SparkSession, lake: Path, beside: None) -> None:
    absolute = snippet("python", "spark.read").replace("lake/", f"{lake.parent}/lake/")
    names: dict[str, Any] = {}
    exec(absolute, {"spark": spark}, names)  # noqa: S102
    assert rows_by_spark(names["events"]) == rows_of(EVENTS)


def test_by_pyarrow_and_pandas(beside: None) -> None:
    names: dict[str, Any] = {}
    code = snippet("python", "pyarrow")
    exec(code, names)  # noqa: S102
    assert in_order(names["table"].select(COLUMNS).to_pylist()) == rows_of(EVENTS)
    frame = names["frame"].sort_values(["server", "session", "instance"])
    payloads = [i["payload_json"] for i in rows_of(EVENTS)]
    assert frame["payload_json"].tolist() == payloads
    assert frame["timestamp"].tolist() == [i["timestamp"] for i in rows_of(EVENTS)]


def test_by_duckdb(beside: None) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        set_variable, select = snippet("sql", "read_parquet").split(";")[:2]
        connection.execute(set_variable)
        found = connection.sql(select).to_arrow_table()
    assert in_order(found.select(COLUMNS).to_pylist()) == rows_of(EVENTS)
