"""Registrations that come together are handled together, and as if they came one by one."""

from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.chatter.codec import Dialect, Msg
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import (
    MsgInitReq,
    MsgInitRes,
    MsgRegisterReq,
    MsgRegisterRes,
)
from eventer_bridge.model import Event, QueryTimeseriesParams
from eventer_bridge.net import limits as net_limits
from eventer_bridge.packed import Batch
from tests.eventer_bridge.chatter.peers import RawPeer
from tests.eventer_bridge.eventer.peers import (
    Peer,
    closed,
    initialised,
    register_event,
    serving,
)
from tests.support.gathering import note_gathered

REGISTER_REQ: Final = "HatEventer.MsgRegisterReq"
INIT: Final = codec.encode(MsgInitReq("peer", None, (), None, False))


def request(*names: str) -> bytes:
    """A registration of events with these names."""
    return codec.encode(MsgRegisterReq([register_event(i) for i in names]))[1]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return note_gathered(monkeypatch)


async def answers(peer: Peer, asked: list[chatter.Conversation]) -> list[Any]:
    """Answers to registrations: the sessions of their events, None where they were refused."""
    found: list[Any] = []
    for conversation in asked:
        response, message = await peer.receive(MsgRegisterRes)
        assert message.conversation is conversation
        assert message.is_last
        found.append(response.events and [i.id.session for i in response.events])
    return found


def together(peer: Peer, count: int, *names: str) -> list[chatter.Conversation]:
    """Registrations of events with these names, which leave in one piece."""
    events = [register_event(i) for i in names]
    return [peer.send(MsgRegisterReq(events), last=False) for _ in range(count)]


async def test_they_are_registered_together_and_answered_each(
    tmp_path: Path, gathered: list[int]
) -> None:
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        sessions = await answers(peer, together(peer, 50, "a"))
        first = sessions[0][0]
        assert sessions == [[first + i] for i in range(50)]
        assert gathered == [50]
        assert server.stats.frames_in == 51


async def test_whatever_comes_between_is_handled_in_its_place(
    tmp_path: Path, gathered: list[int]
) -> None:
    no_json = b"\x81" + b"\x81\x81a" + b"\x80" + b"\x81\x81\x81?"
    sent: list[Msg] = []
    expected: list[tuple[int, bool]] = []  # conversations, and whether it succeeds

    def send(data: bytes, *, succeeds: bool | None) -> None:
        number = len(sent) + 2
        sent.append(Msg(number, number, True, True, succeeds is None, REGISTER_REQ, data))
        if succeeds is not None:
            expected.append((number, succeeds))

    for _ in range(10):
        send(request("a"), succeeds=True)
        send(request("a"), succeeds=True)
        send(request("a", "?"), succeeds=False)
        sent.append(Msg(len(sent) + 2, len(sent) + 2, True, True, False, "HatChatter.Ping", b""))
        send(request(), succeeds=True)
        send(no_json, succeeds=False)
        send(request("unanswered"), succeeds=None)
        for _ in range(3):
            send(request("b"), succeeds=True)
    async with (
        serving(tmp_path / "store") as (server, core),
        await RawPeer.connect(server.address) as raw,
    ):
        raw.send(Msg(1, 1, True, True, False, *INIT))
        await raw.receive()
        raw.send(*sent)
        answers: list[tuple[int, bool]] = []
        n_pongs = 0
        while len(answers) < len(expected):
            message = await raw.receive()
            if message.type == "HatChatter.Pong":
                n_pongs += 1
            else:
                answer = codec.decode(message.type, message.data)
                answers.append((message.first, answer != MsgRegisterRes(None)))
        assert answers == expected
        assert n_pongs == 10
        unanswered = QueryTimeseriesParams([("unanswered",)])
        assert len((await core.query(unanswered)).events) == 10
        assert server.stats.frames_in == 1 + len(sent)
        assert server.stats.rejected == {"invalid event": 10, "invalid message": 10}
    assert max(gathered) == 6  # the last ones of a round, and the first of the next


async def test_a_wrong_message_closes_behind_those_before_it(
    tmp_path: Path, gathered: list[int]
) -> None:
    good = request("a")
    no_text = good.replace(b"a", b"\xff")
    wrong = [(7, good[:-1]), (7, good + b"x"), (7, no_text), (4, good)]  # the last begins again
    async with serving(tmp_path / "store") as (server, core):
        for n, (number, data) in enumerate(wrong, 1):
            async with await RawPeer.connect(server.address) as raw:
                raw.send(Msg(1, 1, True, True, False, *INIT))
                await raw.receive()
                requests = [Msg(i, i, True, True, False, REGISTER_REQ, good) for i in range(2, 7)]
                raw.send(*requests, Msg(number, number, True, True, False, REGISTER_REQ, data))
                await closed(server, "protocol error", n)
            stored: list[Event] = []
            while len(stored) < 5 * n:
                of_type = QueryTimeseriesParams([("a",)])
                stored = [*(await core.query(of_type)).events]
    assert gathered == [5, 5, 5]


