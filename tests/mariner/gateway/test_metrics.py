"""What ``/metrics`` tells of the process, the store, the loop and slow clients."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from eventer_bridge.net import limits
from mariner import limits as gateway_limits
from mariner.gateway.gateway import Gateway
from mariner.version import __version__
from tests.eventer_bridge.backends.faults import failing_for_good, held_sync
from tests.support.inprocess import metrics_of, metrics_of_wire, running_gateway
from tests.support.peer import RawPeer, event, register_req

HTTP: Final = {"host": "127.0.0.1", "port": 0}


async def until(gateway: Gateway, name: str, is_so: Callable[[float], bool]) -> None:
    """Scrape until a metric is so."""
    while not is_so((await metrics_of(gateway, name))[""]):
        await asyncio.sleep(0.01)


async def test_process_and_store(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store", http=HTTP) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        before = await metrics_of(gateway, "mariner_")
        for i in range(3):
            await peer.request(register_req(i, event("a"), event("b")))
        found = await metrics_of(gateway, "mariner_")
        process = await metrics_of(gateway, "process_")
        disk = os.statvfs(tmp_path)
    assert found[f'build_info{{version="{__version__}"}}'] == 1
    assert found["sessions_total"] >= before["sessions_total"] + 3
    assert found["sync_seconds_count"] == found["commit_seconds_count"]
    assert found["sync_seconds_count"] >= before["sync_seconds_count"] + 3
    assert 0 < found["sync_seconds_sum"] < found["commit_seconds_sum"]
    assert found["store_writable"] == 1
    assert found["store_compaction_bytes"] == 0
    assert found["store_free_bytes"] == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.2)
    assert not [i for i in found if "_created" in i]
    assert process["start_time_seconds"] < time.time()
    assert process["max_fds"] > process["open_fds"] > 0
    assert process["resident_memory_bytes"] > 1 << 20
    assert process["cpu_seconds_total"] > 0


async def test_queries_take_time(tmp_path: Path) -> None:
    query = {"msg_type": "query_req", "query_id": 1, "query_type": "latest", "event_types": [["a"]]}
    async with (
        running_gateway(path=tmp_path / "store", http=HTTP) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(query)
        await until(gateway, 'mariner_query_seconds_count{type="latest"}', lambda n: n == 1)
        found = await metrics_of(gateway, "mariner_query_seconds_")
    # the event loop's own clock moves in milliseconds
    assert 0 < found['sum{type="latest"}'] != pytest.approx(0.001, abs=1e-9)


async def test_a_slow_sync_is_seen(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store", http=HTTP) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await until(gateway, "mariner_pending_events", lambda count: count == 0)
        before = await metrics_of(gateway, "mariner_sync_seconds")
        with held_sync() as may_sync:
            peer.send(register_req(1, event("a")))
            await until(gateway, "mariner_pending_events", lambda count: count == 1)
            await asyncio.sleep(0.2)  # it takes at least that long
            may_sync.release()
            await peer.receive()
            found = await metrics_of(gateway, "mariner_sync_seconds")
    assert found['_bucket{le="0.1"}'] == before['_bucket{le="0.1"}']
    assert found["_count"] == before["_count"] + 1


async def test_a_store_that_fails_is_not_writable(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store", http=HTTP) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        with failing_for_good():
            peer.send(register_req(1, event("a")))
            await until(gateway, "mariner_store_writable", lambda value: value == 0)
        await until(gateway, "mariner_store_writable", lambda value: value == 1)


async def test_without_a_disk_none_is_told_of() -> None:
    async with running_gateway(http=HTTP) as gateway:
        found = await metrics_of(gateway, "mariner_store_")
    assert "events" in found
    assert "free_bytes" not in found


async def test_a_loop_that_is_late_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_limits, "LOOP_LAG_PERIOD_S", 0.01)
    async with running_gateway(http=HTTP) as gateway:
        await until(gateway, "mariner_loop_lag_seconds_count", lambda count: count > 0)
        time.sleep(0.6)  # noqa: ASYNC251  # that is the point
        await asyncio.sleep(0.02)
        found = await metrics_of(gateway, "mariner_loop_lag_seconds_")
        assert found['bucket{le="+Inf"}'] > found['bucket{le="0.5"}']
        assert found['bucket{le="0.5"}'] > 0


async def test_clients_that_do_not_read_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEND_HIGH_WATER_BYTES", 50_000)
    async with (
        running_gateway(http=HTTP) as gateway,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["*"]]) as slow,
        await RawPeer.init(gateway.mariner.port) as busy,
    ):
        idle = await metrics_of_wire(gateway, "mariner")
        assert idle["send_queue_bytes"] == idle["send_lag_seconds"] == 0
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        numbers = itertools.count()
        while (found := await metrics_of_wire(gateway, "mariner"))["send_lag_seconds"] == 0:
            for number in itertools.islice(numbers, 20):
                answer = await busy.request(register_req(number, event("a", value="x" * 50_000)))
                assert answer["success"]
        assert found["send_queue_bytes"] == found["send_queue_largest_bytes"] > 50_000
        later = await metrics_of_wire(gateway, "mariner")
        assert later["send_lag_seconds"] > found["send_lag_seconds"]
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        read = asyncio.ensure_future(slow.reader.read(-1))
        while (await metrics_of_wire(gateway, "mariner"))["send_queue_bytes"]:
            await asyncio.sleep(0.01)
        assert (await metrics_of_wire(gateway, "mariner"))["send_lag_seconds"] == 0
        read.cancel()


async def test_peers_cannot_add_series(tmp_path: Path) -> None:
    async def series() -> set[str]:
        return {*await metrics_of(gateway, "mariner_"), *await metrics_of(gateway, "process_")}

    async with running_gateway(path=tmp_path / "store", http=HTTP) as gateway:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            before = await series()
            for i in range(30):
                await peer.request(register_req(i, event("a", str(i)), event(f"b{i}")))
                await peer.request(register_req(i, event("?", str(i))))
            peer.send({"msg_type": "strange"})
            await peer.is_closed_by_server()
        for i in range(30):
            async with await RawPeer.connect(gateway.mariner.port) as stranger:
                stranger.send({"msg_type": "init_req", "client_name": f"n{i}", "x": i})
                await stranger.is_closed_by_server()
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{gateway.http and gateway.http.port}/path{i}"
                await (await session.get(url)).read()
        assert await series() == before
