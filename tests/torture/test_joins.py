"""Joins beside registrations in small; ``make torture`` does it 1,000 times."""

import random
from pathlib import Path

from tests.torture import joins
from tests.torture.report import no_progress


async def test_joins_beside_registrations(tmp_path: Path) -> None:
    outcome = await joins.run(tmp_path, 10, random.Random(3), no_progress)
    assert outcome.endswith("without a gap or a double")
