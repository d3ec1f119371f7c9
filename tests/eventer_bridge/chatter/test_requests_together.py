"""Requests that are taken together: what both ends see is the same as one by one."""

import random
from typing import Any, Final

import pytest

from eventer_bridge.chatter.codec import Dialect, Msg, decode_requests, encode
from eventer_bridge.chatter.protocol import ChatterProtocol, Conversation, Message
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.protocols import DIALECTS, frame, make, msg, receive

REQUEST: Final = "T.Request"
TYPES: Final = (*(REQUEST,) * 12, "T.Other", "T.Requests")
PINGS: Final = {Dialect.CURRENT: "HatChatter.Ping", Dialect.CLASSIC: "HatPing.MsgPing"}
N_STREAMS: Final = 400


def stream(chance: random.Random, dialect: Dialect) -> list[bytes]:
    """What a peer sends, in chunks; most of it is right."""
    messages: list[bytes] = []
    counter = chance.choice([1, 60, 8_000, -5])
    for _ in range(chance.randrange(60)):
        counter += chance.choice([1] * 9 + [2])
        kind = chance.randrange(100)
        first = counter
        if kind < 3:
            first -= chance.randrange(4)  # a conversation that is open, or never was
        data = chance.randbytes(chance.choice([0, 1, 30, 70, 200]))
        msg_type = PINGS[dialect] if kind in (3, 4) else chance.choice(TYPES)
        flags = (True, True, False)
        if kind >= 92:
            flags = chance.random() < 0.5, chance.random() < 0.5, chance.random() < 0.5
        encoded = encode(Msg(counter, first, *flags, msg_type, data), dialect)
        if kind == 5 and chance.random() < 0.3:  # broken
            at = chance.randrange(len(encoded))
            encoded = encoded[:at] + chance.randbytes(chance.randrange(3)) + encoded[at + 1 :]
        elif kind == 6:  # zeros that need not be
            encoded = b"\x00" + encoded
        messages.append(encode_frame(encoded or b"?"))
    joined = b"".join(messages)
    cuts = sorted(chance.randrange(len(joined) + 1) for _ in range(chance.choice([0, 0, 1, 5])))
    return [joined[i:j] for i, j in zip([0, *cuts], [*cuts, len(joined)], strict=True)]


def begun(dialect: Dialect = Dialect.CURRENT) -> ChatterProtocol:
    """A protocol that has got a first message."""
    protocol = make(dialect)
    protocol.receive_data(frame(Msg(0, 0, True, True, True, "T.Hello", b""), dialect))
    assert isinstance(protocol.next_message(), Message)
    return protocol


def heard(chunks: list[bytes], dialect: Dialect, chance: random.Random | None) -> list[Any]:
    """What a protocol makes of it; with ``chance``, some requests are taken together."""
    protocol = begun(dialect)
    told: list[Any] = []
    for chunk in chunks:
        protocol.receive_data(chunk)
        conversations: list[Conversation] = []
        try:
            while True:
                if chance is not None:
                    most = chance.choice([4, 9, 50])
                    ids, data = protocol.peek_requests(REQUEST, most)
                    assert len(ids) == len(data)
                    taken = protocol.take_requests(ids[: chance.randrange(len(ids) + 1)])
                    conversations += taken
                    told += [
                        (i.first_id, i.turn, i.timeout_s, REQUEST, each, True, False)
                        for i, each in zip(taken, data, strict=False)
                    ]
                    if taken:
                        continue
                message = protocol.next_message()
                if message is None:
                    break
                if isinstance(message, Message):
                    conversations.append(message.conversation)
                    i = message.conversation
                    flags = message.is_first, message.is_last
                    told.append(
                        (i.first_id, i.turn, i.timeout_s, message.type, message.data, *flags)
                    )
                else:
                    told.append(message)
        except RemoteProtocolError as e:
            told.append(str(e))
        told += [protocol.awaiting_reply, protocol.open_conversations]
        for conversation in conversations:
            if conversation.may_send and conversation.first_id % 3:
                protocol.send("T.Answer", b"", conversation=conversation)
        # headers of messages that came together count until the last of them is taken
        told.append(bool(protocol.buffered_bytes))
        told.append(protocol.data_to_send())
    return told


