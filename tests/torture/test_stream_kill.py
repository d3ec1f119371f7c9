"""``kill -9`` of a streaming driver in small; ``make torture`` does it 10 times."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.torture import stream_kill
from tests.torture.report import no_progress


@pytest.mark.timeout(600)  # it starts Java, on a machine that may be busy
async def test_killed(spark: SparkSession, tmp_path: Path) -> None:
    outcome = await stream_kill.run(tmp_path, 1, random.Random(20), no_progress, spark)
    assert outcome.startswith("1 kills: ")