async def test_what_comes_with_few_others_is_registered_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    n_peeked = 0
    peek = chatter.Connection.peek_requests

    def note(connection: chatter.Connection, msg_type: str, most: int) -> Any:
        nonlocal n_peeked
        n_peeked += 1
        return peek(connection, msg_type, most)

    monkeypatch.setattr(chatter.Connection, "peek_requests", note)
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        assert all(await answers(peer, together(peer, 3, "a")))
        assert gathered == []
        assert n_peeked == 0  # it would be in vain
        assert all(await answers(peer, together(peer, 4, "a")))
        assert gathered == [4]


async def test_the_core_gets_so_many_events_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 8)
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        assert all(await answers(peer, together(peer, 20, "a")))
        assert max(gathered) == 8
        gathered.clear()
        assert all(await answers(peer, together(peer, 20, "a", "b", "c")))
        assert max(gathered) == 3  # with 9 events, there are enough
        gathered.clear()
        await answers(peer, together(peer, 6) + together(peer, 6, "a", "b", "c"))
        assert gathered[0] == 7  # without events, each counts as one


async def test_each_gets_the_answer_to_its_own_request(tmp_path: Path) -> None:
    names = "abcdef"
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        for _ in range(2):  # once the types are known
            asked = {
                name: peer.send(MsgRegisterReq([register_event(name)]), last=name in "ad")
                for name in names
            }
            for name in "bcef":  # the others want none
                response, message = await peer.receive(MsgRegisterRes)
                assert message.conversation is asked[name]
                assert [i.type for i in response.events or ()] == [(name,)]


async def test_each_request_counts_as_one_event_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    gather = ClientRegistrations.gather

    def note(self: ClientRegistrations, batches: list[Batch]) -> None:
        n_before = self.n_gathered
        gather(self, batches)
        counts.append(self.n_gathered - n_before)

    monkeypatch.setattr(ClientRegistrations, "gather", note)
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        await answers(peer, together(peer, 9) + together(peer, 2, "a", "b", "c"))
    assert sum(counts) == 9 + 2 * 3


async def test_who_awaits_many_answers_is_not_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: list[int]
) -> None:
    monkeypatch.setattr(limits, "MAX_GATHERED_EVENTS", 4)
    monkeypatch.setattr(net_limits, "MAX_PEER_CONVERSATIONS", 6)
    most = 0
    take = chatter.Connection.take_requests

    def note(connection: chatter.Connection, ids: Any) -> Any:
        nonlocal most
        taken = take(connection, ids)
        most = max(most, connection._protocol.awaiting_reply)
        return taken

    monkeypatch.setattr(chatter.Connection, "take_requests", note)
    async with serving(tmp_path / "store") as (server, _), initialised(server) as peer:
        assert all(await answers(peer, together(peer, 50, "a")))
    assert 6 <= most < 6 + 4


async def test_what_has_to_be_checked_is_checked_request_by_request(gathered: list[int]) -> None:
    """It may take long, which the turn is to notice: rights of a new type, and each payload."""
    schema = {"$id": "test://n", "type": "integer"}
    rules = RegisterRule((("a",),)), RegisterRule((("n",),), "test://n")
    clients = [ClientConfig("writer", None, (), rules)]
    authenticator = Authenticator(clients, PayloadSchemas([schema]))
    async with (
        serving(authenticator=authenticator) as (server, _),
        initialised(server, name="writer") as peer,
    ):
        assert all(await answers(peer, together(peer, 1, "a")))  # it is known from now on
        assert all(await answers(peer, together(peer, 20, "a")))
        assert gathered == [20]
        gathered.clear()
        kinds = "aaaaban" * 4
        asked = [together(peer, 1, kind)[0] for kind in kinds]
        assert [bool(i) for i in await answers(peer, asked)] == [i != "b" for i in kinds]
        assert gathered == [4]  # the others were looked at together with them
        wrong = MsgRegisterReq([register_event("n", value="x")])
        asked = [peer.send(wrong, last=False) for _ in range(8)]
        assert not any(await answers(peer, asked))
        assert gathered == [4]
        assert server.stats.rejected == {"rights or schema": 12}


async def test_in_either_dialect(gathered: list[int]) -> None:
    async with serving() as (server, _):
        for dialect in Dialect:
            connection, peer = await chatter.connect(server.address, Peer, dialect=dialect)
            async with connection:
                await peer.request(MsgInitReq("peer", None, (), None, False), MsgInitRes)
                assert all(await answers(peer, together(peer, 20, "a")))
    assert gathered == [20, 20]
