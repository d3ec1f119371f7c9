"""The one Spark session of all tests that need one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mariner_spark
from mariner_spark import limits
from mariner_spark import session as sessions


@contextlib.contextmanager
def cache_folder(folder: Path) -> Iterator[None]:
    """Nothing is made in the folder of the user who runs the tests.

    And Spark gives way to other tests a little only.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sessions.CACHE_VARIABLE, str(folder))
        patch.setattr(limits, "NICENESS", 1)
        sessions.cache_folder.cache_clear()
        yield
    sessions.cache_folder.cache_clear()


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """A session; its Java ends on the way out."""
    configuration = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    spark = mariner_spark.get_session(master="local[2]", configuration=configuration)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    yield spark
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends by it
    gateway.proc.wait(30)
