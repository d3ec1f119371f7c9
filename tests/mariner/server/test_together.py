"""Registrations that come together are handled together, and as if they came one by one."""

import asyncio
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.net import limits as net_limits
from eventer_bridge.packed import Batch
from mariner.server.connection import ClientConnection
from tests.eventer_bridge.backends.faults import held_sync
from tests.support.gathering import note_gathered
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer, event, register_req


async def answered_ids(peer: RawPeer, count: int) -> list[int]:
    """Ids of the next registrations that are answered."""
    return [(await peer.receive())["register_id"] for _ in range(count)]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return note_gathered(monkeypatch)


@pytest.mark.parametrize("n_events", [0, 1, 3])
async def test_what_pauses_a_connection_does_so_in_the_middle_of_what_came_together(
    n_events: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 8)
    monkeypatch.setattr(limits, "MAX_REGISTRATIONS_IN_FLIGHT", 2)
    under_way: list[int] = []
    await_outcomes = ClientRegistrations.await_outcomes

    def note(self: ClientRegistrations, batches: list[Batch]) -> None:
        under_way.append(self._n_unanswered + len(batches))
        await_outcomes(self, batches)

    monkeypatch.setattr(ClientRegistrations, "await_outcomes", note)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        events = [event("a")] * n_events
        peer.send_together([register_req(i, *events) for i in range(100)])
        answers = [await peer.receive() for _ in range(100)]
        assert [i["register_id"] for i in answers] == list(range(100))
        assert all(i["success"] for i in answers)
        assert gateway.mariner.stats.frames_in == 101
    most = 8 if n_events <= 1 else 3  # with 9 events, there are enough
    assert max(under_way) == most
    assert max(gathered) == most


@pytest.mark.parametrize("sizes", [[3, 5, 1], [4, 4, 4, 4, 1], [8, 8], [9, 1], [7, 0, 1]])
async def test_the_core_gets_requests_up_to_the_one_that_fills_it(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 8)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(register_req(99, event("a")))
        counted = [*accumulate(max(size, 1) for size in sizes)]
        n_first = next(n for n, count in enumerate(counted, 1) if count >= 8)
        peer.send_together([register_req(i, *[event("a")] * n) for i, n in enumerate(sizes)])
        assert await answered_ids(peer, len(sizes)) == [*range(len(sizes))]
    assert gathered[0] == n_first


async def test_whatever_comes_between_is_handled_in_its_place(
    tmp_path: Path, gathered: list[int]
) -> None:
    wrong = {**register_req(0, event("a")), "register_events": [5]}
    query = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}
    messages: list[Any] = []
    expected: list[bool] = []
    for i in range(0, 60, 6):
        messages += [
            register_req(i, event("a")),
            register_req(i + 1, event("b"), event("?")),
            {"msg_type": "ping_req", "ping_id": i},
            {**register_req(i + 2, event("a")), "request_key": f"key {i}"},
            register_req(i + 3, event("a")),
            {**wrong, "register_id": i + 4},
            query,
            register_req(i + 5, event("a")),
        ]
        expected += [True, False, True, True, False, True]
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        peer.send_together(messages)
        answers = [await peer.receive() for _ in messages]
        assert gateway.mariner.stats.frames_in == 1 + len(messages)
    registered = [i for i in answers if i["msg_type"] == "register_res"]
    assert [i["register_id"] for i in registered] == list(range(60))
    assert [i["success"] for i in registered] == expected
    sessions = [i["events"][0]["id"]["session"] for i in registered if i["success"]]
    assert sessions == list(range(sessions[0], sessions[0] + len(sessions)))
    pongs = [i["ping_id"] for i in answers if i["msg_type"] == "ping_res"]
    assert pongs == list(range(0, 60, 6))
    assert gathered


