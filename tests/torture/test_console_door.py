"""Each attack at the door of the console, in small.

How long a login takes is not judged here: that depends on the machine (``make torture``).
"""

import random
from pathlib import Path

import pytest

from eventer_bridge.core import tokens
from tests.torture import console_door
from tests.torture.console_strangers import ATTACKS
from tests.torture.report import no_progress


async def test_strangers_at_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_door, "ATTACK_S", 1.0)
    monkeypatch.setattr(console_door, "MAX_LOGIN_S", 60.0)
    monkeypatch.setattr(console_door, "MIN_LOG_BYTES", 0)
    monkeypatch.setattr(console_door, "hashed", tokens.sha256_text)  # takes no time
    monkeypatch.setattr(console_door, "N_CONNECTIONS", 600)
    told = await console_door.run(tmp_path, 1, random.Random(17), no_progress)
    assert told.count("right logins") == len(ATTACKS)
    assert "place needed for another" in (tmp_path / "console.log").read_text()
