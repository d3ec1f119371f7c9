"""Events that are gone before a stream read them: told if they were deleted, and only then."""

import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from eventer_bridge.model import EventId, Order, QueryTimeseriesParams
from mariner_spark import limits
from mariner_spark.errors import DataLossError, HistoryError
from mariner_spark.source import options
from mariner_spark.source.gateway import GatewayClient as Connection
from mariner_spark.source.offsets import decode_offsets as decode
from mariner_spark.source.stream import StreamReader
from tests.spark.source.streams import (
    Offset,
    gateway_options,
    make_reader,
    next_offset,
    read_all,
    read_batch,
    values,
)
from tests.support.gateway import Gateway, gateway
from tests.support.peer import RawPeer, event, register_req

DELETED = r"^server 1: events behind {}/{} seem to be deleted .*failOnDataLoss=false goes on"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_PERIOD_S", 0.01)


@asynccontextmanager
async def forgetful(directory: Path, *subscription: str) -> AsyncIterator[Gateway]:
    """A gateway that keeps about 50 events of some types."""
    rule = {"subscriptions": [list(subscription)], "max_entries": 50}
    backend = {"type": "rocksdb", "path": str(directory / "events"), "retention": [rule]}
    async with gateway(directory, core={"backend": backend}) as running:
        yield running


async def register(running: Gateway, begin: int, end: int, *event_type: str) -> None:
    """Events with the values from begin to end, a session each."""
    async with await RawPeer.init(running.port) as peer:
        for value in range(begin, end):
            request = register_req(value, event(*event_type, value=value))
            assert (await peer.request(request))["success"]


def wait_deleted(running: Gateway, offset: Offset, *event_type: str) -> None:
    """Wait until the events of a type up to an offset are gone, and some more."""
    given = options.parse(gateway_options(running)).gateway
    until = decode(offset)[0][1]
    params = QueryTimeseriesParams([event_type], order=Order.ASCENDING)
    with Connection(given) as connection:
        while (first := connection.first(params)) is None or not is_behind(first.id, until):
            time.sleep(0.02)  # the gateway has to get on with it


def is_behind(event_id: EventId, until: EventId) -> bool:
    return event_id.session > until.session + 10


@pytest.mark.parametrize("subscription", [("*",), ("a",)])
@pytest.mark.parametrize("last", ["a", "lamp"])
async def test_events_that_were_deleted_unread_are_told(
    tmp_path: Path, subscription: tuple[str, ...], last: str
) -> None:
    """Whatever is kept besides, and whether the last event that was read is or not."""
    async with forgetful(tmp_path, *subscription) as running:
        await register(running, 0, 20, "a")
        await register(running, 20, 21, last)
        reader = make_reader(gateway_options(running))
        offset, rows = read_all(reader)
        assert len(values(rows)) == 21
        await register(running, 21, 150, "a")
        wait_deleted(running, offset, "a")
        end = next_offset(reader, offset)
        where = offset["1"]["session"], offset["1"]["instance"]
        with pytest.raises(DataLossError, match=DELETED.format(*where)):
            reader.partitions(offset, end)
        careless = make_reader(gateway_options(running), failOnDataLoss="false")
        left = values(read_batch(careless, offset, end))
        assert left[-30:] == [str(i) for i in range(120, 150)]
        reader.stop()


async def test_events_that_were_deleted_when_they_were_read_are_no_loss(tmp_path: Path) -> None:
    async with forgetful(tmp_path, "*") as running:
        reader = make_reader(gateway_options(running))
        offset, rows = read_all(reader)
        for begin in range(0, 200, 20):
            await register(running, begin, begin + 20, "a")
            offset, more = read_all(reader, offset)
            rows += more
        wait_deleted(running, {"1": {"session": 1, "instance": 1}}, "a")
        await register(running, 200, 220, "a")
        offset, more = read_all(reader, offset)
        assert values(rows + more) == [str(i) for i in range(220)]
        reader.stop()


