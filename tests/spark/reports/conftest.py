"""What several modules look at."""

import pytest
from pyspark.sql import SparkSession

from tests.spark.reports.support import N_EVENTS, Reported, run_report
from tests.spark.support import fill, plain_events


@pytest.fixture(scope="package")
def reported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """All reports of a store, made once."""
    directory = tmp_path_factory.mktemp("reported")
    fill(directory / "events", plain_events(N_EVENTS))
    folder = directory / "new" / "out"
    result = run_report("all", "--store", directory / "events", "--out", folder)
    return Reported(directory / "events", folder, result)
