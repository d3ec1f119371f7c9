"""Setting a store back, as an operator does it."""

import asyncio
import shutil
from pathlib import Path

from click.testing import CliRunner

from eventer_bridge.backends import rocksdb
from mariner.cli import main


async def back_up(store: Path, backup: Path) -> None:
    """Make a backup of a store that a gateway of this process has open."""
    await asyncio.to_thread(rocksdb.checkpoint, store, backup)


def restore(backup: Path, store: Path) -> str:
    """``mariner restore`` in the place of a store that nobody has open; what it prints."""
    shutil.rmtree(store, ignore_errors=True)
    result = CliRunner().invoke(main, ["restore", str(backup), str(store)])
    assert result.exit_code == 0, result.output
    return result.output
