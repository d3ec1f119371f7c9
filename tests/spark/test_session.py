"""The session that there is, and the variables it is made with."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import mariner_spark
from mariner_spark import limits, session
from tests.spark.support import fill, plain_events


def test_a_local_session_is_quiet_and_counts_time_in_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


def test_a_session_that_there_is_is_used_as_it_is(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.getConf().getAll())
    given = mariner_spark.get_session(master="local[7]", configuration={"spark.x": "y"})
    assert given is spark
    assert dict(given.sparkContext.getConf().getAll()) == before


def test_workers_are_of_this_environment_even_if_it_is_not_activated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, plain_events(10))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    # what PySpark takes from PATH
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/false")
    mariner_spark.register(spark)
    assert mariner_spark.read(spark, store=tmp_path).count() == 10


def test_of_a_type_that_is_shorter_a_segment_is_null(spark: SparkSession, tmp_path: Path) -> None:
    """As ``spark/README.md`` says: other ways fail where SQL is ANSI's."""
    fill(tmp_path, plain_events(10))
    events = mariner_spark.read(spark, store=tmp_path)
    found = events.selectExpr("get(type, 2)", "get(type, 3)").distinct().collect()
    assert {tuple(i) for i in found} == {(f"d{i}", None) for i in range(10)}


def test_a_gateway_on_this_machine_goes_first(spark: SparkSession) -> None:
    niceness = min(19, psutil.Process().nice() + limits.NICENESS)
    spark.range(2).rdd.map(str).collect()  # workers are there
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    started = psutil.Process(gateway.proc.pid)
    seen = [started.nice()]
    for child in started.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # short work of Java's, which is over
            if child.name().startswith("python"):
                seen.append(child.nice())
    assert len(seen) >= 2
    assert set(seen) == {niceness}


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "before")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with session._environment({"SPARK_HOME": "meanwhile", "PYSPARK_PYTHON": "python"}):
        assert os.environ["SPARK_HOME"] == "meanwhile"
    assert os.environ["SPARK_HOME"] == "before"
    assert "PYSPARK_PYTHON" not in os.environ
