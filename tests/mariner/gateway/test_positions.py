"""Who has a cursor, and in which history it is: what the wire tells."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import CursorRow, cursor_key, decode_cursor, encode_row
from eventer_bridge.core.replay import Replay
from eventer_bridge.model import EventId, Timestamp
from mariner.gateway.gateway import Gateway
from tests.mariner.gateway.test_cursors import ack, cursors_of, find, reader, settled
from tests.mariner.gateway.test_replay import (
    connect,
    declined,
    id_of,
    received,
    register,
    serving,
    values,
)
from tests.support.peer import INIT, RawPeer
from tests.support.restoring import back_up, restore

WANTED: dict[str, Any] = {"subscriptions": [["a"]], "persisted": True}
CURSOR: dict[str, Any] = {**WANTED, "cursor": "c"}


@pytest.fixture(params=["memory", "rocksdb"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "rocksdb" else None


def attempt(number: int, process: str = "me") -> dict[str, Any]:
    return {"attempt": {"reader": process, "number": number}}


def own_history(gateway: Gateway) -> str:
    return gateway.core.histories[1].id


# --- histories ----------------------------------------------------------------------------


async def init(gateway: Gateway, **properties: Any) -> Any:
    async with await RawPeer.connect(gateway.mariner.port) as peer:
        peer.send({**INIT, **properties})
        return await peer.receive()


async def test_only_who_asks_is_told_the_histories(path: Path | None) -> None:
    async with serving(path) as gateway:
        told = [{"server_id": 1, "id": own_history(gateway)}]
        assert (await init(gateway, histories=[]))["histories"] == told
        assert (await init(gateway, histories=[{"server_id": 9, "id": "x"}]))["histories"] == told
        assert "histories" not in await init(gateway)
        assert "histories" not in await init(gateway, histories=None)
        assert (await init(gateway, histories=[{"server_id": 9}]))["success"] is False


async def test_a_start_of_another_history(path: Path | None) -> None:
    other = [{"server_id": 1, "id": "other"}]
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(3))
        start = [id_of(events[1])]
        reason = (
            f"server 1: its history is {own_history(gateway)}, but other was followed up to"
            f" session {events[1].id.session}"
        )
        async with await RawPeer.init(
            gateway.mariner.port, **WANTED, start=start, histories=other
        ) as peer:
            gap = await peer.receive()
            assert gap["other_history"] == {"last": 0, "reason": reason}
            assert (gap["server_id"], gap["oldest"]) == (1, id_of(events[0]))
            assert values(await received(peer)) == [0, 1, 2]
        text = await declined(gateway, start=start, histories=other, decline_gap=True)
        assert text == f"start: {reason}"
        own = [{"server_id": 1, "id": own_history(gateway)}]
        async with await RawPeer.init(
            gateway.mariner.port, **WANTED, start=start, histories=own
        ) as peer:
            assert values(await received(peer)) == [2]
        # whose events it does not want
        async with await RawPeer.init(
            gateway.mariner.port, **WANTED | {"server_id": 2}, start=start, histories=other
        ) as peer:
            assert await received(peer) == []


@pytest.mark.parametrize("followed", [{"histories": {1: "other"}}, {}], ids=str)
async def test_a_kept_cursor_of_another_history(tmp_path: Path, followed: dict[str, Any]) -> None:
    """It goes back, whoever takes it is told, until something is acknowledged."""
    key, now = cursor_key("app", "c"), Timestamp.now()
    async with await rocksdb.create(tmp_path / "store") as backend:
        row = encode_row(CursorRow([EventId(1, 10**6, 1)], now, **followed))
        await backend.keep_reader_rows({key: row})
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        await register(connection, *range(3))
        text = await declined(gateway, cursor="c", decline_gap=True)
        expected = "its history is" if followed else "event 1/1000000/1 is not stored here"
        assert expected in text
        for _ in range(2):
            async with reader(gateway) as peer:
                gap = await peer.receive()
                assert gap["server_id"] == 1
                assert expected in gap["other_history"]["reason"]
                found = await received(peer)
                assert values(found) == [0, 1, 2]
        async with reader(gateway) as peer:
            await peer.receive()
            peer.send(ack((await received(peer))[0]["id"]))
            await settled(peer)
        async with reader(gateway) as peer:
            assert values(await received(peer)) == [1, 2]
        kept = (await backend_row(gateway, key)).histories
        assert kept == {1: own_history(gateway)}


async def backend_row(gateway: Gateway, key: bytes) -> CursorRow:
    assert gateway.core.cursors is not None
    assert gateway.backend is not None
    await gateway.core.cursors.rows.flush()
    return decode_cursor(key, gateway.backend.reader_rows(key)[key])[2]


def test_a_row_of_an_earlier_version() -> None:
    value = b'{"seen":[{"server":1,"session":5,"instance":1}],"created":{"s":1,"us":0}}'
    _, _, row = decode_cursor(cursor_key("app", "c"), value)
    assert (row.seen, row.histories) == ([EventId(1, 5, 1)], {})


async def test_the_start_that_a_client_with_a_cursor_remembers(path: Path | None) -> None:
    """It is compared if its history is told; else it is where a new cursor begins."""
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(3))
        async with reader(gateway, start=[id_of(events[0])]) as peer:
            assert values(await received(peer)) == [1, 2]
        start = [{**id_of(events[0]), "session": 10**6}]
        async with reader(gateway, start=start, histories=[]) as peer:
            assert values(await received(peer)) == [1, 2]
        other = [{"server_id": 1, "id": "other"}]
        async with reader(gateway, start=start, histories=other) as peer:
            assert (await peer.receive())["other_history"]["last"] == 0
            assert values(await received(peer)) == [1, 2]


async def test_what_both_remember_counts(tmp_path: Path) -> None:
    """Of a cursor and its client, whichever has less in common with what is stored."""
    key = cursor_key("app", "c")
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        before = own_history(gateway)
        await register(connection, *range(3))
        await back_up(tmp_path / "store", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "store")
    async with await rocksdb.create(tmp_path / "store") as backend:
        row = CursorRow([EventId(1, 10**6, 1)], Timestamp.now(), histories={1: before})
        await backend.keep_reader_rows({key: encode_row(row)})
    async with serving(tmp_path) as gateway:
        async with reader(gateway) as peer:
            assert (await peer.receive())["other_history"]["last"] > 0
            assert values(await received(peer)) == []
        start = [{"server": 1, "session": 10**6, "instance": 1}]
        other = [{"server_id": 1, "id": "other"}]
        async with reader(gateway, start=start, histories=other) as peer:
            assert (await peer.receive())["other_history"]["last"] == 0
            assert values(await received(peer)) == []


async def test_what_the_client_remembers_counts_wherever_the_cursor_goes_meanwhile(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = await register(connection, *range(3))
        async with reader(gateway) as peer:
            await received(peer)
        find_gaps = Replay.find_gaps

        async def find_and_move(replay: Replay) -> bool:
            is_any = await find_gaps(replay)
            cursors_of(gateway).acknowledge(find(gateway), [events[0].id])
            return is_any

        monkeypatch.setattr(Replay, "find_gaps", find_and_move)
        start, other = [id_of(events[1])], [{"server_id": 1, "id": "other"}]
        async with reader(gateway, start=start, histories=other) as peer:
            assert (await peer.receive())["other_history"]["last"] == 0
            assert values(await received(peer)) == [1, 2]


# --- who has it ---------------------------------------------------------------------------


async def test_an_older_connection_of_a_process_does_not_take_it(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        async with reader(gateway, **attempt(2)) as newest:
            await received(newest)
            assert "newer connection of this process took it" in await refused(gateway, 1)
            await register(connection, 1)
            assert values(await received(newest, 1)) == [1]
            async with reader(gateway, **attempt(3)) as newer:
                assert (await newest.receive())["msg_type"] == "cursor_lost"
                await received(newer)
                # another process has it from now on; the first one's connections stay in order
                async with reader(gateway, **attempt(1, "another")) as another:
                    assert (await newer.receive())["msg_type"] == "cursor_lost"
                    await received(another)
                    assert "newer" in await refused(gateway, 2)
                    await settled(another)
        assert "newer" in await refused(gateway, 2)
        async with reader(gateway) as peer:  # of an earlier version
            await received(peer)


async def refused(gateway: Gateway, number: int) -> str:
    return await declined(gateway, cursor="c", **attempt(number))


async def test_so_many_processes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CURSOR_READERS", 2)
    async with serving(None) as gateway:
        for process in "abc":
            async with reader(gateway, **attempt(2, process)) as peer:
                await received(peer)
        assert [*find(gateway)._attempts] == ["b", "c"]


async def test_a_peer_that_is_gone_takes_nothing(path: Path | None) -> None:
    async with serving(path) as gateway, reader(gateway) as peer:
        await received(peer)
        holder = find(gateway).holder
        n_declined = gateway.mariner.stats.declined
        gone = await RawPeer.connect(gateway.mariner.port)
        gone.send({**INIT, **CURSOR})
        gone.writer.close()  # both leave before the gateway reads
        while gateway.mariner.stats.declined == n_declined:
            await asyncio.sleep(0)
        await settled(peer)
        assert find(gateway).holder is holder
