"""Failing disks in small, each where this machine allows it."""

import random
from pathlib import Path

import pytest

from tests.torture import failing_disk, full_disk, sync_order
from tests.torture.report import UnavailableError, no_progress
from tests.torture.strace import require_strace


@pytest.fixture
def strace() -> None:
    """Skips where processes cannot be traced."""
    try:
        require_strace()
    except UnavailableError as e:
        pytest.skip(str(e))


async def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    try:
        outcome = await full_disk.run(tmp_path, 1, random.Random(1), no_progress)
    except UnavailableError as e:
        pytest.skip(str(e))
    assert outcome.startswith("filled and freed 1 times without a restart: ")


@pytest.mark.usefixtures("strace")
async def test_syncs_that_fail(tmp_path: Path) -> None:
    outcome = await failing_disk.run_errors(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("failed and went on 1 times without a restart: ")


@pytest.mark.usefixtures("strace")
async def test_a_disk_that_is_gone_for_a_while(tmp_path: Path) -> None:
    try:
        outcome = await failing_disk.run_outages(tmp_path, 1, random.Random(1), no_progress)
    except UnavailableError as e:
        pytest.skip(str(e))
    assert outcome.startswith("went on after 1 outages without a restart, ")


@pytest.mark.usefixtures("strace")
async def test_syncs_that_take_long(tmp_path: Path) -> None:
    outcome = await failing_disk.run_delays(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("syncs of 0.1 s: ")


@pytest.mark.usefixtures("strace")
async def test_acknowledgements_come_after_syncs(tmp_path: Path) -> None:
    outcome = await sync_order.run(tmp_path, 1, random.Random(1), no_progress)
    assert " events acknowledged, each after one of " in outcome
