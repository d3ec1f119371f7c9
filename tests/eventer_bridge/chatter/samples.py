"""Messages for tests: golden bytes, generated ones, and both as hat-sbs encodes them."""

from typing import Any, Final

from hat.sbs import PySerializer, Repository
from hypothesis import strategies as st

from eventer_bridge.chatter.codec import Dialect, Msg
from eventer_bridge.chatter.protocol import ChatterProtocol, Handled, Message
from eventer_bridge.resources import read_schema

REPOSITORY: Final = Repository(read_schema("HatChatter.sbs"), read_schema("Hat.sbs"))

PING: Final = Msg(1, 1, True, True, False, "HatChatter.Ping", b"")
PONG: Final = Msg(1, 1, False, True, True, "HatChatter.Pong", b"")
CLASSIC_PING: Final = Msg(1, 1, True, True, False, "HatPing.MsgPing", b"")

# frames, the first two read off real peers
GOLDEN: Final[list[tuple[Dialect, Msg, bytes]]] = [
    (Dialect.CURRENT, PING, bytes.fromhex("01168181010100 8f") + b"HatChatter.Ping\x80"),
    (Dialect.CURRENT, PONG, bytes.fromhex("01168181000101 8f") + b"HatChatter.Pong\x80"),
    (
        Dialect.CLASSIC,
        CLASSIC_PING,
        bytes.fromhex("01178181010100 81") + b"\x87HatPing\x87MsgPing\x80",
    ),
    (
        Dialect.CLASSIC,
        Msg(64, -1, True, False, True, "Alone", b"\x00\xff"),
        bytes.fromhex("011000c0ff010001 80") + b"\x85Alone\x82\x00\xff",
    ),
]

INT64: Final = st.integers(-(1 << 63), (1 << 63) - 1)
IDS: Final = st.integers(1, 100_000) | INT64
NAMES: Final = st.text(min_size=1, max_size=70)
TYPES: Final = {
    Dialect.CURRENT: st.text(min_size=2, max_size=150),
    Dialect.CLASSIC: st.text(max_size=150).filter(lambda text: text[-1:] not in ("", ".")),
}


@st.composite
def msgs(draw: st.DrawFn, dialect: Dialect) -> Msg:
    """Any message that the dialect can express."""
    msg_id = draw(IDS)
    return Msg(
        msg_id,
        draw(st.just(msg_id) | IDS),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(TYPES[dialect]),
        draw(st.binary(max_size=300)),
    )


def hat_encode(msg: Msg, dialect: Dialect) -> bytes:
    """The same message by hat-sbs."""
    data: dict[str, Any] = {"type": msg.type, "data": msg.data}
    name = "HatChatter.Msg"
    if dialect is Dialect.CLASSIC:
        name = "Hat.Msg"
        module, dot, data["type"] = msg.type.rpartition(".")
        data["module"] = ("value", module) if dot else ("none", None)
    record = {i: getattr(msg, i) for i in ("id", "first", "owner", "token", "last")}
    return bytes(REPOSITORY.encode(name, {**record, "data": data}))


def hat_decode(message: bytes, dialect: Dialect) -> Msg:
    """A message as hat-sbs's implementation in Python understands it."""
    name = "Hat.Msg" if dialect is Dialect.CLASSIC else "HatChatter.Msg"
    record = REPOSITORY.decode(name, message, serializer=PySerializer)
    data = record.pop("data")
    msg_type = data["type"]
    if dialect is Dialect.CLASSIC and data["module"][0] == "value":
        msg_type = f"{data['module'][1]}.{msg_type}"
    return Msg(**record, type=msg_type, data=bytes(data["data"]))


def next_message(protocol: ChatterProtocol) -> Message | None:
    """The next message that its user gets; None if more bytes are needed for it."""
    while isinstance(message := protocol.next_message(), Handled):
        pass
    return message


def messages_of(protocol: ChatterProtocol) -> list[Message]:
    """All of them that are here."""
    return [*iter(lambda: next_message(protocol), None)]