async def test_numbers_that_a_crash_left_out_are_no_loss(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        await register(running, 0, 1, "a")
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()
        port = running.port
    async with gateway(tmp_path, port=port) as running:
        await register(running, 1, 2, "new")
        again = make_reader(gateway_options(running))
        end, rows = read_all(again, offset)
        assert values(rows) == ["1"]
        assert end["1"]["session"] > offset["1"]["session"] + 1_000
        again.stop()
    reader.stop()


async def test_numbers_that_a_client_may_not_see_are_no_loss(tmp_path: Path) -> None:
    mine: dict[str, Any] = {
        "name": "app",
        "token": "secret",
        "subscriptions": [["a", "*"]],
        "register_events": [{"subscriptions": [["*"]]}],
    }
    async with gateway(tmp_path, clients=[mine]) as running:
        await register(running, 0, 2, "a")
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        for value in range(2, 40, 2):
            await register(running, value, value + 1, "b")
            await register(running, value + 1, value + 2, "a", str(value % 4))
        await register(running, 40, 41, "a")
        _, rows = read_all(reader, offset)
        assert len(values(rows)) == 20
        reader.stop()


MACHINES: dict[str, Any] = {
    "name": "app",
    "token": "secret",
    "subscriptions": [["machine", "*"]],
    "register_events": [{"subscriptions": [["*"]]}],
}


@pytest.mark.parametrize("step", [1, 30])
async def test_only_new_types_are_no_loss_for_who_sees_a_part(tmp_path: Path, step: int) -> None:
    """Whether or not something that it may not see comes between the last ones."""
    async with gateway(tmp_path, clients=[MACHINES]) as running:
        await register(running, 0, 20, "machine", "old")
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        for begin in range(20, 50, step):
            await register(running, 0, 1, "hidden")
            await register(running, begin, begin + step, "machine", f"new {begin % 3}")
        _, rows = read_all(reader, offset)
        assert values(rows) == [str(i) for i in range(20, 50)]
        reader.stop()


async def test_a_loss_is_told_to_who_sees_a_part(tmp_path: Path) -> None:
    rule = {"subscriptions": [["*"]], "max_entries": 50}
    backend = {"type": "rocksdb", "path": str(tmp_path / "events"), "retention": [rule]}
    async with gateway(tmp_path, clients=[MACHINES], core={"backend": backend}) as running:
        await register(running, 0, 20, "machine", "a")
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        await register(running, 20, 150, "machine", "a")
        wait_deleted(running, offset, "machine", "a")
        with pytest.raises(DataLossError, match=r"^server 1: events behind .* seem to be deleted"):
            reader.partitions(offset, next_offset(reader, offset))
        reader.stop()


def poll(reader: StreamReader, offset: Offset) -> NoReturn:
    while True:
        assert next_offset(reader, offset) == offset


async def test_another_store_is_told(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        await register(running, 0, 20, "a")
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        port = running.port
    shutil.rmtree(tmp_path / "events")
    async with gateway(tmp_path, port=port) as running:
        careless = make_reader(gateway_options(running), failOnDataLoss="false")
        with pytest.raises(HistoryError, match=r"^server 1: .*its history is .* was followed"):
            next_offset(careless, offset)
        careless.stop()
        del offset["1"]["history"]  # a checkpoint of before
        for changed in (reader, make_reader(gateway_options(running))):
            with pytest.raises(DataLossError, match=r"^server 1: event \d+/\d+, which was read"):
                poll(changed, offset)
            changed.stop()
        now = make_reader(gateway_options(running))
        now.prepareForTriggerAvailableNow()
        with pytest.raises(DataLossError, match="is not there, nor any later one: another store"):
            next_offset(now, offset)
        careless = make_reader(gateway_options(running), failOnDataLoss="false")
        assert next_offset(careless, offset) == offset
        now.stop()
