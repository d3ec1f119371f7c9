"""Batches, whatever becomes of them, are freed at once: none is in a cycle, which would keep it,
and the message that it came in, until a collection (``gateway.memory``: that may take long)."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.packed import Batch
from tests.eventer_bridge.backends.faults import failing_for_good, held_sync, recovered
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.waiting import within


def batches() -> list[Batch]:
    return [i for i in gc.get_objects() if isinstance(i, Batch)]


@pytest.fixture(autouse=True)
def of_others() -> Iterator[list[Batch]]:
    """What other tests left; the collector does nothing meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield batches()
    finally:
        gc.enable()


async def none_is_left(of_others: list[Batch]) -> None:
    """Wait until no batch of this test lives: what is under way has to end first."""
    known = {id(i) for i in of_others}
    async with within("no batch is left"):
        while any(id(i) not in known for i in batches()):
            await asyncio.sleep(0.01)


async def answer(peer: RawPeer) -> Any:
    """The next one to a registration: of the state of the server it is told, too."""
    while (message := await peer.receive())["msg_type"] != "register_res":
        pass
    return message


def keyed(register_id: int, key: str, *events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**register_req(register_id, *events), "request_key": key, **more}


async def test_of_what_is_stored(tmp_path: Path, of_others: list[Batch]) -> None:
    async with (
        running_gateway(path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for number, events in enumerate(([event("a")], [event("a")] * 3_000, [])):
            assert (await peer.request(register_req(number, *events)))["success"]
        await none_is_left(of_others)


async def test_of_what_is_repeated(tmp_path: Path, of_others: list[Batch]) -> None:
    async with (
        running_gateway(path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        with held_sync() as may_sync:
            # the second while the first is under way, and once more when it is stored
            peer.send_together([keyed(n, "key", event("a")) for n in range(2)])
            may_sync.release(1000)
            assert all([(await peer.receive())["success"] for _ in range(2)])
        assert (await peer.request(keyed(2, "key", event("a"))))["success"]
        await none_is_left(of_others)


async def test_of_what_is_refused(tmp_path: Path, of_others: list[Batch]) -> None:
    async with (
        running_gateway(path=tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        assert (await peer.request(keyed(1, "key", event("a"))))["success"]
        for wrong in (
            register_req(2, event("?")),
            register_req(3, *[event("a")] * 70_000),
            keyed(4, "key", event("b")),
            keyed(5, "other", event("b"), after_key="absent"),
        ):
            assert not (await peer.request(wrong))["success"]
        await none_is_left(of_others)


async def test_of_a_store_that_failed(tmp_path: Path, of_others: list[Batch]) -> None:
    async with running_gateway(path=tmp_path) as gateway:
        backend = gateway.backend
        assert isinstance(backend, RocksDbBackend)
        async with await RawPeer.init(gateway.mariner.port) as peer:
            assert (await peer.request(register_req(1, event("a"))))["success"]
            with failing_for_good():
                for requests in (
                    [register_req(2, event("a"))],
                    [register_req(n, event("a")) for n in range(3, 6)],
                    [register_req(n, event("new", str(n))) for n in range(6, 9)],
                    [keyed(9, "key", event("a"))],
                    [register_req(10, *[event("a")] * 3_000)],
                ):
                    peer.send_together(requests)
                    answers = [await answer(peer) for _ in requests]
                    assert not any(i["success"] for i in answers)
            await recovered(backend)
            await none_is_left(of_others)
