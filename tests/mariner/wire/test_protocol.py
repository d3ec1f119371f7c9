import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.framing import encode_frame
from eventer_bridge.slices import at_once
from mariner import limits
from mariner.errors import (
    ContractError,
    FrameError,
    LocalProtocolError,
    RemoteProtocolError,
)
from mariner.wire import codec, messages
from mariner.wire.messages import (
    EventsMsg,
    InitReq,
    InitRes,
    Message,
    PingReq,
    RegisterReq,
    RegisterRes,
    name_of,
)
from mariner.wire.protocol import LargeMessage, MarinerProtocol, RefusedRegister, Role, State
from tests.mariner.wire.hat_messages import to_hat
from tests.mariner.wire.samples import EXTENDED_MESSAGES, SAMPLES

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "hat_mariner.json").read_text(encoding="utf-8")
)
INIT = SAMPLES["init_req"]
SUCCESS = SAMPLES["init_res, success"]
FAILURE = SAMPLES["init_res, failure"]

# each message type once, under its name on the wire
BY_NAME = {name_of(type(i)): i for i in (*EXTENDED_MESSAGES, *reversed(SAMPLES.values()))}

# the table of 002, and of our extensions, as a reader of the specification would write it down
ALLOWED = {
    (Role.CLIENT, State.CONNECTING): {"init_req"},
    (Role.SERVER, State.INITIATING): {"init_res"},
    (Role.CLIENT, State.OPEN): {"register_req", "query_req", "ping_req", "ping_res", "events_ack"},
    (Role.SERVER, State.OPEN): {
        "status",
        "events",
        "register_res",
        "query_res",
        "ping_req",
        "ping_res",
        "up_to_date",
        "gap",
        "cursor_lost",
    },
}
CASES = [(r, s, n) for r, s, n in itertools.product(Role, State, BY_NAME)]
case_ids = [f"{role.name} {state.name} {name}" for role, state, name in CASES]


def in_state(state: State, **limits_bytes: Any) -> tuple[MarinerProtocol, MarinerProtocol]:
    """A client and a server, of which both are in the state."""
    client = MarinerProtocol(Role.CLIENT, **limits_bytes)
    server = MarinerProtocol(Role.SERVER, **limits_bytes)
    if state is State.CONNECTING:
        return client, server
    server.receive_data(client.send(INIT))
    assert server.next_message() == INIT
    if state is not State.INITIATING:
        answer = SUCCESS if state is State.OPEN else FAILURE
        client.receive_data(server.send(answer))
        assert client.next_message() == answer
    assert client.state is server.state is state
    return client, server


def frame(message: Message) -> bytes:
    return encode_frame(codec.encode(message))


def test_every_message_type_may_be_sent_by_someone() -> None:
    assert BY_NAME.keys() == set().union(*ALLOWED.values()) == {*map(name_of, messages.TYPES)}
    assert len(messages.TYPES) == len({*messages.TYPES}) == len(BY_NAME)


@pytest.mark.parametrize(("role", "state", "name"), CASES, ids=case_ids)
def test_who_may_send_what_when(role: Role, state: State, name: str) -> None:
    client, server = in_state(state)
    sender, receiver = (client, server) if role is Role.CLIENT else (server, client)
    message = BY_NAME[name]
    if name in ALLOWED.get((role, state), set()):
        encoded = codec.encode(message)
        parts = sender.send_parts(type(message), [encoded[:9], encoded[9:]])
        assert b"".join(parts) == encode_frame(encoded)
        receiver.receive_data(sender.send(message))
        received = receiver.next_message()
        # hat-mariner compares payloads by value, and knows the ten of 002 only
        assert received == message or to_hat(received) == to_hat(message)  # type: ignore[arg-type]  # a Message
        assert receiver.state is sender.state
        return
    with pytest.raises(LocalProtocolError, match=name):
        sender.send(message)
    with pytest.raises(LocalProtocolError, match=name):
        sender.send_encoded(type(message), codec.encode(message))
    with pytest.raises(LocalProtocolError, match=name):
        sender.send_parts(type(message), [codec.encode(message)])
    assert sender.state is state
    receiver.receive_data(frame(message))
    if state is State.CLOSED:
        assert receiver.next_message() is None
        return
    with pytest.raises(RemoteProtocolError, match=name):
        receiver.next_message()
    assert receiver.state is State.CLOSED


@pytest.mark.parametrize(
    ("state", "message", "text"),
    [
        (State.CONNECTING, PingReq(1), "ping_req from the client is not allowed before init_req"),
        (State.INITIATING, PingReq(1), "ping_req from the client is not allowed before init_res"),
        (State.INITIATING, INIT, "second init_req, expected one at the beginning only"),
        (State.OPEN, INIT, "second init_req, expected one at the beginning only"),
        (State.OPEN, EventsMsg([]), "events from the client is not allowed after init"),
    ],
)
def test_text_of_what_is_not_allowed(state: State, message: Message, text: str) -> None:
    _, server = in_state(state)
    server.receive_data(frame(message))
    with pytest.raises(RemoteProtocolError) as e:
        server.next_message()
    assert str(e.value) == text


