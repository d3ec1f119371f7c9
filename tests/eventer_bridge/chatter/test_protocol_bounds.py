"""Pings, time and bounds of a protocol, and any bytes that a peer may send."""

import math
import tracemalloc
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.chatter.protocol import Conversation, Handled, Message, Turn
from eventer_bridge.errors import FrameError, LimitError, LocalProtocolError, RemoteProtocolError
from eventer_bridge.net import limits
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.protocols import DIALECTS, deliver, frame, make, msg, receive
from tests.eventer_bridge.chatter.samples import GOLDEN, PING, PONG, messages_of, msgs, next_message


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- ping ---------------------------------------------------------------------------------


@DIALECTS
def test_pings_are_answered_inside(dialect: Dialect) -> None:
    client, server = make(dialect), make(None)
    client.ping()
    client.ping()  # the first one waits for its answer
    ping = client.data_to_send()
    server.receive_data(ping)
    assert server.next_message() is Handled.PING
    assert server.dialect is dialect
    assert not server.has_begun
    pong = server.data_to_send()
    client.receive_data(pong)
    assert client.next_message() is Handled.PING
    assert client.open_conversations == server.open_conversations == 0
    client.ping()
    assert client.unsent_bytes == len(ping)
    if dialect is Dialect.CURRENT:
        assert (ping, pong) == (frame(PING), frame(PONG)) == (GOLDEN[0][2], GOLDEN[1][2])


def test_pings_are_counted_and_waited_for_without_end() -> None:
    clock = Clock()
    client, server = make(clock=clock), make(None)
    for number in range(1, 4):
        client.ping()
        clock.now += 1_000_000
        assert client.expire() == []  # its silence is a matter of `Liveness`
        assert client.is_pinging
        assert deliver(client, server) == []
        assert server.n_pongs == number
        assert deliver(server, client) == []
        assert not client.is_pinging
    assert client.n_pongs == 0


def test_a_ping_that_asks_nothing_is_not_answered() -> None:
    protocol = make(None)
    assert receive(protocol, msg(1, 1, msg_type="HatChatter.Ping", last=True)) == []
    assert not protocol.unsent_bytes
    assert protocol.open_conversations == 0


@pytest.mark.parametrize(
    "answer",
    [
        msg(1, 1, owner=False, msg_type="HatChatter.Pong"),
        msg(1, 1, owner=False, last=True, msg_type="T.A"),
    ],
)
def test_a_ping_is_answered_by_a_pong_only(answer: Msg) -> None:
    protocol = make()
    protocol.ping()
    with pytest.raises(RemoteProtocolError, match="answers a ping, expected a pong as the last"):
        receive(protocol, answer)


# --- time ---------------------------------------------------------------------------------


def test_who_waits_for_an_answer_times_out_once_and_drops_it_later() -> None:
    clock = Clock()
    client, server = make(clock=clock), make(None, clock=clock)
    late = client.send("T.Late", b"", last=False)
    slow = client.send("T.Slow", b"", last=False, timeout_s=60)
    forever = client.send("T.Forever", b"", last=False, timeout_s=math.inf)
    mine = client.send("T.Mine", b"", last=False, token=False)
    requests = deliver(client, server)
    clock.now += 5
    assert client.expire() == []
    clock.now += 1
    assert client.expire() == [late]
    assert late.is_expired
    clock.now += 100
    # who owes an answer has all the time; so has who holds the token
    assert server.expire() == [requests[3].conversation]
    assert client.expire() == [slow]
    clock.now += 1e9
    assert client.expire() == server.expire() == []
    for request in requests[:3]:
        server.send("T.Answer", b"", conversation=request.conversation)
    assert [i.conversation for i in deliver(server, client)] == [forever]
    assert client.open_conversations == 1
    client.send("T.Last", b"", conversation=mine)
    assert client.open_conversations == 0


def test_a_late_message_that_wants_an_answer_ends_the_conversation() -> None:
    clock = Clock()
    client, server = make(clock=clock), make(None, clock=clock)
    late = client.send("T.A", b"", last=False)
    [request] = deliver(client, server)
    clock.now += 6
    assert client.expire() == [late]
    server.send("T.B", b"", conversation=request.conversation, last=False, token=False)
    assert deliver(server, client) == []
    assert client.open_conversations == 1
    server.send("T.C", b"", conversation=request.conversation, last=False)
    assert deliver(server, client) == []
    assert client.open_conversations == 0
    with pytest.raises(LocalProtocolError, match="has ended"):
        client.send("T.D", b"", conversation=late)


