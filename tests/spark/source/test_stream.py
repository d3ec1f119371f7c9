"""The reader of streams without Spark around it: offsets, limits, gateways that come and go."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from eventer_bridge.model import Event
from mariner_spark import limits
from mariner_spark.errors import GatewayUnavailableError, HistoryError, OptionError
from tests.spark.source.streams import (
    gateway_options,
    make_like,
    make_reader,
    next_offset,
    read_all,
    read_batch,
    read_on,
    values,
)
from tests.spark.support import few, fill, in_order, many_events, plain_events, rows_of
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import CLIENTS
from tests.support.peer import RawPeer, event, register_req
from tests.support.restoring import back_up, restore


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_PERIOD_S", 0.01)


async def register(running: Gateway, *register_events: dict[str, Any]) -> None:
    async with await RawPeer.init(running.port) as peer:
        answer = await peer.request(register_req(1, *register_events))
        assert answer["success"], answer


@given(many_events, st.integers(5, 30), st.integers(1, 3))
@few
def test_every_event_once_and_equal(
    stored: list[Event], max_events: int, n_partitions: int
) -> None:

    async def check() -> None:
        with tempfile.TemporaryDirectory() as directory:
            fill(Path(directory, "events"), stored)
            async with gateway(Path(directory)) as running:
                reader = make_reader(
                    gateway_options(running),
                    maxEventsPerBatch=str(max_events),
                    partitions=str(n_partitions),
                    source_out_of_range="clip",
                )
                batches = [rows for _, rows in read_on(reader, reader.initialOffset())]
                reader.stop()
        assert all(0 < len(rows) <= max_events for rows in batches)
        found = [row for rows in batches for row in rows if row["server"] != 1]
        assert in_order(found) == rows_of(stored)

    asyncio.run(check())


async def test_slices_join_up(tmp_path: Path) -> None:
    stored = plain_events(9_000)
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        reader = make_reader(gateway_options(running), servers="7", partitions="3")
        begin = reader.initialOffset()
        end = next_offset(reader, begin)
        assert len(reader.partitions(begin, end)) == 3
        assert read_batch(reader, begin, end) == rows_of(stored)
        # the same batch once more, by another reader, gives the same
        again = make_reader(gateway_options(running), servers="7", partitions="2")
        assert read_batch(again, begin, end) == rows_of(stored)
        reader.stop()


async def test_what_comes_later_is_read_later(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        await register(running, event("a", value=1), event("b", value=2))
        reader = make_reader(gateway_options(running), types="a")
        offset, rows = read_all(reader)
        assert values(rows) == ["1"]
        await register(running, event("a", value=3), event("b", value=4))
        offset, rows = read_all(reader, offset)
        assert values(rows) == ["3"]
        assert next_offset(reader, offset) == offset
        reader.stop()


@pytest.mark.parametrize("text", ["latest", None])
async def test_where_a_query_begins(tmp_path: Path, text: str | None) -> None:
    async with gateway(tmp_path) as running:
        await register(running, event("a", value=1))
        before = make_reader(gateway_options(running), startingOffsets="latest").initialOffset()
        starting = text or msgspec.json.encode(before).decode()
        reader = make_reader(gateway_options(running), startingOffsets=starting)
        begin = reader.initialOffset()
        await register(running, event("a", value=2))
        assert values(read_all(reader, begin)[1]) == ["2"]
        reader.stop()


async def test_limits_share_a_batch_among_servers(tmp_path: Path) -> None:
    stored = plain_events(100) + plain_events(100, server=8)
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        reader = make_reader(gateway_options(running), servers="7,8")
        assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
        begin = reader.initialOffset()
        end = next_offset(reader, begin, ReadMaxRows(11))
        rows = read_batch(reader, begin, end)
        assert [row["server"] for row in rows] == [7] * 6 + [8] * 5
        reader.stop()


async def test_a_limit_below_the_number_of_servers_starves_none(tmp_path: Path) -> None:
    fill(tmp_path / "events", [i for n in (7, 8, 9) for i in plain_events(10, server=n)])
    async with gateway(tmp_path) as running:
        reader = make_reader(gateway_options(running), servers="7,8,9", maxEventsPerBatch="2")
        batches = read_on(reader, reader.initialOffset())
        rows = [row for _ in range(3) for row in next(batches)[1]]
        assert sorted(row["server"] for row in rows) == [7, 7, 8, 8, 9, 9]
        reader.stop()


async def test_reading_does_not_bring_about_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway tells of connections by events; those alone wait for others."""
    async with gateway(tmp_path) as running:
        await register(running, event("a", value=1))
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        await register(running)  # connects and leaves
        assert next_offset(reader, offset) == offset
        await register(running, event("a", value=2))
        offset, rows = read_all(reader, offset)
        assert values(rows) == ["2"]
        assert sum(row["type"] == ["event", "communication", "connected"] for row in rows) >= 2
        await register(running)
        assert next_offset(reader, offset) == offset
        monkeypatch.setattr(limits, "CONNECTION_EVENTS_WAIT_S", 0)  # long enough
        assert next_offset(reader, offset) != offset
        reader.stop()


