"""Conversations of two protocols with each other, and what may not be sent or taken."""

import math
from collections.abc import Callable

import pytest

from eventer_bridge.chatter.codec import Dialect, Msg
from eventer_bridge.chatter.protocol import ChatterProtocol, Conversation, Turn
from eventer_bridge.errors import InvalidMessageError, LocalProtocolError, RemoteProtocolError
from tests.eventer_bridge.chatter.protocols import DIALECTS, deliver, frame, make, msg, receive
from tests.eventer_bridge.chatter.samples import messages_of

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


# --- what may not be sent -----------------------------------------------------------------


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
    n, n_left = 200, 200  # identifiers of one and two bytes
    waiting, same = asked(answering, n), asked(sending, n)
    for size in (1, 0, 2, 150, 47):
        some, waiting = waiting[:size], waiting[size:]
        data = [bytes(i) for i in range(n - n_left, n - n_left + size)]
        answering.answer(some, "Mod.Answer", data)
        for i, conversation in zip(data, same[n - n_left :], strict=False):
            sending.send("Mod.Answer", i, conversation=conversation)
        n_left -= size
        assert {i.turn for i in some} <= {Turn.ENDED}
        assert answering.awaiting_reply == answering.open_conversations == n_left
        assert (answering.n_sent, answering.unsent_bytes) == (sending.n_sent, sending.unsent_bytes)
    assert n_left == 0
    assert answering.data_to_send() == sending.data_to_send()


def test_what_may_not_be_answered() -> None:
    protocol = make()
    ended, theirs, waiting = (
        receive(protocol, msg(i, i, token=i != 3))[0].conversation for i in (1, 2, 3)
    )
    ours = protocol.send("T.A", b"", last=False)
    protocol.answer([ended], "T.A", [b""])
    token = protocol.send("T.A", b"", last=False, token=False)
    for conversation, text in (
        (ended, "T.B: <conversation 1, the peer's> has ended"),
        (waiting, "T.B: the peer has the token of <conversation 3, the peer's>"),
        (ours, "T.B: the peer has the token of <conversation 1, ours>"),
        (token, "T.B: <conversation 3, ours> does not wait for an answer"),
    ):
        with pytest.raises(LocalProtocolError, match=f"^{text}$"):
            protocol.answer([theirs, conversation], "T.B", [b"", b""])
    with pytest.raises(LocalProtocolError, match="expected a name with its module"):
        protocol.answer([theirs], "", [b""])
    assert (protocol.awaiting_reply, protocol.open_conversations, protocol.n_sent) == (1, 4, 3)
    protocol.answer([theirs], "T.B", [b""])
    assert (protocol.awaiting_reply, protocol.open_conversations, protocol.n_sent) == (0, 3, 4)


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
