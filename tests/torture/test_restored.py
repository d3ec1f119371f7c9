"""Restores in small; ``make torture`` does it 20 times."""

import random
from pathlib import Path

import pytest

from tests.torture import another_history, restored
from tests.torture.report import no_progress


async def test_restored_while_a_replica_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restored, "MAX_WORK_EVENTS", 40)
    outcome = await restored.run(tmp_path, 2, random.Random(5), no_progress)
    assert outcome.endswith("of the replicas 1 refused to mix, 1 went on")


async def test_readers_over_histories(tmp_path: Path) -> None:
    outcome = await another_history.run(tmp_path, 6, random.Random(5), no_progress)
    assert outcome.endswith("times, and have what is stored")
