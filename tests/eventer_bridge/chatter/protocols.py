"""Protocols without I/O: made, and what one says delivered to the other."""

from typing import Any, Final

import pytest

from eventer_bridge.chatter.codec import Dialect, Msg, encode
from eventer_bridge.chatter.protocol import ChatterProtocol, Message
from eventer_bridge.net.framing import encode_frame
from tests.eventer_bridge.chatter.samples import messages_of

DIALECTS: Final = pytest.mark.parametrize("dialect", Dialect)


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
