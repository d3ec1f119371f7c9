"""Messages that come together are what each of them is alone, however the stream is cut."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.model import JsonPayload, RegisterEvent
from eventer_bridge.net.framing import encode_frame
from eventer_bridge.net.limits import BATCH_BYTES
from eventer_bridge.packed import Batch, TypeTable
from mariner.errors import RemoteProtocolError
from mariner.wire import codec
from mariner.wire.messages import EventsMsg, Message, PingReq, RegisterReq
from mariner.wire.protocol import (
    LargeMessage,
    MarinerProtocol,
    Received,
    RefusedRegister,
    Role,
    State,
)
from tests.mariner.wire.message_generator import MessageGenerator
from tests.mariner.wire.samples import SAMPLES

EVENT = RegisterEvent(("a",), None, JsonPayload.of(1))
REGISTER = RegisterReq(1, (EVENT,))

GOOD = {
    "registration": codec.encode(REGISTER),
    "of many bytes": codec.encode(RegisterReq(2, (EVENT,) * 9)),
    "of many bytes of payload": codec.encode(
        RegisterReq(3, (RegisterEvent(("a",), None, JsonPayload.of("x" * 300)),))
    ),
    "beyond ASCII": codec.encode(RegisterReq(4, (RegisterEvent(("žižula",), None, None),))),
    "ping": codec.encode(PingReq(5)),
    "query": codec.encode(SAMPLES["query_req, latest"]),
    "lenient": b'{"msg_type":"ping_req","ping_id":6.0,"more":1}',
    "refused": b'{"msg_type":"register_req","register_id":7,"register_events":[{"type":["a"]}]}',
    "refused, too deep": codec.encode(REGISTER).replace(
        b'"data":1', b'"data":' + b"[" * 200 + b"]" * 200
    ),
}
WRONG = {
    "no JSON": b"no JSON",
    "no UTF-8": codec.encode(REGISTER).replace(b'"data":1', b'"data":"\xff"'),
    "wrong query": codec.encode(SAMPLES["query_req, server"]).replace(b"100", b"-100"),
    "of a server": codec.encode(EventsMsg([])),
    "second init_req": codec.encode(SAMPLES["init_req"]),
    "empty": b"",
}
ALL = {**GOOD, **WRONG}


def open_server() -> MarinerProtocol:
    server = MarinerProtocol(Role.SERVER)
    server.receive_data(encode_frame(codec.encode(SAMPLES["init_req"])))
    assert server.next_message() == SAMPLES["init_req"]
    server.send(SAMPLES["init_res, success"])
    return server


def taken(server: MarinerProtocol, n_most: int = 1000) -> list[Received | str]:
    """Messages, and the error behind them, some of those that come together at a time."""
    found: list[Received | str] = []
    try:
        while messages := server.next_messages():
            found += messages[:n_most]
            del messages[:n_most]
    except RemoteProtocolError as e:
        found.append(str(e))
        assert server.state is State.CLOSED
    return found


def alone(message: bytes) -> list[Received | str]:
    server = open_server()
    server.receive_data(encode_frame(message))
    return taken(server)


@given(
    st.lists(st.sampled_from([*GOOD, *["registration"] * len(GOOD)]), max_size=40),
    st.lists(st.sampled_from(list(ALL)), max_size=3),
    st.integers(1, 50),
    st.data(),
)
def test_any_messages_in_any_pieces(
    good: list[str], more: list[str], n_most: int, data: st.DataObject
) -> None:
    names = good + more
    stream = b"".join(encode_frame(ALL[i]) for i in names)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    server = open_server()
    found: list[Received | str] = []
    for begin, end in pairwise([0, *sorted(cuts), len(stream)]):
        server.receive_data(stream[begin:end])
        found += taken(server, n_most)
    expected: list[Received | str] = []
    for name in names:
        expected += alone(ALL[name])
        if name in WRONG:
            break
    else:
        assert server.buffered_bytes == 0
    assert found == expected


@pytest.mark.parametrize("seed", range(4))
def test_what_is_decoded_together_is_decoded_the_same(seed: int) -> None:
    generator = MessageGenerator(seed)
    messages = [generator.message() for _ in range(2_000)]
    n_together = 0
    for begin in range(0, len(messages), 16):
        batch = messages[begin : begin + 16]
        while batch:
            decoded = codec.read_several(batch, None)
            assert decoded == [codec.decode(i) for i in batch[: len(decoded)]]
            n_together += len(decoded)
            batch = batch[len(decoded) + 1 :]
    assert n_together > 500


@pytest.mark.parametrize("name", GOOD)
def test_what_typed_decoding_accepts_ends_no_batch(name: str) -> None:
    batch = [GOOD["registration"], GOOD[name], GOOD["ping"]]
    n_decoded = 1 if name.startswith(("lenient", "refused")) else 3
    assert len(codec.read_several(batch, None)) == n_decoded


@pytest.mark.parametrize("name", WRONG)
def test_messages_before_a_wrong_one_are_taken_and_answered(name: str) -> None:
    server = open_server()
    server.receive_data(
        b"".join(map(encode_frame, [GOOD["registration"], GOOD["ping"], WRONG[name], GOOD["ping"]]))
    )
    assert server.next_message() == REGISTER
    assert server.next_message() == PingReq(5)
    assert server.send(SAMPLES["ping_res"])  # is not closed yet
    with pytest.raises(RemoteProtocolError) as e:
        server.next_message()
    assert [str(e.value)] == alone(WRONG[name])
    assert server.next_messages() == []


def test_what_is_not_taken_comes_again_and_is_buffered() -> None:
    server = open_server()
    data = encode_frame(GOOD["registration"])
    server.receive_data(data * 3 + data[:5])
    messages = server.next_messages()
    assert messages == [REGISTER] * 3
    del messages[0]
    assert server.buffered_bytes > 5
    server.receive_data(data[5:])
    assert server.next_messages() == [REGISTER] * 2
    messages.clear()
    assert server.buffered_bytes == len(data)
    server.next_messages().clear()
    assert server.buffered_bytes == 0
    server.receive_data(data * 3 + encode_frame(GOOD["lenient"]) * 2)
    assert server.next_message() == REGISTER
    server.discard()
    assert server.buffered_bytes == 0
    assert server.next_messages() == []


@pytest.mark.parametrize("kind", ["ping", "lenient"])
@pytest.mark.parametrize("n_taken", range(3))
def test_an_end_in_the_middle_of_a_message_is_told_behind_those_before(
    n_taken: int, kind: str
) -> None:
    server = open_server()
    server.receive_data(encode_frame(GOOD["ping"]) + encode_frame(GOOD[kind]) * 2 + b"\x01\x0aabc")
    before = [server.next_message() for _ in range(n_taken)]
    server.receive_eof()
    before += [server.next_message() for _ in range(3 - n_taken)]
    assert before == [PingReq(5), *alone(GOOD[kind]), *alone(GOOD[kind])]
    with pytest.raises(RemoteProtocolError, match="a frame of 10 bytes, 3 received"):
        server.next_message()


def test_one_that_is_large_for_its_client_is_decoded_later_though_it_came_with_others() -> None:
    server = open_server()
    server.large_bytes = len(GOOD["ping"])
    server.receive_data(
        encode_frame(GOOD["ping"]) + encode_frame(GOOD["registration"]) + encode_frame(GOOD["ping"])
    )
    assert taken(server) == [PingReq(5), LargeMessage(GOOD["registration"]), PingReq(5)]


def test_few_bytes_are_decoded_before_the_first_is_taken() -> None:
    server = open_server()
    data = encode_frame(GOOD["registration"])
    server.receive_data(data * 1000)
    assert len(server.next_messages()) == BATCH_BYTES // len(data)


@pytest.mark.parametrize("name", ["lenient", "refused", "refused, too deep", "ping"])
def test_each_message_is_looked_at_twice_at_most(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client whose messages all have to be dealt with alone would pay for it often."""
    n_looked_at: list[int] = []
    read_several = codec.read_several

    def noting(messages: Sequence[bytes], types: TypeTable | None) -> list[Message | Batch]:
        n_looked_at.append(len(messages))
        return read_several(messages, types)

    monkeypatch.setattr(codec, "read_several", noting)
    server = open_server()
    server.receive_data(encode_frame(GOOD[name]) * 500)
    assert len(taken(server)) == 500
    assert 490 < sum(n_looked_at) <= 500