def test_declined_connection_is_closed_at_both_ends() -> None:
    client, server = in_state(State.CLOSED)
    for protocol in (client, server):
        protocol.receive_data(frame(PingReq(1)))
        assert protocol.next_message() is None
        protocol.receive_eof()


def test_nothing_is_taken_after_an_error() -> None:
    _, server = in_state(State.OPEN)
    server.receive_data(encode_frame(b"no JSON") + frame(PingReq(1)))
    with pytest.raises(ContractError, match="not JSON"):
        server.next_message()
    assert server.state is State.CLOSED
    server.receive_data(frame(PingReq(2)))
    assert server.next_message() is None
    server.receive_eof()


# --- golden vectors -----------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [1, 7, 1 << 20], ids=["one byte", "seven bytes", "whole"])
@pytest.mark.parametrize("receiver", Role)
def test_conversation_recorded_from_hat_mariner(receiver: Role, n_bytes: int) -> None:
    """All that the other role may say in its order, however the stream is cut."""
    sender = Role.SERVER if receiver is Role.CLIENT else Role.CLIENT
    first = "init_req" if sender is Role.CLIENT else "init_res, success"
    names = [first] + [i for i in SAMPLES if i.split(",")[0] in ALLOWED[sender, State.OPEN]]
    frames = {i["name"]: bytes.fromhex(i["header"]) + i["message"].encode() for i in VECTORS}
    protocol = MarinerProtocol(receiver)
    if receiver is Role.CLIENT:
        protocol.send(INIT)
    received: list[Any] = []

    def take() -> None:
        while (message := protocol.next_message()) is not None:
            received.append(message)
            if isinstance(message, InitReq):
                protocol.send(SUCCESS)

    stream = b"".join(frames[i] for i in names)
    for begin in range(0, len(stream), n_bytes):
        protocol.receive_data(stream[begin : begin + n_bytes])
        take()
    protocol.receive_eof()
    assert [to_hat(i) for i in received] == [to_hat(SAMPLES[i]) for i in names]
    assert len(received) > 4


# --- registrations that are refused -------------------------------------------------------

WRONG_REGISTER = b'{"msg_type":"register_req","register_id":5,"register_events":[{"type":"a"}]}'


def test_refused_registration_is_told_and_the_connection_lives_on() -> None:
    _, server = in_state(State.OPEN)
    server.receive_data(encode_frame(WRONG_REGISTER) + frame(PingReq(1)))
    refused = server.next_message()
    assert isinstance(refused, RefusedRegister)
    assert refused.register_id == 5
    assert refused.error.startswith("register_req: /register_events/0")
    assert server.next_message() == PingReq(1)
    assert server.send(RegisterRes(5, False, error=refused.error))


@pytest.mark.parametrize("state", [State.CONNECTING, State.INITIATING])
def test_refused_registration_before_init_closes(state: State) -> None:
    _, server = in_state(state)
    server.receive_data(encode_frame(WRONG_REGISTER))
    with pytest.raises(ContractError):
        server.next_message()
    assert server.state is State.CLOSED


def test_server_that_registers_is_not_answered() -> None:
    client, _ = in_state(State.OPEN)
    client.receive_data(encode_frame(WRONG_REGISTER))
    with pytest.raises(ContractError):
        client.next_message()
    assert client.state is State.CLOSED


# --- limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "state", "limit"),
    [
        (Role.SERVER, State.CONNECTING, net_limits.MAX_FIRST_FRAME_BYTES),
        (Role.SERVER, State.INITIATING, net_limits.MAX_FIRST_FRAME_BYTES),
        (Role.CLIENT, State.INITIATING, net_limits.MAX_FIRST_FRAME_BYTES),
        (Role.SERVER, State.OPEN, net_limits.MAX_FRAME_BYTES),
        (Role.CLIENT, State.OPEN, net_limits.MAX_ANSWER_FRAME_BYTES),
    ],
)
def test_larger_frames_are_allowed_after_init_only(role: Role, state: State, limit: int) -> None:
    for size, is_allowed in ((limit, True), (limit + 1, False), (1 << 30, False)):
        client, server = in_state(state)
        protocol = client if role is Role.CLIENT else server
        protocol.receive_data(b"\x04" + size.to_bytes(4, "big"))
        if is_allowed:
            assert protocol.next_message() is None
            continue
        with pytest.raises(FrameError) as e:
            protocol.next_message()
        assert str(e.value) == f"frame of {size} bytes announced, at most {limit} are allowed"
        assert protocol.state is State.CLOSED


def test_what_is_decoded_later_because_of_its_client_is_decoded_the_same() -> None:
    _, server = in_state(State.OPEN)
    server.large_bytes = 32
    # as no large message may be: an escape after the events
    message = rb'{"msg_type":"register_req","register_events":[],"register\u005fid":7}'
    server.receive_data(encode_frame(message))
    large = server.next_message()
    assert isinstance(large, LargeMessage)
    assert at_once(server.decode_large(large)) == RegisterReq(7, ())


