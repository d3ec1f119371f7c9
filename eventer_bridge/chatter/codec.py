"""``Msg``, the envelope of every chatter message (003), in its two dialects; without I/O.

=========  ==========================================  ==============================
dialect    ``data`` of the record                      ping service
=========  ==========================================  ==============================
CURRENT    ``{type: String, data: Bytes}``             HatChatter.Ping, HatChatter.Pong
CLASSIC    ``{module: Optional(String), type, data}``  HatPing.MsgPing, HatPing.MsgPong
=========  ==========================================  ==============================

Upper layers see one form of a type, the full name: "HatEventer.MsgInitReq".

The schemas are ``schemas/HatChatter.sbs`` and ``schemas/Hat.sbs``. The codec is written by hand
because every message passes through it: hat-sbs takes three times as long to encode, and its
decoder is lenient (it wraps integers and ignores trailing bytes).
"""

import contextlib
import enum
import functools
from collections.abc import Sequence
from typing import Final

import msgspec

from eventer_bridge.chatter.sbs import (
    FIRST,
    SECOND,
    encode_integer,
    encode_length,
    encode_string,
    read_integer,
    read_string,
)
from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.net import limits as net_limits


class Dialect(enum.Enum):
    """See the module."""

    CURRENT = "current"
    CLASSIC = "classic"


# for each message: until Python 3.12, members of an enumeration are looked up slowly
_CURRENT: Final = Dialect.CURRENT

PING_TYPES: Final = {Dialect.CURRENT: "HatChatter.Ping", Dialect.CLASSIC: "HatPing.MsgPing"}
PONG_TYPES: Final = {Dialect.CURRENT: "HatChatter.Pong", Dialect.CLASSIC: "HatPing.MsgPong"}


class Msg(msgspec.Struct, frozen=True, gc=False):
    """A message on the wire, with the properties of 003.

    Each sender counts its messages. ``owner``: whether it began the conversation, of which
    ``first`` was the first; ``token``: whether it passes the turn; ``last``: whether it ends it.
    ``data`` is SBS of the type with that full name.
    """

    id: int
    first: int
    owner: bool
    token: bool
    last: bool
    type: str
    data: bytes


def encode(msg: Msg, dialect: Dialect) -> bytes:
    """SBS of a message, without framing; ``ValueError``: the type has no form in this dialect."""
    return b"".join((*_encode_head(msg, len(msg.data), dialect), msg.data))


def encode_parts(msg: Msg, parts: Sequence[bytes], dialect: Dialect) -> list[bytes]:
    """As :func:`encode`, of a large message with its data in parts, which are not joined."""
    return [b"".join(_encode_head(msg, sum(map(len, parts)), dialect)), *parts]


def _encode_head(msg: Msg, n_data_bytes: int, dialect: Dialect) -> tuple[bytes, ...]:
    """The bytes before the data."""
    encoded_id = encode_integer(msg.id)
    return (
        encoded_id,
        encoded_id if msg.first == msg.id else encode_integer(msg.first),
        _encode_after_ids((msg.owner, msg.token, msg.last), msg.type, dialect is _CURRENT),
        encode_length(n_data_bytes),
    )


def encode_alone(msg_id: int, msg_type: str, data: bytes, dialect: Dialect) -> bytes:
    """As :func:`encode`, of a message that begins and ends its conversation.

    Notifications go to many peers in turn: their common bytes are encoded once.
    """
    encoded_id = encode_integer(msg_id)
    rest = _encode_alone_after_ids(msg_type, data, dialect is _CURRENT)
    return b"".join((encoded_id, encoded_id, rest))


def encode_answers(
    msg_id: int, firsts: Sequence[int], msg_type: str, data: Sequence[bytes], dialect: Dialect
) -> list[bytes]:
    """As :func:`encode`, of messages that end conversations; the first one has ``msg_id``."""
    head = _encode_after_ids((False, True, True), msg_type, dialect is _CURRENT)
    return [
        encode_integer(i) + encode_integer(first) + head + encode_length(len(each)) + each
        for i, (first, each) in enumerate(zip(firsts, data, strict=True), msg_id)
    ]


