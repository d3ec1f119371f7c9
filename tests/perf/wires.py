"""The wires that are measured: messages of the workload as frames, and back.

The workload is written in Mariner's messages (002).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from eventer_bridge.net.framing import encode_frame

WireName: TypeAlias = Literal["mariner", "eventer"]


class Wire(NamedTuple):
    """How messages look.

    Attributes:
        encode: frame of a message of 002.
        decode: the message of 002 that means the same as what a frame had in it.
    """

    encode: Callable[[dict[str, Any]], bytes]
    decode: Callable[[bytes], dict[str, Any]]


def wire_of(name: WireName) -> Wire:
    """A wire by its name."""
    if name == "mariner":
        return Wire(_encode_mariner, msgspec.json.decode)
    # a client process that does not need it starts in a quarter of the time
    from tests.perf import eventer_wire

    return Wire(eventer_wire.encode, eventer_wire.decode)


def _encode_mariner(message: dict[str, Any]) -> bytes:
    return encode_frame(msgspec.json.encode(message))
