"""Conversations of two protocols with each other, and what a protocol takes from a bad peer."""

import math
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.chatter.conversation import Conversation, Turn
from eventer_bridge.chatter.protocol import ChatterProtocol, Handled, Message
from eventer_bridge.errors import (
    FrameError,
    InvalidMessageError,
    LimitError,
    LocalProtocolError,
    RemoteProtocolError,
)
from eventer_bridge.net import limits
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.samples import GOLDEN, PING, PONG, messages_of, msgs, next_message

DIALECTS: Final = pytest.mark.parametrize("dialect", Dialect)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(dialect: Dialect | None = Dialect.CURRENT, **arguments: Any) -> ChatterProtocol:
    return ChatterProtocol(dialect, **{"max_frame_bytes": 1 << 20, **arguments})


def frame(msg: Msg, dialect: Dialect = Dialect.CURRENT) -> bytes:
    return encode_frame(encode(msg, dialect))


def msg(
    msg_id: int,
    first: int,
    *,
    owner: bool = True,
    token: bool = True,
    last: bool = False,
    msg_type: str = "T.A",
) -> Msg:
    """A message of the peer."""
    return Msg(msg_id, first, owner, token, last, msg_type, b"")


def deliver(sender: ChatterProtocol, receiver: ChatterProtocol) -> list[Message]:
    receiver.receive_data(sender.data_to_send())
    return messages_of(receiver)


def receive(protocol: ChatterProtocol, *messages: Msg) -> list[Message]:
    protocol.receive_data(b"".join(frame(i) for i in messages))
    return messages_of(protocol)


# --- conversations ------------------------------------------------------------------------


@DIALECTS
def test_request_and_response(dialect: Dialect) -> None:
    client, server = make(dialect), make(None)
    asked = client.send("Mod.Ask", b"what", last=False)
    assert asked.is_ours
    assert not asked.may_send
    [request] = deliver(client, server)
    assert server.dialect is dialect
    assert (request.type, request.data) == ("Mod.Ask", b"what")
    assert request.is_first
    assert not request.is_last
    assert request.conversation.may_send
    assert request.conversation.tag is None
    assert not request.conversation.is_ours
    assert server.awaiting_reply == 1
    answered = server.send("Mod.Answer", b"that", conversation=request.conversation)
    assert answered is request.conversation
    assert server.awaiting_reply == server.open_conversations == 0
    [response] = deliver(server, client)
    assert response.conversation is asked
    assert (response.type, response.data) == ("Mod.Answer", b"that")
    assert not response.is_first
    assert response.is_last
    assert asked.turn is answered.turn is Turn.ENDED
    assert asked.deadline == answered.deadline == math.inf
    assert client.open_conversations == 0


@DIALECTS
def test_a_single_message(dialect: Dialect) -> None:
    client, server = make(dialect), make(None)
    assert client.send("Mod.Tell", b"").turn is Turn.ENDED
    [message] = deliver(client, server)
    assert message.is_first
    assert message.is_last
    assert message.conversation.turn is Turn.ENDED
    assert server.open_conversations == client.open_conversations == 0


def test_the_token_goes_to_and_fro() -> None:
    client, server = make(), make(None)
    ours = client.send("T.1", b"", last=False, token=False)
    assert ours.may_send
    client.send("T.2", b"", conversation=ours, last=False)
    first, second = deliver(client, server)
    theirs = first.conversation
    assert second.conversation is theirs
    assert (first.is_first, second.is_first) == (True, False)
    server.send("T.3", b"", conversation=theirs, last=False, token=False)
    server.send("T.4", b"", conversation=theirs, last=False)
    assert not theirs.may_send
    assert [i.type for i in deliver(server, client)] == ["T.3", "T.4"]
    client.send("T.5", b"", conversation=ours)
    [last] = deliver(client, server)
    assert last.is_last
    assert client.open_conversations == server.open_conversations == server.awaiting_reply == 0


def test_many_conversations_at_once_answered_in_any_order() -> None:
    client, server = make(), make(None)
    # both sides begin conversations, with the same identifiers
    ours = [client.send("T.A", bytes([i]), last=False) for i in range(50)]
    requests = deliver(client, server)
    theirs = [server.send("T.B", bytes([i]), last=False) for i in range(50)]
    assert [i.first_id for i in ours] == [i.first_id for i in theirs]
    for request in reversed(requests):
        server.send("T.C", request.data, conversation=request.conversation)
    messages = deliver(server, client)
    assert [i.type for i in messages] == ["T.B"] * 50 + ["T.C"] * 50
    assert [ours.index(i.conversation) for i in messages[50:]] == list(reversed(range(50)))
    for message in messages[:50]:
        client.send("T.D", b"", conversation=message.conversation)
    assert [theirs.index(i.conversation) for i in deliver(client, server)] == list(range(50))
    assert client.open_conversations == server.open_conversations == 0