def decode(message: bytes, dialect: Dialect) -> Msg:
    """Decode a message; ``InvalidMessageError`` names the property."""
    part = "id"
    try:
        msg_id, position = read_integer(message, 0)
        if message.startswith(message[:position], position):
            first, position = msg_id, 2 * position  # the first of its conversation
        else:
            part = "first"
            first, position = read_integer(message, position)
        head, n_bytes = None, len(message)
        if dialect is _CURRENT and position + 3 < n_bytes:
            # no such bytes are the beginning of others: they mean the same everywhere
            end = position + 4 + (message[position + 3] & 0x3F)
            head = _heads.get(message[position:end])
        if head is None:
            part = "owner, token, last"
            flags = _FLAGS_DECODED.get(message[position : position + 3])
            if flags is None:
                raise InvalidMessageError(_flags_problem(message[position : position + 3]))
            part = "type" if dialect is _CURRENT else "module and type"
            read_type = _read_type if dialect is _CURRENT else _read_module_and_type
            msg_type, end = read_type(message, position + 3)
            head = *flags, msg_type
            if dialect is _CURRENT and end - position < 4 + 0x40:
                if len(_heads) >= net_limits.MAX_CACHED_HEADS:
                    _heads.clear()
                _heads[message[position:end]] = head
        part = "data"
        size, position = read_integer(message, end)
        if size != n_bytes - position:
            raise InvalidMessageError(
                f"of {size} bytes, but {n_bytes - position} bytes are left in the message"
            )
    except IndexError:
        raise InvalidMessageError(f"{part}: the message ends in the middle of it") from None
    except InvalidMessageError as e:
        raise InvalidMessageError(f"{part}: {e}") from None
    return Msg(msg_id, first, *head, message[position:])


def decode_requests(
    messages: Sequence[bytes], msg_type: str, dialect: Dialect
) -> tuple[list[int], list[bytes]]:
    """As :func:`decode` of messages of one type that begin conversations and pass the token on.

    Returns identifiers and data, up to the first message that is anything else, or is malformed.
    """
    head = _encode_after_ids((True, True, False), msg_type, dialect is _CURRENT)
    ids: list[int] = []
    data: list[bytes] = []
    with contextlib.suppress(IndexError, InvalidMessageError):
        for message in messages:
            msg_id, position = read_integer(message, 0)
            if not message.startswith(message[:position] + head, position):
                break
            position += position + len(head)
            size, position = read_integer(message, position)
            if size != len(message) - position:
                break
            ids.append(msg_id)
            data.append(message[position:])
    return ids, data


def recognise(message: bytes) -> Dialect:
    """Dialect of a peer's first message.

    After ``last``, CLASSIC continues with a choice index of 0 or 1, CURRENT with the length of a
    type name, which is greater.
    """
    try:
        position = read_integer(message, read_integer(message, 0)[1])[1] + 3
        is_classic = message[position] in (FIRST, SECOND)
    except IndexError:
        raise InvalidMessageError("the message ends before its type") from None
    return Dialect.CLASSIC if is_classic else Dialect.CURRENT


@functools.lru_cache(maxsize=2)  # a message for each dialect
def _encode_alone_after_ids(msg_type: str, data: bytes, is_current: bool) -> bytes:
    head = _encode_after_ids((True, True, True), msg_type, is_current)
    return b"".join((head, encode_length(len(data)), data))


@functools.lru_cache(maxsize=256)  # of the few types that we send
def _encode_after_ids(flags: tuple[bool, bool, bool], msg_type: str, is_current: bool) -> bytes:
    """Owner, token and last, and the type."""
    if is_current:
        if len(msg_type.encode()) < 2:
            raise ValueError(f"type {msg_type!r}: expected a name with its module")
        return _FLAGS_ENCODED[flags] + encode_string(msg_type)
    module, dot, name = msg_type.rpartition(".")
    if not name:
        raise ValueError(f"type {msg_type!r}: expected a name")
    encoded_module = b"%c%b" % (SECOND, encode_string(module)) if dot else b"%c" % FIRST
    return _FLAGS_ENCODED[flags] + encoded_module + encode_string(name)


def _read_type(message: bytes, position: int) -> tuple[str, int]:
    if message[position] in (FIRST, SECOND):
        size = message[position] - FIRST
        raise InvalidMessageError(f"expected a name with its module, got {size} bytes")
    return read_string(message, position)


def _read_module_and_type(message: bytes, position: int) -> tuple[str, int]:
    choice = message[position]
    if choice == SECOND:
        module, position = read_string(message, position + 1)
        name, position = read_string(message, position)
        full_name = f"{module}.{name}"
    elif choice == FIRST:
        name, position = read_string(message, position + 1)
        full_name = name
    else:
        raise InvalidMessageError(f"expected 80 (no module) or 81, got {choice:02x}")
    if not name:
        raise InvalidMessageError("expected the name of a type, got ''")
    return full_name, position


_heads: Final[dict[bytes, tuple[bool, bool, bool, str]]] = {}
"""Flags and type, of :data:`_CURRENT`, by their bytes, if the type's length has one byte."""

_FLAG_VALUES: Final = [
    (i, j, k) for i in (False, True) for j in (False, True) for k in (False, True)
]
_FLAGS_ENCODED: Final = {flags: bytes(flags) for flags in _FLAG_VALUES}
_FLAGS_DECODED: Final = {bytes(flags): flags for flags in _FLAG_VALUES}


def _flags_problem(flags: bytes) -> str:
    if len(flags) < 3:
        return "the message ends in the middle of it"
    return f"expected bytes that are 00 or 01, got {flags.hex(' ')}"
