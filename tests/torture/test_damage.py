"""Damaged files in small."""

import gc
import random
from pathlib import Path

import pytest

from tests.torture import damage
from tests.torture.report import no_progress


async def test_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "SESSIONS", 160)  # as many as make files of all kinds
    gc.disable()  # garbage of a failed opening must not lock the store
    try:
        outcome = await damage.run(tmp_path, 1, random.Random(3), no_progress)
    finally:
        gc.enable()
    assert outcome.startswith("90 damages: ")
    assert " refused" in outcome
