"""Readers that fall behind, in small; ``make torture`` has 100 of them."""

import random
from pathlib import Path

import pytest

from tests.torture import behind
from tests.torture.report import no_progress


async def test_readers_fall_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "READ_EVENTS", 1)
    monkeypatch.setattr(behind, "LEAST_GAPS", 1)
    monkeypatch.setattr(behind, "PAUSE_EVENTS", 300)
    monkeypatch.setattr(behind, "MISSED_EVENTS", (450,))
    outcome = await behind.run(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.endswith("gaps: nothing else was missed")
