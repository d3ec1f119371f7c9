"""``/readyz`` tells that something is stuck, without trying it."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.rocksdb.query import StoreReader
from eventer_bridge.backends.rocksdb.retention import Retention
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core.base import Stalls, Work
from eventer_bridge.model import QueryServerParams, QueryTimeseriesParams
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.backends.faults import full_disk, held_sync
from tests.support import proxy
from tests.support.event_servers import event_server, eventer_port
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

HTTP: Final = {"host": "127.0.0.1", "port": 0}
READY: Final = (200, "OPERATIONAL\n")


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Gateway]:
    rule = {"subscriptions": [["gone"]], "max_entries": 1}
    backend = {"type": "rocksdb", "path": str(path / "events"), "retention": [rule]}
    core = {"server_id": 1, "backend": backend}
    async with running_gateway(event_core=core, http=HTTP) as gateway:
        yield gateway


async def readiness(gateway: Gateway) -> tuple[int, str]:
    assert gateway.http is not None
    url = f"http://127.0.0.1:{gateway.http.port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def until_not_ready(gateway: Gateway) -> str:
    """Ask until it is not; returns why."""
    while (found := await readiness(gateway)) == READY:
        await asyncio.sleep(0.01)
    assert found[0] == 503
    return found[1]


async def until_ready(gateway: Gateway) -> None:
    while await readiness(gateway) != READY:
        await asyncio.sleep(0.01)


async def test_asking_stores_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        before = (await gateway.core.query(QueryServerParams(1))).events
        for _ in range(5):
            assert await readiness(gateway) == READY
        assert (await gateway.core.query(QueryServerParams(1))).events == before


async def test_what_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STALL_S", 0.05)
    async with serving(tmp_path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        await until_ready(gateway)
        with monkeypatch.context() as patch:
            patch.setattr(RocksDbBackend, "_commit_first", lambda backend: None)
            peer.send(register_req(1, event("a")))
            reason = await until_not_ready(gateway)
        gateway.backend._commit_first()  # type: ignore[union-attr]  # it is a RocksDbBackend
        assert "events wait for their commit, and none was done for " in reason
        await until_ready(gateway)


async def test_a_sync_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_TIMEOUT_S", 0.05)
    async with serving(tmp_path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        await until_ready(gateway)
        with held_sync():
            peer.send(register_req(1, event("a")))
            assert "the storage thread does not answer" in await until_not_ready(gateway)
        await until_ready(gateway)


async def test_a_storage_thread_that_hangs_although_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_TIMEOUT_S", 0.05)
    goes_on = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "ext_free_bytes", lambda store: 1 << 40 if goes_on.wait() else 0)
        async with serving(tmp_path) as gateway:
            for _ in range(3):
                assert "the storage thread does not answer" in await until_not_ready(gateway)
            goes_on.set()
            await until_ready(gateway)


async def test_what_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STALL_S", 0.05)
    goes_on = threading.Event()
    ext_timeseries = StoreReader.ext_timeseries

    def ext_hang(*arguments: object) -> object:
        goes_on.wait()
        return ext_timeseries(*arguments)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(StoreReader, "ext_timeseries", ext_hang)
    async with serving(tmp_path) as gateway:
        await until_ready(gateway)
        query = asyncio.ensure_future(gateway.core.query(QueryTimeseriesParams()))
        reason = await until_not_ready(gateway)
        goes_on.set()
        await query
        assert "1 queries wait for their answer, and none was done for " in reason
        await until_ready(gateway)


async def test_a_disk_that_is_full_although_nobody_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(limits, "MIN_FREE_BYTES", 1 << 60)
            assert "the disk is full: " in await until_not_ready(gateway)
        await until_ready(gateway)


async def test_a_memory_without_room_for_it_names_its_directory_and_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with running_gateway(http=HTTP) as gateway:
        assert isinstance(gateway.backend, RocksDbBackend)
        store = gateway.backend._store.path
        assert store.parent == tmp_path
        with monkeypatch.context() as patch:
            patch.setattr(Store, "ext_free_bytes", lambda _: limits.MIN_FREE_BYTES - 1)
            assert await until_not_ready(gateway) == (
                f"OPERATIONAL: {store}: the disk is full: 16777215 bytes are free,"
                " 16777216 are needed\n"
            )
        await until_ready(gateway)


async def test_a_store_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)
    async with serving(tmp_path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        with full_disk():
            peer.send(register_req(1, event("a")))
            while (await peer.receive())["msg_type"] != "register_res":
                pass
            assert (await until_not_ready(gateway)).startswith("STANDBY: ")
        await until_ready(gateway)


async def test_a_thread_that_ended_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.0)
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)

    def ext_look(retention: Retention) -> None:
        raise SystemExit  # of which no thread tells

    async with serving(tmp_path) as gateway:
        await until_ready(gateway)
        monkeypatch.setattr(Retention, "_ext_pass", ext_look)
        assert "a thread of the event store ended" in await until_not_ready(gateway)


async def test_a_relay_whose_server_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_STALL_S", 0.05)
    async with event_server(tmp_path, 1) as remote:
        address = {"host": proxy.HOST, "port": eventer_port(remote), "token": None}
        async with running_gateway(eventer=address, http=HTTP) as relay:
            await until_ready(relay)
            async with await RawPeer.init(relay.mariner.port) as peer:
                with held_sync():
                    peer.send(register_req(1, event("a")))
                    reason = await until_not_ready(relay)
                assert f"1 events wait for 127.0.0.1:{address['port']}, and none" in reason
                await until_ready(relay)


def test_what_goes_on_or_begins_anew_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STALL_S", 0.0)
    stalls = Stalls()
    looks = [
        (0, 0, False),
        (1, 0, False),  # came after the look before
        (1, 0, True),
        (1, 1, False),
        (5, 1, True),
        (0, 6, False),
        (3, 6, False),
        (0, 6, False),
        (3, 6, False),
        (3, 6, True),
    ]
    for n_waiting, n_done, is_stall in looks:
        found = stalls.look([Work("things", n_waiting, n_done)])
        assert (found is not None) is is_stall, (n_waiting, n_done)
    assert found == "3 things, and none was done for 0 s"
