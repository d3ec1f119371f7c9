"""What several modules look at."""

from collections.abc import Iterator

import pytest
from duckdb import DuckDBPyConnection

from mariner_spark.reports import relations
from tests.spark.reports.support import N_EVENTS, Reported, run_report
from tests.spark.support import fill, plain_events


@pytest.fixture(scope="package")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """All reports of a store, made once."""
    directory = tmp_path_factory.mktemp("reported")
    fill(directory / "events", plain_events(N_EVENTS))
    folder = directory / "new" / "out"
    result = run_report("all", "--store", directory / "events", "--out", folder)
    return Reported(directory / "events", folder, result)


@pytest.fixture(scope="package")
def duck() -> Iterator[DuckDBPyConnection]:
    """A connection for all tests that take it."""
    with relations.connect() as connection:
        yield connection
