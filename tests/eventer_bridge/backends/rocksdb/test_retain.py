"""Retention rules that are replaced while the store is open."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb.backend import RocksDbBackend
from tests.eventer_bridge.backends.oracle import Writer, numbered
from tests.eventer_bridge.backends.putting import put

RULE = RetentionRule((("a",),), max_entries=1_000_000)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[RocksDbBackend]:
    async with await rocksdb.create(tmp_path) as backend:
        yield backend


async def n_counted(backend: RocksDbBackend) -> int:
    """Events that retention knows of."""
    assert backend._retention is not None
    [share] = backend._retention._shares.all
    async with asyncio.timeout(60):
        while not share.is_known:
            await asyncio.sleep(0.001)
    assert share.n_types == 1
    return share.n_events


async def test_every_event_is_counted_once(backend: RocksDbBackend) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a", "a", "b"))
    registered = [put(backend, writer.make(*numbered("a", "b")))]  # gathers
    await backend.retain([RULE])
    registered += [put(backend, writer.make(*numbered("a"))) for _ in range(3)]
    await asyncio.gather(*registered)
    assert await n_counted(backend) == 6
    await writer.session(*numbered("a"))
    assert await n_counted(backend) == 7


async def test_rules_replace_rules(backend: RocksDbBackend) -> None:
    writer = Writer(backend)
    await writer.session(*numbered("a", "a"))
    for n in range(3):
        registered = [put(backend, writer.make(*numbered("a"))) for _ in range(5)]
        await backend.retain([RULE] * (n + 1))
        registered += [put(backend, writer.make(*numbered("a"))) for _ in range(5)]
        await asyncio.gather(*registered)
    await backend.retain([RULE])
    assert await n_counted(backend) == 32
    await backend.retain([])
    assert backend._retention is None
    await writer.session(*numbered("a"))


async def test_a_store_that_closes_meanwhile(tmp_path: Path) -> None:
    backend = await rocksdb.create(tmp_path, retention=[RULE])
    writer = Writer(backend)
    registered = put(backend, writer.make(*numbered("a")))
    await asyncio.gather(backend.retain([RULE]), backend.async_close())
    assert registered.exception() is None
    async with await rocksdb.create(tmp_path, retention=[RULE]) as backend:
        assert await n_counted(backend) == 1