def test_identifiers_of_a_peer_need_not_arrive_in_order() -> None:
    """hat-drivers numbers a message before it waits for its place in the queue."""
    assert len(receive(make(None), msg(7, 7), msg(3, 3), msg(5, 5, last=True))) == 3


# --- what may not be sent -----------------------------------------------------------------


def ended(protocol: ChatterProtocol) -> Conversation:
    return protocol.send("T.A", b"")


def without_token(protocol: ChatterProtocol) -> Conversation:
    return protocol.send("T.A", b"", last=False)


def of_another_connection(protocol: ChatterProtocol) -> Conversation:
    protocol.send("T.A", b"", last=False, token=False)
    return make().send("T.A", b"", last=False, token=False)


def answered(protocol: ChatterProtocol) -> Conversation:
    [message] = receive(protocol, msg(1, 1))
    return protocol.send("T.A", b"", conversation=message.conversation)


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (ended, "T.X: <conversation 1, ours> has ended"),
        (without_token, "T.X: the peer has the token of <conversation 1, ours>"),
        (of_another_connection, "T.X: <conversation 1, ours> has ended"),
        (answered, "T.X: <conversation 1, the peer's> has ended"),
    ],
)
def test_what_we_may_not_send(
    prepare: Callable[[ChatterProtocol], Conversation], text: str
) -> None:
    protocol = make()
    conversation = prepare(protocol)
    protocol.data_to_send()
    with pytest.raises(LocalProtocolError) as e:
        protocol.send("T.X", b"", conversation=conversation)
    assert str(e.value) == text
    assert not protocol.unsent_bytes


@DIALECTS
def test_a_message_in_parts_is_that_message(dialect: Dialect) -> None:
    parts, joined = make(dialect), make(dialect)
    for n_bytes in 0, 1, 100, 70_000:
        data = b"x" * n_bytes, b"", b"end"
        parts.send("Mod.Sent", data)
        joined.send("Mod.Sent", b"".join(data))
        assert parts.unsent_bytes == joined.unsent_bytes
    assert parts.data_to_send() == joined.data_to_send()
    assert parts.unsent_bytes == 0


@DIALECTS
def test_telling_is_sending_what_is_not_answered(dialect: Dialect) -> None:
    told, sent = make(dialect), make(dialect)
    for number in range(3_000):  # identifiers of one, two and three bytes
        data = b"the same" if number % 3 else bytes(number)
        told.send_alone("Mod.Told", data)
        sent.send("Mod.Told", data)
    data = told.data_to_send()
    assert data == sent.data_to_send()
    assert told.open_conversations == 0
    receiver = make(None)
    receiver.receive_data(data)
    messages = messages_of(receiver)
    assert len(messages) == 3_000
    assert all(i.is_first and i.is_last and i.type == "Mod.Told" for i in messages)


@DIALECTS
def test_an_answer_is_what_is_sent_last_in_a_conversation(dialect: Dialect) -> None:
    def asked(protocol: ChatterProtocol, n: int) -> list[Conversation]:
        data = b"".join(frame(msg(i, i), dialect) for i in range(1, n + 1))
        protocol.receive_data(data)
        return [i.conversation for i in messages_of(protocol)]

    answering, sending = make(dialect), make(dialect)
    n = 200  # identifiers of one and two bytes
    for i, (conversation, same) in enumerate(
        zip(asked(answering, n), asked(sending, n), strict=True)
    ):
        answering.answer(conversation, "Mod.Answer", bytes(i))
        sending.send("Mod.Answer", bytes(i), conversation=same)
        assert conversation.turn is same.turn is Turn.ENDED
        assert answering.awaiting_reply == sending.awaiting_reply == n - i - 1
    assert (answering.open_conversations, answering.n_sent) == (0, n)
    assert answering.data_to_send() == sending.data_to_send()