def test_every_message_of_the_peer_begins_the_time_anew() -> None:
    clock = Clock()
    protocol = make(None, clock=clock, conversation_timeout_s=5)
    [message] = receive(protocol, msg(1, 1, token=False))
    for i in range(2, 6):
        clock.now += 4
        assert protocol.expire() == []
        receive(protocol, msg(i, 1, token=False))
    clock.now += 6
    assert protocol.expire() == [message.conversation]


# --- bounds -------------------------------------------------------------------------------


def test_frames_are_bounded_until_the_first_message_that_is_no_ping() -> None:
    small = {"max_first_frame_bytes": 100, "max_frame_bytes": 1000}
    large = encode_frame(bytes(500))
    for before in ([], [msg(1, 1, msg_type="HatChatter.Ping")]):
        protocol = make(None, **small)
        receive(protocol, *before)
        protocol.receive_data(large[:3])
        with pytest.raises(FrameError, match="frame of 500 bytes announced, at most 100 are"):
            protocol.next_message()
    protocol = make(None, **small)
    receive(protocol, msg(1, 1, last=True))
    assert protocol.has_begun
    body = encode(Msg(2, 2, True, True, True, "T.A", bytes(900)), Dialect.CURRENT)
    protocol.receive_data(encode_frame(body))
    message = next_message(protocol)
    assert message is not None
    assert len(message.data) == 900
    protocol.receive_data(encode_frame(bytes(1001))[:4])
    with pytest.raises(FrameError, match="frame of 1001 bytes announced, at most 1000 are"):
        protocol.next_message()


def test_conversations_of_the_peer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PEER_CONVERSATIONS", 3)
    protocol = make(None)
    waiting = receive(
        protocol, msg(1, 1), msg(2, 2), msg(3, 3, token=False), msg(4, 4, token=False)
    )
    is_full = [protocol.is_full]
    receive(protocol, msg(5, 5))
    is_full.append(protocol.is_full)
    protocol.send("T.A", b"", conversation=waiting[0].conversation)
    is_full.append(protocol.is_full)
    assert is_full == [False, True, False]
    receive(protocol, msg(6, 6, token=False))
    with pytest.raises(RemoteProtocolError, match="more than 3 conversations that the peer began"):
        receive(protocol, msg(7, 7, token=False))


def test_conversations_of_ours_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OWN_CONVERSATIONS", 2)
    protocol = make()
    for _ in range(2):
        protocol.send("T.A", b"", last=False)
    with pytest.raises(LimitError, match="2 conversations already wait for the peer"):
        protocol.send("T.A", b"", last=False)


def test_a_ping_is_a_message_too_so_that_who_sends_many_has_had_its_turn() -> None:
    protocol = make(None)
    ping = msg(2, 2, msg_type="HatChatter.Ping")
    protocol.receive_data(b"".join(frame(i) for i in (msg(1, 1, last=True), ping)))
    assert isinstance(protocol.next_message(), Message)
    assert protocol.next_message() is Handled.PING
    assert protocol.next_message() is None


def test_an_empty_frame_is_no_message() -> None:
    protocol = make(None)
    protocol.receive_data(b"\x01\x00")
    with pytest.raises(FrameError, match=r"^empty frame, expected a chatter message$"):
        protocol.next_message()


def test_the_end_of_the_stream() -> None:
    protocol = make(None)
    protocol.receive_eof()
    assert protocol.next_message() is None

    protocol = make(None)
    protocol.receive_data(frame(msg(1, 1, last=True)))
    protocol.receive_eof()
    assert protocol.next_message() is not None
    assert protocol.next_message() is None

    for size, text in ((1, "a frame header, 1 received"), (5, "a frame of 10 bytes, 3 received")):
        cut = frame(msg(1, 1, last=True))[:size]
        protocol = make(None)
        protocol.receive_data(cut)
        with pytest.raises(RemoteProtocolError) as e:
            protocol.receive_eof()
        assert str(e.value) == f"connection ended in the middle of {text}"
        protocol.receive_data(frame(msg(1, 1, last=True))[size:])
        assert protocol.next_message() is None
        protocol = make(None)
        protocol.receive_data(frame(msg(1, 1, last=True)) + cut)
        protocol.receive_eof()
        assert protocol.next_message() is not None
        with pytest.raises(RemoteProtocolError, match=text):
            protocol.next_message()


def test_the_end_of_the_stream_behind_messages_that_came_together() -> None:
    protocol = make(None)
    both = frame(msg(1, 1, last=True)) + frame(msg(2, 2, last=True))
    protocol.receive_data(both + b"\x01")
    assert protocol.next_message() is not None
    protocol.receive_eof()
    assert protocol.next_message() is not None
    with pytest.raises(RemoteProtocolError, match="the middle of a frame header, 1 received"):
        protocol.next_message()


