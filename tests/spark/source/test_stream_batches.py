"""Batches of few selected events among many: the gateway replays them, where it can."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.model import Event
from mariner_spark import limits, schema
from mariner_spark.source import stream
from mariner_spark.source.gateway import GatewayClient, Pages, ReplayRequest
from mariner_spark.source.rows import Columns
from mariner_spark.source.stream import StreamPartition
from tests.spark.source.streams import gateway_options, make_reader, next_offset, read_batch
from tests.spark.support import fill, plain_events, rows_of
from tests.support.gateway import gateway
from tests.support.hat_peers import CLIENTS, HOST

TYPE = "site/0/d3"
"""A tenth of the events."""

SELECTED = ("site", "0", "d3")


def connections() -> int:
    """Each has a thread."""
    return sum("run_forever" in i.name for i in threading.enumerate())


@pytest.fixture(name="replays")
def _replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ReplayRequest]]:
    """What gateways were asked to replay; that no connection is left is checked."""
    before = connections()
    asked: list[ReplayRequest] = []
    replay = GatewayClient.replay

    def noted(gateway: GatewayClient, wanted: ReplayRequest) -> Pages:
        asked.append(wanted)
        return replay(gateway, wanted)

    monkeypatch.setattr(GatewayClient, "replay", noted)
    yield asked
    assert connections() == before


def selected(events: Sequence[Event]) -> list[Event]:
    return [i for i in events if i.type == SELECTED]


def read(options: dict[str, str], stored: Sequence[Event]) -> Iterator[tuple[int, int, int]]:
    """Ids of the selected events, read by one task."""
    reader = make_reader(options, servers="7", types=TYPE)
    partition = StreamPartition(7, None, stored[-1].id)
    arrow = schema.arrow_schema(reader._schema)
    for batch in stream.read(reader._options, partition, Columns(arrow)):
        for row in batch.to_pylist():
            yield row["server"], row["session"], row["instance"]
    reader.stop()


def ids(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    return [(i.id.server, i.id.session, i.id.instance) for i in events]


@pytest.mark.parametrize("partitions", ["1", "2"])
@pytest.mark.parametrize("is_last_selected", [True, False])
async def test_few_of_many_events_are_replayed(
    tmp_path: Path, replays: list[ReplayRequest], partitions: str, *, is_last_selected: bool
) -> None:
    stored = plain_events(20_004 if is_last_selected else 20_009)
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        options = gateway_options(running)
        reader = make_reader(options, servers="7", types=TYPE, partitions=partitions)
        begin = reader.initialOffset()
        end = next_offset(reader, begin)
        assert len(reader.partitions(begin, end)) == int(partitions)
        assert read_batch(reader, begin, end) == rows_of(selected(stored))
        assert [i.last.server for i in replays] == [7] * int(partitions)
        assert read_batch(reader, begin, end) == rows_of(selected(stored))
        reader.stop()


async def test_what_many_pages_have_nothing_of(
    tmp_path: Path, replays: list[ReplayRequest]
) -> None:
    stored = plain_events(20_000)
    fill(tmp_path / "events", [i for i in stored if i.type != SELECTED or i.id.session < 10])
    async with gateway(tmp_path) as running:
        found = await asyncio.to_thread(lambda: list(read(gateway_options(running), stored[:-1])))
        assert found == ids(selected(stored[:90]))
        assert len(replays) == 1


@pytest.mark.parametrize(
    ("n_events", "types", "n_selected"),
    [
        (20_000, {}, 20_000),
        (20_000, {"types": "site/0/*,site/1/d5"}, 12_000),
        (4_000, {"types": TYPE}, 400),
    ],
)
async def test_others_are_read_by_pages(
    tmp_path: Path,
    replays: list[ReplayRequest],
    n_events: int,
    types: dict[str, str],
    n_selected: int,
) -> None:
    stored = plain_events(n_events)
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        reader = make_reader(gateway_options(running), servers="7", **types)
        begin = reader.initialOffset()
        assert len(read_batch(reader, begin, next_offset(reader, begin))) == n_selected
        assert not replays
        reader.stop()


async def test_a_gateway_that_declines_a_second_connection(
    tmp_path: Path, replays: list[ReplayRequest]
) -> None:
    stored = plain_events(20_000)
    fill(tmp_path / "events", stored)
    clients: list[dict[str, Any]] = [{**CLIENTS[0], "quota": {"max_connections": 1}}]
    async with gateway(tmp_path, clients=clients) as running:
        found = await asyncio.to_thread(lambda: list(read(gateway_options(running), stored)))
        assert found == ids(selected(stored))
        assert len(replays) == 1


async def test_a_relay_knows_no_replays(tmp_path: Path, replays: list[ReplayRequest]) -> None:
    stored = plain_events(20_000)
    for name in "server", "relay":
        (tmp_path / name).mkdir()
    fill(tmp_path / "server" / "events", stored)
    core = {"eventer_server": {"host": HOST, "port": 0}}
    async with gateway(tmp_path / "server", core=core) as server:
        remote = {"host": server.host, "port": server.eventer_port}
        async with gateway(tmp_path / "relay", remote=remote) as relay:
            found = await asyncio.to_thread(lambda: list(read(gateway_options(relay), stored)))
            assert found == ids(selected(stored))
            assert not replays


async def test_a_gateway_that_goes_while_it_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: list[ReplayRequest]
) -> None:
    """A task goes on where it was, and gives nothing twice."""
    monkeypatch.setattr(limits, "BATCH_ROWS", 100)
    stored = plain_events(200_000)
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        rows = read(gateway_options(running), stored)
        found = [next(rows)]
        while not replays:
            found.append(next(rows))
        found += [next(rows) for _ in range(500)]
        port = running.port
        os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()
    rest = asyncio.create_task(asyncio.to_thread(lambda: list(rows)))
    async with gateway(tmp_path, port=port):
        assert [*found, *await rest] == ids(selected(stored))
    assert len(replays) == 2


async def test_a_gateway_that_does_not_have_all_yet(
    tmp_path: Path, replays: list[ReplayRequest], caplog: pytest.LogCaptureFixture
) -> None:
    """It is not taken for complete when it is up to date."""
    stored = plain_events(30_000)
    fill(tmp_path / "events", stored[:20_000])
    async with gateway(tmp_path) as running:
        port = running.port
        rows = asyncio.create_task(
            asyncio.to_thread(lambda: list(read(gateway_options(running), stored)))
        )
        while "no gateway has all up to 3000/10" not in caplog.text:
            await asyncio.sleep(0.01)
    fill(tmp_path / "events", stored[20_000:])
    async with gateway(tmp_path, port=port):
        assert await rows == ids(selected(stored))
    assert [i.last.session > 2_000 for i in replays] == [True]
