"""``kill -9`` of a streaming driver in small; ``make torture`` does it 10 times."""

import random
from pathlib import Path

import pytest

from tests.torture import stream_kill
from tests.torture.report import no_progress


@pytest.mark.timeout(240)
async def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARINER_SPARK_CACHE", str(tmp_path / "cache"))
    outcome = await stream_kill.run(tmp_path, 1, random.Random(20), no_progress)
    assert outcome.startswith("1 kills: ")
