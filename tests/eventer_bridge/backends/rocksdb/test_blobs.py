"""Large payloads: in files of their own, so that those who look for other rows pass them by."""

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control, keys
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.errors import StorageError
from eventer_bridge.model import BinaryPayload, Event, Order, QueryTimeseriesParams
from tests.eventer_bridge.backends.oracle import Writer, draft
from tests.eventer_bridge.backends.putting import put_in_steps

UPWARDS: Final = QueryTimeseriesParams(order=Order.ASCENDING)

LARGE: Final = BinaryPayload("t", random.Random(1).randbytes(limits.MIN_BLOB_BYTES))


async def make_store(path: Path) -> list[Event]:
    """A store with small events on both sides of a large one, all of it in files."""
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        for name in "a", "b", "c":
            await writer.session(draft(name))
        await writer.session(draft("b", payload=LARGE))
        await asyncio.to_thread(backend._store.family("event").flush, True)
    return writer.events


def blob(path: Path) -> Path:
    (found,) = path.glob("*.blob")
    return found


async def stored(path: Path) -> list[Event]:
    async with await rocksdb.create(path) as backend:
        return list((await backend.query(UPWARDS)).events)


async def test_a_large_payload_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    events = await make_store(tmp_path / "store")
    with control.open_read_only(tmp_path / "store") as store:
        event = store.family("event")
        n_sorted = event.property_int_value("rocksdb.total-sst-files-size")
        assert n_sorted is not None
        assert n_sorted < limits.MIN_BLOB_BYTES < store.file_bytes("event")
    assert await stored(tmp_path / "store") == events


async def test_it_is_copied(tmp_path: Path) -> None:
    events = await make_store(tmp_path / "store")
    await asyncio.to_thread(rocksdb.checkpoint, tmp_path / "store", tmp_path / "copy")
    assert blob(tmp_path / "copy").stat().st_mode & 0o077 == 0
    assert await stored(tmp_path / "copy") == events


async def test_its_place_is_used_again(tmp_path: Path) -> None:
    n_bytes = len(LARGE.data)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        family = backend._store.family("event")
        for _ in range(4):  # of the oldest of so many files what is left is written anew
            await writer.session(draft("a", payload=LARGE), draft("a", payload=LARGE))
            await asyncio.to_thread(family.flush, True)
        assert backend._store.file_bytes("event") > 8 * n_bytes
        family.delete(next(iter(family.keys())))
        await asyncio.to_thread(backend._store.ext_compact, "event")
        assert 7 * n_bytes < backend._store.file_bytes("event") < 8 * n_bytes


async def test_its_damage_is_found(tmp_path: Path) -> None:
    await make_store(tmp_path / "store")
    file = blob(tmp_path / "store")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    findings: list[Finding] = []
    with control.open_read_only(tmp_path / "store") as store:
        ext_verify(store, findings.append)
    assert findings
    with pytest.raises(StorageError, match="damaged"):
        await stored(tmp_path / "store")


async def test_others_are_found_without_it(tmp_path: Path) -> None:
    await make_store(tmp_path / "store")
    blob(tmp_path / "store").unlink()
    a, c = keys.encode_type_id(0), keys.encode_type_id(2)
    with control.open_read_only(tmp_path / "store") as store, store.in_use():
        assert [type_id for type_id, _ in store.ext_latest([a, c])] == [a, c]


async def test_its_row_is_made_in_one_step_and_put_in_the_next(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        (event,) = Writer(backend).make(draft("a", payload=LARGE))
        seen: list[tuple[int, bool]] = []  # rows that are made, and whether they are put
        for _ in put_in_steps(backend, [event]):
            for group in backend._groups:
                commit = group.commit
                is_put = commit.batch.size_in_bytes() > len(LARGE.data)
                seen.append((len(commit.rows or ()), is_put))
    assert seen[seen.index((1, False)) + 1] == (0, True)
