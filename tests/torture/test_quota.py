"""A client above its quota, in small; ``make torture`` compares for longer."""

import random
from pathlib import Path

import pytest

from tests.torture import quota
from tests.torture.report import no_progress


async def test_a_greedy_client_gets_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "PHASE_S", 3.0)
    monkeypatch.setattr(quota, "MAX_FACTOR", 20.0)  # too few are observed to compare them
    outcome = await quota.run(tmp_path, 1, random.Random(7), no_progress)
    assert outcome.startswith("at 10 times its quota it got ")
