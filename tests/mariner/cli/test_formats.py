"""Upgrades: a store of a format that this version does not know is refused by every command, with
the reason, and stays as it is.

Nothing was released yet, so that there is one format. When another one replaces a released one, a
store of each released format has to be opened here.
"""

import asyncio
import json
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from eventer_bridge.backends.rocksdb.contents import FORMAT
from eventer_bridge.backends.rocksdb.database import synced
from eventer_bridge.backends.rocksdb.keys import FORMAT_KEY
from eventer_bridge.backends.rocksdb.store import Store
from tests.mariner.cli.test_store_commands import run
from tests.support.gateway import gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.process import ChildError

OTHERS = [FORMAT + 1, FORMAT - 1]


async def make_store(tmp_path: Path) -> Path:
    async with gateway(tmp_path) as running, await RawPeer.init(running.port) as peer:
        await peer.request(register_req(1, event("a")))
    return tmp_path / "events"


def change_format(path: Path, found: int) -> None:
    store = Store(path)
    batch = WriteBatch(raw_mode=True)
    batch.put(FORMAT_KEY, str(found).encode())
    store._db.write(batch, synced())
    store.ext_close()


def contents(path: Path) -> dict[str, bytes]:
    return {i.name: i.read_bytes() for i in path.iterdir() if i.is_file()}


@pytest.mark.parametrize("found", OTHERS)
async def test_another_format_is_refused(tmp_path: Path, found: int) -> None:
    path = await make_store(tmp_path)
    await asyncio.to_thread(change_format, path, found)
    before = contents(path)
    known = f"this version supports only format {FORMAT}"
    reason = f"{path}: the event store has format {found}, {known}"
    for command in (
        ("store", "info", path),
        ("store", "verify", path),
        ("store", "compact", path),
        ("backup", path, tmp_path / "backup"),
        ("backup", path, "--to", tmp_path / "backups"),
        ("restore", path, tmp_path / "restored"),
    ):
        result = await run(*command)
        assert (result.code, result.stdout) == (1, ""), command
        assert result.stderr == f"mariner: error: {reason}\n", command
        assert contents(path) == before, command
    with pytest.raises(ChildError, match="exit code 1"):
        await make_store(tmp_path)
    assert reason in (tmp_path / "gateway.log").read_text()
    assert contents(path) == before
    assert not (tmp_path / "restored").exists()


async def test_the_format_of_this_version(tmp_path: Path) -> None:
    path = await make_store(tmp_path)
    result = await run("store", "info", "--json", path)
    assert json.loads(result.stdout)["format"] == FORMAT
    assert await make_store(tmp_path) == path
