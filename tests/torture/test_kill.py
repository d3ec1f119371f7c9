"""``kill -9`` in small; ``make torture`` does it 200 times."""

import random
from pathlib import Path

import pytest

from tests.torture import kill
from tests.torture.report import no_progress


async def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "CHECK_EVERY", 2)
    monkeypatch.setattr(kill, "LARGE_EVERY", 40)
    outcome = await kill.run(tmp_path, 3, random.Random(20), no_progress)
    assert outcome.startswith("3 kills: ")