def test_what_may_not_be_answered() -> None:
    protocol = make()
    ended, theirs, waiting = (
        receive(protocol, msg(i, i, token=i != 3))[0].conversation for i in (1, 2, 3)
    )
    ours = protocol.send("T.A", b"", last=False)
    protocol.answer(ended, "T.A", b"")
    for conversation, text in (
        (ended, "T.B: <conversation 1, the peer's> has ended"),
        (waiting, "T.B: the peer has the token of <conversation 3, the peer's>"),
        (ours, "T.B: the peer has the token of <conversation 1, ours>"),
    ):
        with pytest.raises(LocalProtocolError, match=f"^{text}$"):
            protocol.answer(conversation, "T.B", b"")
    with pytest.raises(LocalProtocolError, match="expected a name with its module"):
        protocol.answer(theirs, "", b"")
    assert (protocol.awaiting_reply, protocol.open_conversations) == (1, 3)
    protocol.answer(theirs, "T.B", b"")
    assert (protocol.awaiting_reply, protocol.open_conversations) == (0, 2)


def test_nothing_can_be_sent_before_the_dialect_is_known() -> None:
    protocol = make(None)
    for send in (
        lambda: protocol.send("T.A", b""),
        lambda: protocol.send_alone("T.A", b""),
        protocol.ping,
    ):
        with pytest.raises(
            LocalProtocolError, match=r"^nothing can be sent before the peer's first message$"
        ):
            send()
    receive(protocol, msg(1, 1, last=True))
    assert protocol.send("T.A", b"").first_id == 1


def test_a_type_that_cannot_be_sent_costs_no_identifier() -> None:
    protocol = make()
    with pytest.raises(LocalProtocolError, match="expected a name with its module"):
        protocol.send("", b"", last=False)
    with pytest.raises(LocalProtocolError, match="expected a name with its module"):
        protocol.send_alone("", b"")
    assert protocol.open_conversations == 0
    assert protocol.send("T.A", b"").first_id == 1


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([msg(2, 1)], "message 2 (T.A) belongs to conversation 1 of its sender, which never began"),
        (
            [msg(2, 1, owner=False)],
            "message 2 (T.A) belongs to conversation 1 of its receiver, which never began",
        ),
        # the owner flag of an answer to nothing
        (
            [msg(1, 1, owner=False)],
            "conversation 1 of its receiver, which never began or has ended",
        ),
        ([msg(1, 1), msg(1, 1)], "message 1 (T.A) begins a conversation that is open already"),
        (
            [msg(1, 1), msg(2, 1)],
            "message 2 (T.A) belongs to <conversation 1, the peer's>,"
            " whose token its sender does not hold",
        ),
        ([msg(1, 1, last=True), msg(2, 1)], "conversation 1 of its sender, which never began or"),
        (
            [msg(1, 1, last=True, token=False), msg(2, 1)],
            "conversation 1 of its sender, which never began or",
        ),
        (
            [msg(1, 1, msg_type="HatChatter.Ping", token=False)],
            "message 1 (HatChatter.Ping) does not pass the token on",
        ),
        (
            [msg(1, 1, token=False), msg(2, 1, msg_type="HatChatter.Ping")],
            "message 2 (HatChatter.Ping) does not begin its conversation",
        ),
        (
            [msg(1, 1, msg_type="HatChatter.Pong")],
            "message 1 (HatChatter.Pong) belongs to <conversation 1, the peer's>, which is no ping",
        ),
    ],
)
def test_what_a_peer_may_not_send(messages: list[Msg], text: str) -> None:
    protocol = make(None)
    *allowed, wrong = messages
    receive(protocol, *allowed)
    with pytest.raises(RemoteProtocolError) as e:
        receive(protocol, wrong, msg(100, 100))
    assert text in str(e.value)
    # nothing is read from then on
    assert protocol.next_message() is None
    assert receive(protocol, msg(101, 101)) == []


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([msg(1, 1, owner=False, last=True)] * 2, "of its receiver, which never began or has"),
        ([msg(1, 1, owner=False)] * 2, "<conversation 1, ours>, whose token its sender does not"),
    ],
)
def test_answers_that_a_peer_may_not_give(answers: list[Msg], text: str) -> None:
    protocol = make()
    protocol.send("T.A", b"", last=False)
    with pytest.raises(RemoteProtocolError) as e:
        receive(protocol, *answers)
    assert text in str(e.value)


def test_a_peer_may_not_answer_while_the_token_is_ours() -> None:
    protocol = make()
    protocol.send("T.A", b"", last=False, token=False)
    with pytest.raises(RemoteProtocolError, match="whose token its sender does not hold"):
        receive(protocol, msg(1, 1, owner=False, last=True))


def test_the_dialect_cannot_be_changed() -> None:
    protocol = make(None)
    receive(protocol, msg(1, 1, last=True))
    protocol.receive_data(frame(msg(2, 2, last=True), Dialect.CLASSIC))
    with pytest.raises(
        InvalidMessageError, match="type: expected a name with its module, got 1 bytes"
    ):
        protocol.next_message()


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
