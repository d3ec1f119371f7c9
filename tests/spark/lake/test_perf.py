"""The measurement of ``tests.perf.lake`` in small, for its answers only."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.perf import lake

pytestmark = pytest.mark.perf


def test_lake_and_table_give_the_same(spark: SparkSession, tmp_path: Path) -> None:
    lines = list(lake.measure(spark, tmp_path, 2_000, 10, 1))
    assert [line.partition(":")[0] for line in lines] == [
        "activity, table",
        "activity, lake",
        "activity, small files",
        "lake to table",
        "compact",
        "activity, compacted",
        "plain",
        "lake",
        "small",
    ]
