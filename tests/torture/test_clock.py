"""A clock that jumps back, days or years ahead, in small."""

import random
from pathlib import Path

from tests.torture import clock
from tests.torture.report import no_progress


async def test_a_clock_that_jumps_back(tmp_path: Path) -> None:
    outcome = await clock.run(tmp_path, 1, random.Random(4), no_progress)
    assert outcome.startswith("4 jumps of an hour back: ")


async def test_a_clock_that_jumps_days_ahead(tmp_path: Path) -> None:
    outcome = await clock.run_days(tmp_path, 1, random.Random(4), no_progress)
    assert outcome.startswith("2 jumps of days ahead: ")


async def test_a_clock_that_jumps_years_ahead_and_back(tmp_path: Path) -> None:
    outcome = await clock.run_years(tmp_path, 1, random.Random(4), no_progress)
    assert outcome.startswith("1 jumps of ten years: ")