def of_size(message: bytes, n_bytes: int) -> bytes:
    """The same message, with blanks in its first array."""
    return message.replace(b"[", b"[" + b" " * (n_bytes - len(message)), 1)


@pytest.mark.parametrize("n_more", [0, 1, limits.LARGE_FRAME_BYTES])
def test_a_large_message_is_decoded_later(n_more: int) -> None:
    _, server = in_state(State.OPEN)
    message = of_size(codec.encode(RegisterReq(7, ())), limits.LARGE_FRAME_BYTES + n_more)
    server.receive_data(encode_frame(message))
    taken = server.next_message()
    assert isinstance(taken, LargeMessage) is (n_more > 0)
    if isinstance(taken, LargeMessage):
        taken = at_once(server.decode_large(taken))
    assert taken == RegisterReq(7, ())
    assert server.state is State.OPEN


@pytest.mark.parametrize("large_bytes", [1, limits.LARGE_FRAME_BYTES])
def test_what_is_wrong_with_a_large_message_is_told_as_of_a_small_one(large_bytes: int) -> None:
    def large(message: bytes) -> tuple[MarinerProtocol, LargeMessage]:
        _, server = in_state(State.OPEN)
        server.large_bytes = large_bytes
        server.receive_data(encode_frame(of_size(message, large_bytes + 1)))
        taken = server.next_message()
        assert isinstance(taken, LargeMessage)
        return server, taken

    server, refused = large(WRONG_REGISTER)
    answer = at_once(server.decode_large(refused))
    assert isinstance(answer, RefusedRegister)
    assert answer.register_id == 5
    assert server.state is State.OPEN

    server, second = large(codec.encode(INIT))
    with pytest.raises(RemoteProtocolError, match=r"^second init_req, expected one at the beg"):
        at_once(server.decode_large(second))
    assert server.state is State.CLOSED

    server, foreign = large(codec.encode(EventsMsg([])))
    with pytest.raises(
        RemoteProtocolError, match=r"^events from the client is not allowed after init$"
    ):
        at_once(server.decode_large(foreign))
    assert server.state is State.CLOSED

    server, broken = large(b"no JSON[")
    with pytest.raises(ContractError, match="not JSON"):
        at_once(server.decode_large(broken))
    assert server.state is State.CLOSED


def test_limits_can_be_given() -> None:
    client, server = in_state(State.OPEN, max_init_frame_bytes=300, max_frame_bytes=400)
    server.receive_data(client.send(RegisterReq(1, ())))
    assert server.next_message() == RegisterReq(1, ())
    server.receive_data(b"\x02\x01\x91")
    with pytest.raises(FrameError, match="frame of 401 bytes announced, at most 400 are allowed"):
        server.next_message()


@pytest.mark.parametrize("state", [State.CONNECTING, State.OPEN])
def test_an_empty_frame_is_no_message(state: State) -> None:
    for protocol in in_state(state):
        protocol.receive_data(b"\x01\x00")
        with pytest.raises(FrameError, match=r"^empty frame, expected a JSON message$"):
            protocol.next_message()
        assert protocol.state is State.CLOSED


# --- end of the stream --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b"\x02", "connection ended in the middle of a frame header, 1 received"),
        (b"\x02\x01", "connection ended in the middle of a frame header, 2 received"),
        (b"\x01\x0a", "connection ended in the middle of a frame of 10 bytes, 0 received"),
        (b"\x01\x0aabc", "connection ended in the middle of a frame of 10 bytes, 3 received"),
        (b"\x00", "frame header: first byte is 0, expected 1 to 255"),
    ],
)
def test_end_in_the_middle_of_a_message(rest: bytes, text: str) -> None:
    _, server = in_state(State.OPEN)
    server.receive_data(rest)
    with pytest.raises(RemoteProtocolError) as e:
        server.receive_eof()
    assert str(e.value) == text
    assert server.state is State.CLOSED


def test_messages_before_the_end_are_taken_and_answered() -> None:
    client, server = in_state(State.OPEN)
    server.receive_data(frame(PingReq(1)) + frame(PingReq(2)))
    server.receive_eof()
    assert [server.next_message(), server.next_message()] == [PingReq(1), PingReq(2)]
    assert server.next_message() is None
    client.receive_data(server.send(SAMPLES["ping_res"]))
    assert client.next_message() == SAMPLES["ping_res"]


def test_messages_before_a_message_that_ends_in_its_middle_are_taken() -> None:
    _, server = in_state(State.OPEN)
    server.receive_data(frame(PingReq(1)) + b"\x01\x0aabc")
    server.receive_eof()
    assert server.next_message() == PingReq(1)
    with pytest.raises(RemoteProtocolError, match="a frame of 10 bytes, 3 received"):
        server.next_message()
    assert server.state is State.CLOSED


def test_init_res_is_of_the_answered_kind() -> None:
    """A success without a status is told as STANDBY, never as something the schema rejects."""
    _, server = in_state(State.INITIATING)
    client = MarinerProtocol(Role.CLIENT)
    client.send(INIT)
    client.receive_data(server.send(InitRes(True)))
    message = client.next_message()
    assert isinstance(message, InitRes)
    assert message.success
    assert client.state is State.OPEN
