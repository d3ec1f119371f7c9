"""Logs that lost what was acknowledged, in small; ``make torture`` does it after many kills."""

import random
from pathlib import Path

import pytest

from tests.torture import lost_log
from tests.torture.report import no_progress


async def test_a_loss_is_said_after_kill_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_log, "N_EVENTS", 50)
    for damage in "emptied", "swapped", "torn":
        monkeypatch.delitem(lost_log.DAMAGES, damage)
    outcome = await lost_log.run(tmp_path, 1, random.Random(15), no_progress)
    assert outcome.startswith("1 kills, 2 damaged logs: all said ")
