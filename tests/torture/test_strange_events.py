"""Strange events in small; ``make torture`` has more and larger ones."""

import random
from pathlib import Path

import pytest

from tests.torture import strange_events
from tests.torture.report import no_progress


async def test_strange_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strange_events, "LARGEST_BYTES", 0)
    outcome = await strange_events.run(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("8 strange events among 9 good ones: ")
