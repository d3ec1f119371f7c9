"""What a restore does to ids: none is given twice, whatever the clock says."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb.restoring import ext_begin_history
from eventer_bridge.model import INT64_MAX
from tests.eventer_bridge.backends.oracle import Writer, draft
from tests.support.shifted import ShiftedClock

BEHIND_S: Final = 50 * 365 * 24 * 3600.0

FEW_SESSIONS: Final = 10_000_000
"""Registered after a restore: far fewer than there is room for."""


def restored(backup: Path, path: Path) -> int:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(backup, path)
    [server] = ext_begin_history(path).servers
    return server.mark


async def backed_up(path: Path, reserved: int) -> Path:
    async with await rocksdb.create(path) as backend:
        await Writer(backend).session(draft())
        await backend.reserve(1, reserved)
    return path


@pytest.mark.parametrize("reserved", [1_000, 10**15])
@pytest.mark.parametrize("seconds", [0.0, -BEHIND_S])
async def test_no_two_restores_of_a_backup_give_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserved: int, seconds: float
) -> None:
    backup = await backed_up(tmp_path / "backup", reserved)
    ShiftedClock(monkeypatch).seconds = seconds
    marks = sorted(restored(backup, tmp_path / "restored") for _ in range(5))
    # nor those that the store gave that was backed up, and went on
    for before, after in zip([reserved, *marks], marks, strict=False):
        assert after - before > FEW_SESSIONS


async def test_restores_one_after_the_other_leave_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await backed_up(tmp_path / "store", 10**15)
    ShiftedClock(monkeypatch).seconds = -BEHIND_S
    before, first = 10**15, 0
    for _ in range(10):
        [server] = ext_begin_history(path).servers
        assert server.mark >= before + limits.RESTORED_SESSIONS
        before, first = server.mark, first or server.mark
    room = limits.MAX_RESTORED_SESSION
    assert room - before > 0.9 * (room - first)


@pytest.mark.parametrize("reserved", [limits.MAX_RESTORED_SESSION, INT64_MAX - 1])
async def test_ids_that_are_large_already(tmp_path: Path, reserved: int) -> None:
    backup = await backed_up(tmp_path / "backup", reserved)
    mark = restored(backup, tmp_path / "restored")
    assert mark == min(reserved + limits.RESTORED_SESSIONS, INT64_MAX)
