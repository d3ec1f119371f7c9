"""Whether a store knows that it has all that it ever had."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import markers
from eventer_bridge.errors import StorageError
from tests.support.restoring import restore


async def is_whole(path: Path, *, note: bool = False) -> bool:
    async with await rocksdb.create(path) as backend:
        if note:
            await backend.note_whole()
        answer: bool = backend.is_whole
        return answer


async def test_the_same_store_stays_so_and_no_other_one_is(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert not await is_whole(store)
    assert await is_whole(store, note=True)
    assert await is_whole(store)
    moved = store.rename(tmp_path / "moved")
    assert await is_whole(moved)
    shutil.copytree(moved, store)
    assert not await is_whole(store)
    await asyncio.to_thread(rocksdb.checkpoint, moved, tmp_path / "backup")
    assert not (tmp_path / "backup" / markers.FILE).exists()
    restore(tmp_path / "backup", store)
    assert not await is_whole(store)
    assert await is_whole(moved)


async def test_a_copy_whose_file_has_the_same_number(tmp_path: Path) -> None:
    """In a file system of its own; told by the generation of its inodes, where they have one."""
    assert await is_whole(tmp_path, note=True)
    file = tmp_path / markers.FILE
    noted = json.loads(file.read_text())
    file.write_text(json.dumps(noted))
    assert await is_whole(tmp_path)
    file.write_text(json.dumps({**noted, "generation": (noted["generation"] or 0) ^ 1}))
    assert not await is_whole(tmp_path)


async def test_another_history_is_to_be_noted_anew(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await backend.note_whole()
        await backend.begin_history(1)
        assert not backend.is_whole
    assert not await is_whole(tmp_path)
    assert await is_whole(tmp_path, note=True)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b'{"history": 1}'])
async def test_a_file_of_something_else(tmp_path: Path, text: bytes) -> None:
    assert await is_whole(tmp_path, note=True)
    (tmp_path / markers.FILE).write_bytes(text)
    assert not await is_whole(tmp_path)


async def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        (tmp_path / f"{markers.FILE}.dbtmp").mkdir()
        with pytest.raises(StorageError, match="WHOLE: cannot be written: Is a directory"):
            await backend.note_whole()
        assert not backend.is_whole
