"""Zeros ahead of the log: where its records end, and that nothing is written over."""

import errno
import os
import random
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import RocksDbBackend, directories, log_tail
from eventer_bridge.backends.rocksdb.log_files import check_log, list_logs
from eventer_bridge.backends.rocksdb.log_tail import find_end
from eventer_bridge.model import JsonPayload, QueryServerParams
from tests.eventer_bridge.backends.oracle import Writer, draft

BLOCK = 32 << 10
SMALL = 100


async def write(writer: Writer, n_bytes: int) -> None:
    text = random.Random(n_bytes).randbytes(n_bytes // 2).hex()
    await writer.session(draft(payload=JsonPayload.of(text)))


def ahead_bytes(path: Path) -> int:
    """Size of the last log behind what was acknowledged, all of it zero."""
    log = list_logs(path)[-1]
    data = log.read_bytes()
    end = log_tail.read(path)[-1].n_bytes
    assert end == find_end(log)
    assert not data[end:].strip(b"\0")
    assert len(data) in {end, len(data) // BLOCK * BLOCK}  # RocksDB refuses a part of a header
    return len(data) - end


async def is_whole(path: Path, copy: Path, writer: Writer) -> bool:
    """Whether the store, as kill -9 would leave it, has all that was registered."""
    directories.copy(path, copy)
    assert check_log(copy).torn is None
    async with await rocksdb.create(copy) as backend:
        return list((await backend.query(QueryServerParams(1))).events) == writer.events


async def test_records_are_written_over_the_zeros(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        await write(writer, SMALL)
        ahead = ahead_bytes(path)
        assert limits.LOG_AHEAD_BYTES - BLOCK < ahead <= limits.LOG_AHEAD_BYTES
        await write(writer, SMALL)
        assert ahead - 1_000 < ahead_bytes(path) < ahead
        # over block borders, up to the last zeros and beyond them
        for _ in range(60):
            await write(writer, 21_000)
            assert ahead_bytes(path) >= limits.LOG_AHEAD_COMMIT_BYTES
        for n_bytes in (BLOCK - 200, BLOCK, 3 * BLOCK, 20 * BLOCK, SMALL):
            await write(writer, n_bytes)
            ahead_bytes(path)
        assert await is_whole(path, tmp_path / "copy", writer)


async def test_large_commits_have_no_zeros_ahead(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        for _ in range(9):
            await write(writer, limits.LOG_AHEAD_COMMIT_BYTES)
        assert ahead_bytes(path) == 0
        await write(writer, SMALL)
        assert ahead_bytes(path) > 0


async def new_log(backend: RocksDbBackend) -> None:
    backend._store._families["event"].flush(True)


async def test_each_log_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        for _ in range(3):
            for _ in range(3):
                await write(writer, SMALL)
                ahead_bytes(path)
            await new_log(backend)
        await write(writer, SMALL)
        await write(writer, SMALL)
        assert ahead_bytes(path) > 0
        logs = list_logs(path)
        assert len(logs) > 1
        noted = {i.number: i.n_bytes for i in log_tail.read(path)}
        assert {int(i.stem): find_end(i) for i in logs} == noted
        assert await is_whole(path, tmp_path / "copy", writer)


async def test_a_disk_that_is_too_full_for_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def fail(file: int, data: bytes, offset: int) -> int:
        attempts.append(offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "store"
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        monkeypatch.setattr(os, "pwrite", fail)
        for _ in range(3):
            await write(writer, SMALL)
        monkeypatch.undo()
        assert len(attempts) == 1
        assert ahead_bytes(path) == 0
        assert await is_whole(path, tmp_path / "copy", writer)
