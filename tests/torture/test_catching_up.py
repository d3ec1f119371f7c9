"""Catching up in very small; how long others wait is for ``make torture`` to judge."""

import random
from pathlib import Path

import pytest

from tests.torture import catching_up, catching_up_large
from tests.torture.report import no_progress


async def test_catching_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catching_up, "N_EVENTS", 2_000)
    monkeypatch.setattr(catching_up, "BASELINE_S", 0.05)
    monkeypatch.setattr(catching_up, "MAX_P99_S", None)
    outcome = await catching_up.run(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("2000 events caught up with 1 times: ")


async def test_catching_up_with_large_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up_large, "EVENT_BYTES", 100_000)
    monkeypatch.setattr(catching_up_large, "N_STORED", 5)
    monkeypatch.setattr(catching_up_large, "N_LIVE", 5)
    outcome = await catching_up_large.run(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("5 events of 0.1 MB, 5 live ones: memory +")
