"""The command: what a scenario raises costs the others nothing."""

import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.torture import __main__ as torture
from tests.torture.attacks.catalogue import ATTACKS
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress


async def broken(path: Path, rounds: int, chance: random.Random, on_progress: Progress) -> str:
    raise OSError("no such luck")


async def violated(path: Path, rounds: int, chance: random.Random, on_progress: Progress) -> str:
    raise ViolationError("an event is lost")


async def held(path: Path, rounds: int, chance: random.Random, on_progress: Progress) -> str:
    return f"{rounds} rounds"


def test_all_are_run_whatever_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = {
        "kill": torture.Scenario(broken, 1),
        "damage": torture.Scenario(violated, 1),
        "clock": torture.Scenario(held, 3),
    }
    monkeypatch.setattr(torture, "SCENARIOS", scenarios)
    result = CliRunner().invoke(torture.main, ["--seed", "5"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "FAILED: OSError: no such luck (seed 5)" in result.stdout
    assert "FAILED: an event is lost (seed 5)" in result.stdout
    assert "as it must: 3 rounds" in result.stdout


def test_the_measurements_have_each_fault() -> None:
    text = (torture.ROOT / "docs/measurements.md").read_text()
    section = text.partition("## How reliable")[2].partition("\n## ")[0]
    attacks = {f"attack-{name}" for name in ATTACKS}
    told = set(re.findall(r"\(`(?:--only )?([a-z-]+)`", section))
    assert told == ({*torture.SCENARIOS} - attacks) | {torture.ALL_ATTACKS}
    assert f"Each of the {len(ATTACKS)} attacks" in section
