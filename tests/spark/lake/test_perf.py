"""The measurement of ``tests.perf.lake`` in small, for its answers only."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.perf import lake

pytestmark = pytest.mark.perf


def test_lake_and_table_give_the_same(spark: SparkSession, tmp_path: Path) -> None:
    lines = list(lake.measure(spark, tmp_path, 2_000, 10, 1))
    assert [line.partition(":")[0].strip() for line in lines] == [
        "activity, table",
        "activity, lake",
        "activity, small files",
        "lake to table",
        "compact",
        "activity, compacted",
        "latest and rollups",
        "values, payloads",
        "values, numbers",
        "values, rollups",
        "payloads to rollups",
        "numbers to rollups",
        "files of a day of a hundred",
        "bytes of one type of 100",
        "the same, sorted by type",
        "plain, all files",
        "small/events, all files",
        "lake/events, all files",
        "lake/rollups, all files",
    ]
    assert "files of a day of a hundred: 1.0%" in lines[12]
