"""One session for all tests that need Spark; Java ends with the last of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import mariner_spark
from mariner_spark import java


@pytest.fixture(scope="package", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is made in the folder of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(java.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        java.cache_folder.cache_clear()
        yield
    java.cache_folder.cache_clear()


@pytest.fixture(scope="package")
def spark(cache_folder: None) -> Iterator[SparkSession]:
    configuration = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    session = mariner_spark.get_session(master="local[2]", configuration=configuration)
    gateway = session.sparkContext._gateway
    assert gateway is not None
    yield session
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends by it
    gateway.proc.wait(30)
