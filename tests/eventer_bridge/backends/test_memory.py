"""The backend ``memory``: a store in a temporary directory, which goes with it."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend, StoreStats
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError
from eventer_bridge.model import QueryTimeseriesParams
from tests.eventer_bridge.backends.contract_keeping import KeepingContract
from tests.eventer_bridge.backends.oracle import Writer, draft


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def stores(directory: Path) -> list[Path]:
    return [*directory.iterdir()]


class TestMemory(KeepingContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        backend = await rocksdb.create_temporary()
        yield backend
        await backend.async_close()


async def test_it_is_empty_at_first_and_gone_at_last(directory: Path) -> None:
    for _ in range(2):
        async with await rocksdb.create_temporary() as backend:
            assert backend.control is None
            assert len(stores(directory)) == 1
            assert (await backend.query(QueryTimeseriesParams())).events == []
            await Writer(backend).session(draft("a"))
            assert backend.stats() == StoreStats(1, 1, 0)
        assert not stores(directory)


async def test_nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await rocksdb.create_temporary() as backend:
        monkeypatch.setattr(Store, "_failed", lambda _, error: error)
        store = backend._store
        monkeypatch.setattr(store, "_db", None)
        store.ext_sync()


CHILD = """
import asyncio, tempfile
from eventer_bridge.backends import rocksdb

async def run():
    await rocksdb.create_temporary()
    print(flush=True)
    await asyncio.sleep(60)

asyncio.run(run())
"""


async def test_what_a_killed_process_left_is_removed_by_the_next_one(directory: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert child.stdout is not None
    await child.stdout.readline()
    [left_over] = stores(directory)
    async with await rocksdb.create_temporary():
        assert left_over.exists()  # in use
        child.send_signal(signal.SIGKILL)
        await child.wait()
        async with await rocksdb.create_temporary():
            assert not left_over.exists()
            assert len(stores(directory)) == 2


async def test_a_directory_that_cannot_be_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "missing"))
    with pytest.raises(StorageError, match="cannot be written"):
        await rocksdb.create_temporary()


async def test_no_directory_that_can_be_used(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(directory / "missing")])
    with pytest.raises(
        StorageError, match=r"^No usable temporary directory found in \['.*missing'\]"
    ):
        await rocksdb.create_temporary()
