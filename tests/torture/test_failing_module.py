"""Failing modules in small."""

import random
from pathlib import Path

from tests.torture import failing_module
from tests.torture.raising import RAISED
from tests.torture.report import no_progress


async def test_a_module_that_raises_whatever_there_is(tmp_path: Path) -> None:
    outcome = await failing_module.run_raising(tmp_path, len(RAISED), random.Random(1), no_progress)
    assert outcome.startswith("raised 6 times, 6 kinds, each told to who asked: ")


async def test_a_task_of_a_module_that_ends_the_process(tmp_path: Path) -> None:
    outcome = await failing_module.run_ending(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("ended 1 times with a code that says so, ")
