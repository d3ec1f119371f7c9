"""Reloads in small; ``make torture`` does 200."""

import random
import re
from pathlib import Path

import pytest

from tests.torture import reloads
from tests.torture.report import no_progress


async def test_reloads_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloads, "N_GUESSES", 30)
    # so few differ by 2 ms on a busy machine; computing a slow hash, or a delay, takes far longer
    monkeypatch.setattr(reloads, "MAX_DIFFERENCE_S", 0.02)
    outcome = await reloads.run(tmp_path, 4, random.Random(7), no_progress)
    # two each round, and from the second one on who has a token of the round before
    assert re.match(r"4 reloads and \d refused ones, \d+ events .*; 11 connections", outcome)