def test_nothing_is_kept_of_a_connection_that_is_gone() -> None:
    protocol = make(None)
    protocol.receive_data(frame(msg(1, 1, last=True)) + frame(msg(2, 2, last=True)) + b"\x01")
    assert protocol.next_message() is not None
    assert protocol.buffered_bytes > 1
    protocol.discard()
    assert protocol.buffered_bytes == 0
    assert protocol.next_message() is None


# --- fuzzing ------------------------------------------------------------------------------


@DIALECTS
@given(data=st.data())
def test_two_protocols_agree_whatever_they_talk(dialect: Dialect, data: st.DataObject) -> None:
    """Both may do what the state allows, in any order and cut anywhere; all of it arrives."""
    peers = [make(dialect), make(None)]
    wires = [b"", b""]
    sent: list[list[tuple[str, bytes, bool]]] = [[], []]
    received: list[list[tuple[str, bytes, bool]]] = [[], []]
    known: list[dict[int, Conversation]] = [{}, {}]

    def take(receiver: int, size: int) -> None:
        sender = 1 - receiver
        wires[sender] += peers[sender].data_to_send()
        peers[receiver].receive_data(wires[sender][:size])
        wires[sender] = wires[sender][size:]
        for message in messages_of(peers[receiver]):
            received[receiver].append((message.type, message.data, message.is_last))
            known[receiver][id(message.conversation)] = message.conversation

    for _ in range(data.draw(st.integers(0, 30))):
        who = data.draw(st.integers(0, 1))
        action = data.draw(st.sampled_from(["send", "take", "ping"]))
        if action == "take":
            take(who, data.draw(st.integers(0, 80)))
        elif peers[who].dialect is not None and action == "ping":
            peers[who].ping()
        elif peers[who].dialect is not None:
            mine = [None, *(i for i in known[who].values() if i.may_send)]
            conversation = data.draw(st.sampled_from(mine))
            content = ("T.A", data.draw(st.binary(max_size=5)), data.draw(st.booleans()))
            conversation = peers[who].send(
                *content[:2],
                conversation=conversation,
                last=content[2],
                token=data.draw(st.booleans()),
            )
            known[who][id(conversation)] = conversation
            sent[who].append(content)
    for _ in range(2):  # the pongs of the first turn are taken in the second
        take(0, 1 << 20)
        take(1, 1 << 20)
    assert (received[1], received[0]) == (sent[0], sent[1])
    assert peers[0].open_conversations == peers[1].open_conversations
    for protocol, conversations in zip(peers, known, strict=True):
        alive = [i for i in conversations.values() if i.turn is not Turn.ENDED]
        assert protocol.open_conversations == len(alive)
        assert protocol.awaiting_reply == len([i for i in alive if not i.is_ours and i.may_send])


@given(st.lists(msgs(Dialect.CURRENT).map(frame) | st.binary(max_size=30), max_size=20), st.data())
def test_any_stream_is_taken_or_refused(pieces: list[bytes], data: st.DataObject) -> None:
    protocol = make(data.draw(st.sampled_from([None, *Dialect])))
    try:
        for piece in pieces:
            protocol.receive_data(piece)
            for message in messages_of(protocol):
                if message.conversation.may_send:
                    protocol.send("T.A", b"", conversation=message.conversation)
    except RemoteProtocolError:
        assert protocol.next_message() is None
    assert protocol.awaiting_reply == 0


SMALL: Final = st.builds(
    msg,
    st.integers(1, 4),
    st.integers(1, 4),
    owner=st.booleans(),
    token=st.booleans(),
    last=st.booleans(),
    msg_type=st.sampled_from(["T.A", "HatChatter.Ping", "HatChatter.Pong"]),
)


@given(st.lists(SMALL, max_size=12), st.booleans(), st.booleans())
def test_any_conversations_are_taken_or_refused(
    messages: list[Msg], do_answer: bool, do_ping: bool
) -> None:
    protocol = make()
    if do_ping:
        protocol.ping()
    protocol.send("T.A", b"", last=False)
    for one in messages:
        try:
            received = receive(protocol, one)
        except RemoteProtocolError:
            break
        for message in received:
            assert (message.conversation.turn is Turn.ENDED) is message.is_last is one.last
            if do_answer and message.conversation.may_send:
                protocol.send("T.A", b"", conversation=message.conversation)
    assert 0 <= protocol.awaiting_reply <= protocol.open_conversations <= len(messages) + 2


def test_memory_is_bounded_whatever_a_peer_begins() -> None:
    stream = b"".join(frame(msg(i, i, token=False)) for i in range(1, 3000))
    tracemalloc.start()
    try:
        protocol = make(None)
        protocol.receive_data(stream)
        with pytest.raises(RemoteProtocolError, match="more than 1024 conversations"):
            messages_of(protocol)
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current < 1_000_000