async def test_rights_that_have_to_be_checked_are_checked_request_by_request(
    tmp_path: Path, gathered: list[int]
) -> None:
    """It may take long, which the turn is to notice."""
    rules = [{"subscriptions": [["a"]]}]
    async with (
        running_gateway([{**APP, "register_events": rules}], path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        for _ in range(2):
            peer.send_together([register_req(i, event("a")) for i in range(20)])
            assert await answered_ids(peer, 20) == [*range(20)]
        assert gathered == [19, 20]  # once it is known
        gathered.clear()
        kinds = "aabab" * 10
        peer.send_together([register_req(i, event(kind)) for i, kind in enumerate(kinds)])
        answers = [await peer.receive() for _ in kinds]
    assert [i["register_id"] for i in answers] == [*range(50)]
    assert [i["success"] for i in answers] == [i == "a" for i in kinds]
    assert gathered == [2, 1] * 10


async def test_who_has_payloads_checked_sends_nothing_together(
    tmp_path: Path, gathered: list[int]
) -> None:
    schema = {"$id": "test://n", "type": "integer"}
    rules = [{"subscriptions": [["a"]]}, {"subscriptions": [["n"]], "schema_id": "test://n"}]
    async with (
        running_gateway(
            [{**APP, "register_events": rules}], path=tmp_path / "store", schemas=[schema]
        ) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        values = [1, "x", 2] * 10
        peer.send_together([register_req(i, event("n", value=v)) for i, v in enumerate(values)])
        answers = [await peer.receive() for _ in values]
    assert [i["success"] for i in answers] == [isinstance(i, int) for i in values]
    assert not gathered


async def test_while_the_core_is_full_nothing_is_handed_over_of_those_that_came_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as first,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        assert (await first.request(register_req(0, event("a"))))["success"]
        with held_sync():
            monkeypatch.setattr(limits, "MAX_PENDING_EVENTS", 1)
            for client in first, peer:
                client.send_together([register_req(i, event("a")) for i in range(50)])
                while gateway.core.pending_events < 50:
                    await asyncio.sleep(0)
            while not any(i.pauses for i in gateway.mariner.connections):
                await asyncio.sleep(0)
            assert gateway.core.pending_events == 50
            assert len(gateway.core._waiting) == 1
        for client in first, peer:
            assert await answered_ids(client, 50) == list(range(50))


async def test_what_came_together_is_answered_when_its_own_commit_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(register_req(0, event("a")))
        monkeypatch.setattr(limits, "MAX_GROUP_EVENTS", 2)
        with held_sync() as may_sync:
            # not of known types only, they are handed to the store one by one
            peer.send_together([register_req(i, event("a", str(i))) for i in range(1, 5)])
            may_sync.release()
            assert await answered_ids(peer, 2) == [1, 2]
            assert (await peer.request({"msg_type": "ping_req", "ping_id": 1}))["ping_id"] == 1
        assert await answered_ids(peer, 2) == [3, 4]
        assert gathered == [4]


@pytest.mark.parametrize("limit", [("ANSWERED_EVENTS", 1), ("ANSWERED_BYTES", 1)])
async def test_what_came_together_is_answered_some_at_a_time(
    limit: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    """Else a client could have the answers to all it registered built up in memory."""
    sizes: list[int] = []
    send = ClientConnection.send_registered

    def note(self: ClientConnection, batches: list[Batch]) -> None:
        sizes.append(len(batches))
        send(self, batches)

    monkeypatch.setattr(ClientConnection, "send_registered", note)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        await peer.request(register_req(0, event("a")))
        monkeypatch.setattr(limits, *limit)
        peer.send_together([register_req(i, event("a")) for i in range(1, 8)])
        assert await answered_ids(peer, 7) == [*range(1, 8)]
    assert gathered == [7]
    assert max(sizes) == 2


async def test_a_flood_of_registrations_lets_others_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    count = 5 * net_limits.TURN_MESSAGES
    n_done: list[int] = []  # of the flood, when the other is heard
    flooders: list[ClientConnection] = []
    receive = ClientConnection.data_received

    def note(connection: ClientConnection, data: bytes) -> None:
        if len(data) > 10_000:
            flooders.append(connection)
        elif flooders:
            n_done.append(flooders[0].n_messages)
        receive(connection, data)

    monkeypatch.setattr(ClientConnection, "data_received", note)
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as flooder,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        flooder.send_together([register_req(i, event("a")) for i in range(count)])
        other.send({"msg_type": "ping_req", "ping_id": 1})
        assert (await other.receive())["msg_type"] == "ping_res"
        assert await answered_ids(flooder, count) == list(range(count))
    assert 1 < n_done[0] <= 1 + 2 * net_limits.TURN_MESSAGES
    assert max(gathered) > 1