@DIALECTS
def test_as_one_by_one(dialect: Dialect) -> None:
    n_told = n_together = 0
    for seed in range(N_STREAMS):
        chunks = stream(random.Random(seed), dialect)
        one_by_one = heard(chunks, dialect, None)
        assert heard(chunks, dialect, random.Random(seed)) == one_by_one, seed
        n_told += len(one_by_one)
        protocol = begun(dialect)
        protocol.receive_data(chunks[0])
        n_together += len(protocol.peek_requests(REQUEST, 50)[0])
    assert n_told > 20 * N_STREAMS  # few of them end early
    assert n_together > N_STREAMS


def test_nothing_is_taken_before_the_first_message() -> None:
    protocol = make()
    protocol.receive_data(frame(msg(1, 1)))
    assert protocol.peek_requests("T.A", 9) == ([], [])


def test_they_are_peeked_at_once() -> None:
    """Else each message in front of others could cost as much as all of them."""
    protocol = begun()
    protocol.receive_data(b"".join(frame(msg(i, i)) for i in range(2, 9)))
    ids, _ = protocol.peek_requests("T.A", 9)
    assert ids == [*range(2, 9)]
    assert [i.first_id for i in protocol.take_requests(ids[:3])] == [2, 3, 4]
    assert protocol.peek_requests("T.A", 9) == ([], [])
    for i in range(5, 9):
        message = protocol.next_message()
        assert isinstance(message, Message)
        assert message.conversation.first_id == i
    protocol.receive_data(b"".join(frame(msg(i, i)) for i in range(9, 15)))
    assert protocol.peek_requests("T.A", 5) == ([*range(9, 14)], [b""] * 5)


def test_few_are_faster_one_by_one() -> None:
    for count in 1, 3, 4:
        protocol = begun()
        protocol.receive_data(b"".join(frame(msg(i, i)) for i in range(2, 2 + count)))
        assert protocol.has_several is (count == 4)
        assert len(protocol.peek_requests("T.A", 9)[0]) == (4 if count == 4 else 0)
        assert not protocol.has_several


def test_those_that_one_of_them_spoils_are_looked_at_once() -> None:
    """Else each of them could cost as much as all."""
    protocol = begun()
    ids = [*range(2, 9), 8, 9, 10, 11, 12]
    protocol.receive_data(b"".join(frame(msg(i, i)) for i in ids))
    assert protocol.peek_requests("T.A", 8) == ([], [])
    for _ in range(7):
        assert not protocol.has_several
        assert isinstance(protocol.next_message(), Message)


@pytest.mark.parametrize("before", [[], [5]])
def test_one_that_begins_twice_ends_the_connection_in_its_place(before: list[int]) -> None:
    protocol = begun()
    ids = [2, 3, 5, 4] if before else [2, 3, 2, 4]
    receive(protocol, *(msg(i, i) for i in before))
    protocol.receive_data(b"".join(frame(msg(i, i)) for i in ids))
    assert protocol.peek_requests("T.A", 9) == ([], [])
    for i in ids[:2]:
        message = protocol.next_message()
        assert isinstance(message, Message)
        assert message.conversation.first_id == i
    with pytest.raises(RemoteProtocolError, match="begins a conversation that is open already"):
        protocol.next_message()
    assert protocol.peek_requests("T.A", 9) == ([], [])


@DIALECTS
def test_up_to_the_first_that_is_anything_else(dialect: Dialect) -> None:
    request = Msg(70, 70, True, True, False, "T.A", b"data")
    encoded = encode(request, dialect)
    for other in (
        encode(Msg(71, 70, True, True, False, "T.A", b"data"), dialect),
        encode(Msg(71, 71, False, True, False, "T.A", b"data"), dialect),
        encode(Msg(71, 71, True, False, False, "T.A", b"data"), dialect),
        encode(Msg(71, 71, True, True, True, "T.A", b"data"), dialect),
        encode(Msg(71, 71, True, True, False, "T.B", b"data"), dialect),
        encode(Msg(71, 71, True, True, False, "T.AB", b"data"), dialect),
        encoded + b"x",
        encoded[:-1],
        encoded[:1],
        b"\x00" * 11 + encoded,
    ):
        found = decode_requests([encoded, other, encoded], "T.A", dialect)
        assert found == ([70], [b"data"]), other
