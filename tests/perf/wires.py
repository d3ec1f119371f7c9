"""The wires that are measured: messages of the workload as bytes, and back.

The workload is written in Mariner's messages (002).
"""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from eventer_bridge.net.framing import encode_frame

WireName: TypeAlias = Literal["mariner", "eventer", "redis"]

Bounds: TypeAlias = list[tuple[int, int]]
"""Where messages begin and end in bytes."""


class Wire(NamedTuple):
    """How messages look.

    Attributes:
        encode: bytes of a request of 002.
        cut: the answers that are there in full in bytes that begin with one.
        decode: the message of 002 that means the same as an answer.
    """

    encode: Callable[[dict[str, Any]], bytes]
    cut: Callable[[bytes], Bounds]
    decode: Callable[[bytes], dict[str, Any]]


def wire_of(name: WireName) -> Wire:
    """A wire by its name."""
    if name == "mariner":
        return MARINER
    # a client process that does not need it starts in a quarter of the time
    if name == "eventer":
        from tests.perf import eventer_wire

        return Wire(eventer_wire.encode, cut_frames, eventer_wire.decode)
    from tests.perf import redis_wire

    return Wire(redis_wire.encode, redis_wire.cut, redis_wire.decode)


def cut_frames(data: bytes) -> Bounds:
    """Bounds of the messages of all whole frames, as ``Wire.cut``.

    Next to nothing for each frame: it is what a client does while the clock runs.
    """
    bounds = []
    size = len(data)
    end = 0
    while end < size:
        begin = end + 1 + data[end]
        end = begin + int.from_bytes(data[end + 1 : begin], "big")
        if end > size:
            break
        bounds.append((begin, end))
    return bounds


def _encode_mariner(message: dict[str, Any]) -> bytes:
    return encode_frame(msgspec.json.encode(message))


MARINER: Final = Wire(_encode_mariner, cut_frames, msgspec.json.decode)