def test_nothing_is_decoded_ahead_before_the_connection_is_open() -> None:
    server = MarinerProtocol(Role.SERVER)
    init: Message = SAMPLES["init_req"]
    server.receive_data(encode_frame(codec.encode(init)) + encode_frame(GOOD["ping"]) * 2)
    messages = server.next_messages()
    assert messages == [init]
    messages.clear()
    server.send(SAMPLES["init_res, success"])
    assert server.next_messages() == [PingReq(5)] * 2


def shortest(payload: bytes) -> bytes:
    """A ``register_req`` with as little as possible around a payload."""
    return (
        b'{"msg_type":"register_req","register_id":1,"register_events":[{"type":["a"],'
        b'"source_timestamp":null,"payload":{"payload_type":"json","data":' + payload + b"}}]}"
    )


@pytest.mark.parametrize("n_together", [1, 2])
def test_a_payload_that_is_barely_too_deep_is_refused_in_the_shortest_message(
    n_together: int,
) -> None:
    most = limits.MAX_JSON_DEPTH
    deep, too_deep = (shortest(b"[" * i + b"]" * i) for i in (most, most + 1))
    server = open_server()
    server.receive_data(encode_frame(deep) * n_together + encode_frame(too_deep))
    *accepted, refused = taken(server)
    assert [type(i) for i in accepted] == [RegisterReq] * n_together
    assert isinstance(refused, RefusedRegister)
    assert "nested deeper than 128 levels" in refused.error
