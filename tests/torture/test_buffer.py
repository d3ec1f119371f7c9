"""Store and forward, killed, in small."""

import random
from pathlib import Path

from tests.torture import buffer
from tests.torture.report import no_progress


async def test_killed_and_cut(tmp_path: Path) -> None:
    outcome = await buffer.run(tmp_path, 3, random.Random(4), no_progress)
    assert outcome.startswith("3 kills of the gateway, ")
