"""Whatever the umask: what is stored can be read by the user of the gateway only."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventer_bridge.backends import rocksdb
from eventer_bridge.control.client import SOCKET
from mariner.cli import main
from tests.support.gateway import gateway
from tests.support.peer import RawPeer, event, register_req


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """An umask that keeps nothing from anybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> set[int]:
    """Modes of all files in a directory."""
    return {stat.S_IMODE(i.lstat().st_mode) for i in directory.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run(*arguments: str | Path) -> None:
    result = CliRunner().invoke(main, [str(i) for i in arguments])
    assert result.exit_code == 0, result.output


async def test_store_backups_and_copies(tmp_path: Path) -> None:
    store, backup, cold, restored = (tmp_path / i for i in ("events", "hot", "cold", "restored"))
    async with gateway(tmp_path) as running, await RawPeer.init(running.port) as peer:
        assert (await peer.request(register_req(1, event("a"))))["success"]
        assert (store / SOCKET).is_socket()
        assert (mode(store), modes(store)) == (0o700, {0o600})
        run("backup", store, backup)
    run("backup", store, cold)
    run("restore", backup, restored)
    run("store", "compact", restored)
    for directory in (store, backup, cold, restored):
        assert (mode(directory), modes(directory)) == (0o700, {0o600}), directory
    assert os.umask(0) == 0  # commands leave that of others as it is


async def test_a_store_that_was_open_to_others_is_closed_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "events"
    async with await rocksdb.create(store):
        assert mode(store) == 0o700
    store.chmod(0o755)
    for file in store.iterdir():
        file.chmod(0o644)
    n_files = len(list(store.iterdir()))
    caplog.set_level("INFO")
    async with await rocksdb.create(store):
        assert mode(store) == 0o700
        told = [i for i in caplog.records if "can no longer access" in i.message]
        # the directory, and all but the LOG: RocksDB began another when it was looked at
        assert [vars(i)["files"] for i in told] == [n_files]
        assert mode(store / "IDENTITY") == 0o600  # RocksDB does not write it anew


async def test_a_checkpoint_that_a_library_makes_is_private(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path / "events"):
        await asyncio.to_thread(run, "backup", tmp_path / "events", tmp_path / "backup")
        assert (mode(tmp_path / "backup"), modes(tmp_path / "backup")) == (0o700, {0o600})