async def test_what_is_available_now_has_an_end(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        await register(running, *[event("a", value=i) for i in range(10)])
        reader = make_reader(gateway_options(running), maxEventsPerBatch="4")
        reader.prepareForTriggerAvailableNow()
        begin = reader.initialOffset()
        await register(running, event("a", value=10))
        offset, rows = read_all(reader, begin)
        assert values(rows) == [str(i) for i in range(10)]
        # another run takes the rest, and ends although its own connection was announced
        reader = make_reader(gateway_options(running))
        reader.prepareForTriggerAvailableNow()
        assert values(read_all(reader, offset)[1]) == ["10"]
        reader.stop()


async def test_a_gateway_that_is_away_is_waited_for(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        await register(running, event("a", value=1))
        reader = make_reader(gateway_options(running))
        offset, _ = read_all(reader)
        await register(running, event("a", value=2))
        end = next_offset(reader, offset)
        port = running.port
        os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()
    assert next_offset(reader, end) == end
    batch = asyncio.create_task(asyncio.to_thread(read_batch, reader, offset, end))
    async with gateway(tmp_path, port=port) as running:
        assert values(await batch) == ["2"]
        await register(running, event("a", value=3))
        while (later := next_offset(reader, end)) == end:
            pass
        assert values(read_batch(reader, end, later)) == ["3"]
    reader.stop()


async def test_a_gateway_that_goes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task goes on where it was, and gives nothing twice."""
    monkeypatch.setattr(limits, "BATCH_ROWS", 1_000)
    stored = plain_events(12_000)
    fill(tmp_path / "events", stored)
    async with gateway(tmp_path) as running:
        reader = make_reader(gateway_options(running), servers="7", partitions="1")
        begin = reader.initialOffset()
        [partition] = reader.partitions(begin, next_offset(reader, begin))
        batches = reader.read(partition)
        found = next(batches).num_rows
        port = running.port
        os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()

    def read_rest() -> list[tuple[int, int]]:
        return [(i["session"], i["instance"]) for batch in batches for i in batch.to_pylist()]

    rest = asyncio.create_task(asyncio.to_thread(read_rest))
    async with gateway(tmp_path, port=port):
        ids = await rest
        assert ids == [(i.id.session, i.id.instance) for i in stored[found:]]
    reader.stop()


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Server 1, and server 2 that keeps the events of both."""
    for name in ("first", "second"):
        (directory / name).mkdir()
    listen = {"eventer_server": {"host": "127.0.0.1", "port": 0}}
    async with gateway(directory / "first", core=listen) as first:
        remote = {"server_id": 1, "host": first.host, "port": first.eventer_port}
        core = {"server_id": 2, "replication": [remote]}
        async with gateway(directory / "second", core=core) as second:
            yield first, second


async def test_events_that_two_gateways_have_are_read_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (first, second):
        await register(first, event("a", value=1))
        await register(second, event("a", value=2))
        reader = make_reader(gateway_options(first, second))
        offset, rows = read_all(reader)
        while len(values(rows)) < 2:
            offset, more = read_all(reader, offset)
            rows += more
        assert sorted(values(rows)) == ["1", "2"]
        assert sorted(offset) == ["1", "2"]
        # what only the first one has ...
        await register(first, event("a", value=3))
        end = offset
        while end["1"] == offset["1"]:
            end = next_offset(reader, offset)
        # ... is read from the second one, as soon as that has it, when the first is gone
        only_second = make_reader(gateway_options(second))
        while next_offset(only_second, offset).get("1", offset["1"]) != end["1"]:
            pass
        os.kill(first.pid, signal.SIGKILL)
        await first.process.wait()
        assert values(read_batch(reader, offset, end)) == ["3"]
        reader.stop()


@pytest.mark.parametrize("subscription", ["*", "?"])
async def test_gateways_with_different_events_of_a_server_are_refused(
    tmp_path: Path, subscription: str
) -> None:
    """Not only when a query begins: one may have been away. Who may see histories is told by
    them; who may not (`?`), by the times of events."""
    seen = {**CLIENTS[0], "subscriptions": [[subscription]]}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with (
        gateway(tmp_path / "one", clients=[seen]) as one,
        gateway(tmp_path / "two", clients=[seen]) as two,
    ):
        for value in range(3):
            await register(one, event("a", value=value))
            await register(two, event("a", value=value), event("b", value=value))
        await register(two, event("a", value=3))
        reader = make_reader(gateway_options(one, two))
        different = (
            r"histories of server 1, " if subscription == "*" else r"events of server 1 \(sess"
        )
        message = rf"^host: 127.* and 127.* have different {different}"
        for run in (reader.initialOffset, reader.prepareForTriggerAvailableNow):
            with pytest.raises(OptionError, match=message):
                run()
        alone = make_reader(gateway_options(one))
        with pytest.raises(OptionError, match=message):
            next_offset(reader, {})
        assert values(read_all(alone)[1]) == ["0", "1", "2"]
        reader.stop()


async def test_rights_bound_what_is_read(tmp_path: Path) -> None:
    clients: list[dict[str, Any]] = [
        {
            "name": "app",
            "token": "secret",
            "subscriptions": [["a", "*"]],
            "register_events": [{"subscriptions": [["*"]]}],
        },
        {"name": "nobody", "token": "secret", "subscriptions": [], "register_events": []},
    ]
    async with gateway(tmp_path, clients=clients) as running:
        await register(running, event("a", value=1), event("b", value=2), event("a", value=3))
        reader = make_reader(gateway_options(running))
        offset, rows = read_all(reader)
        assert [row["payload_json"] for row in rows] == ["1", "3"]
        await register(running, event("b", value=4), event("a", value=5), event("b", value=6))
        assert [row["payload_json"] for row in read_all(reader, offset)[1]] == ["5"]
        nobody = make_reader({**gateway_options(running), "client_name": "nobody"})
        with pytest.raises(OptionError, match=r"^servers: there are no events that this client"):
            nobody.initialOffset()
        reader.stop()
        nobody.stop()


async def test_a_new_query_needs_a_gateway(tmp_path: Path) -> None:
    reader = make_reader({"host": "127.0.0.1:1", "client_name": "app"})
    with pytest.raises(GatewayUnavailableError, match=r"^host, port: 127\.0\.0\.1:1: .*refused"):
        reader.initialOffset()
    async with gateway(tmp_path) as running:
        wrong = make_reader({**gateway_options(running), "token": "wrong"})
        with pytest.raises(OptionError, match=r"^client_name, token: .* declined: invalid client"):
            wrong.initialOffset()
        # one of two is enough
        hosts = f"127.0.0.1:1,{running.host}:{running.port}"
        reader = make_reader({**gateway_options(running), "host": hosts})
        assert reader.initialOffset() == {}
        await register(running, event("a", value=1))
        assert values(read_all(reader, {})[1]) == ["1"]
        reader.stop()


async def test_a_store_that_was_restored(tmp_path: Path) -> None:
    """Who has read more than was restored is told; who has not goes on."""
    store, backup = tmp_path / "events", tmp_path / "backup"
    async with gateway(tmp_path) as running:
        port = running.port
        reader = make_reader(gateway_options(running))
        await register(running, event("a", value=1))
        shared, rows = read_all(reader)
        assert values(rows) == ["1"]
        await back_up(store, backup)
        await register(running, event("a", value=2))
        end, rows = read_all(reader, shared)
        assert values(rows) == ["2"]
        assert shared["1"]["history"] == end["1"]["history"]
        reader.stop()
    restore(backup, store)
    async with gateway(tmp_path, port=port) as running:
        await register(running, event("a", value=3))
        again = make_reader(gateway_options(running))
        of_before = {"1": {i: end["1"][i] for i in ("session", "instance")}}
        for offset in (end, of_before):
            with pytest.raises(HistoryError, match="does not go on from the events that were read"):
                next_offset(again, offset)
            # the batch that was under way
            with pytest.raises(HistoryError, match="Begin a new query, with a new checkpoint"):
                again.partitions(shared, offset)
        at_once = make_like(again)
        at_once.prepareForTriggerAvailableNow()
        with pytest.raises(HistoryError):
            next_offset(at_once, end)
        for offset in (shared, {}):
            last, rows = read_all(make_like(again), offset)
            assert values(rows)[-1] == "3"
            assert "2" not in values(rows)
            assert last["1"]["history"] != end["1"]["history"]
        again.stop()


async def test_a_store_that_was_restored_while_a_batch_is_read(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        port = running.port
        reader = make_reader(gateway_options(running))
        await back_up(tmp_path / "events", tmp_path / "backup")
        await register(running, event("a", value=1))
        begin = reader.initialOffset()
        end = next_offset(reader, begin)
        [partition] = reader.partitions(begin, end)
        reader.stop()
    restore(tmp_path / "backup", tmp_path / "events")
    async with gateway(tmp_path, port=port):
        with pytest.raises(HistoryError):
            list(make_like(reader).read(partition))


async def test_gateways_of_which_one_was_restored(tmp_path: Path) -> None:
    """One that is behind is no other one; one that has gone another way is refused."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with gateway(tmp_path / "one"):
        pass
    shutil.copytree(tmp_path / "one" / "events", tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", tmp_path / "two" / "events")
    restore(tmp_path / "backup", tmp_path / "one" / "events")
    # the second one only keeps the events of the first one
    other = {"server_id": 2}
    async with gateway(tmp_path / "one") as one, gateway(tmp_path / "two", core=other) as two:
        await register(one, event("a", value=1))
        reader = make_reader(gateway_options(one, two), servers="1")
        assert values(read_all(reader)[1]) == ["1"]
        reader.stop()
    async with gateway(tmp_path / "two") as two:
        await register(two, event("a", value=2))
    async with gateway(tmp_path / "one") as one, gateway(tmp_path / "two", core=other) as two:
        reader = make_reader(gateway_options(one, two), servers="1")
        with pytest.raises(OptionError, match="have different histories of server 1, "):
            reader.initialOffset()
        reader.stop()
