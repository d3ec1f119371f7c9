"""Damaged files in small."""

import random
from pathlib import Path

from tests.torture import damage
from tests.torture.report import no_progress


async def test_damage_is_noticed(tmp_path: Path) -> None:
    outcome = await damage.run(tmp_path, 1, random.Random(3), no_progress)
    assert " refused" in outcome
