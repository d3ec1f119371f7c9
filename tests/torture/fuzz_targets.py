"""What is fuzzed: each takes any bytes, and raises if something is not as it must be."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from eventer_bridge import packed
from eventer_bridge.chatter.codec import Dialect, encode
from eventer_bridge.chatter.protocol import ChatterProtocol, Message
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.eventer import codec
from tests.eventer_bridge.chatter import conversation_oracle
from tests.eventer_bridge.chatter.samples import GOLDEN
from tests.eventer_bridge.chatter.test_codec import check_as_hat_sbs
from tests.eventer_bridge.eventer.differential import judge
from tests.eventer_bridge.eventer.message_generator import NAMES, MessageGenerator
from tests.eventer_bridge.eventer.samples import SAMPLES
from tests.eventer_bridge.packed import oracle

MAX_BYTES: Final = 4_096
"""Of an input."""

_MAX_FRAME_BYTES: Final = 1_024
_MAX_FIRST_FRAME_BYTES: Final = 256
_GENERATED: Final = 200

CUT_OFF: Final = 0.3
"""How often an input ends early."""


class Target(NamedTuple):
    """One thing that is fuzzed.

    Attributes:
        run: called with an input.
        seeds: inputs to begin with.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


def stream(data: bytes) -> None:
    """A peer's stream, in pieces; what may be answered is."""
    if not data:
        return
    dialect = (None, *Dialect)[data[0] % 3]
    piece_bytes = 1 + data[0] // 3
    protocol = ChatterProtocol(
        dialect, max_frame_bytes=_MAX_FRAME_BYTES, max_first_frame_bytes=_MAX_FIRST_FRAME_BYTES
    )
    try:
        for begin in range(1, len(data), piece_bytes):
            protocol.receive_data(data[begin : begin + piece_bytes])
            while (message := protocol.next_message()) is not None:
                if isinstance(message, Message) and message.conversation.may_send:
                    protocol.send("T.A", b"", conversation=message.conversation)
            protocol.data_to_send()
            assert protocol.awaiting_reply == 0
            announced, _ = protocol._decoder._missing() or (0, 0)
            bound = _MAX_FRAME_BYTES if protocol.has_begun else _MAX_FIRST_FRAME_BYTES
            assert announced <= bound
        protocol.receive_eof()
    except RemoteProtocolError:
        assert protocol.next_message() is None
        protocol.receive_data(data)
        assert protocol.next_message() is None


def envelope(data: bytes) -> None:
    """A chatter message in both dialects, and what hat-sbs makes of it."""
    for dialect in Dialect:
        check_as_hat_sbs(data, dialect)


def eventer(data: bytes) -> None:
    """An Eventer message, and what both implementations of hat-sbs make of it."""
    if data:
        judge(NAMES[data[0] % len(NAMES)], data[1:])


def _stream_seeds() -> Iterator[bytes]:
    for number, (dialect, _, frame) in enumerate(GOLDEN):
        for first in (0, 1 + list(Dialect).index(dialect)):
            yield bytes((first + 3 * number,)) + frame * 3


def _envelope_seeds() -> Iterator[bytes]:
    for dialect, msg, _ in GOLDEN:
        yield encode(msg, dialect)


def _eventer_seeds() -> Iterator[bytes]:
    for message in SAMPLES.values():
        name, data = codec.encode(message)
        yield bytes((NAMES.index(name),)) + data
    generator = MessageGenerator(1)
    for _ in range(_GENERATED):
        name, data = generator.message()
        if len(data) < MAX_BYTES:
            yield bytes((NAMES.index(name),)) + data


def _conversation_seeds() -> Iterator[bytes]:
    for number in range(16):
        yield bytes((number * 37 + i * 11) % 256 for i in range(40))


def inputs(target: Target, number: int, chance: random.Random) -> Iterator[bytes]:
    """The seeds of a target, and so many inputs that are like them."""
    seeds = list(target.seeds())
    yield from seeds
    for _ in range(number):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            begin = chance.randrange(len(data) + 1)
            piece = chance.choice((chance.randbytes(chance.randrange(3)), chance.choice(seeds)))
            data[begin : begin + chance.randrange(3)] = piece
        if chance.random() < CUT_OFF:
            del data[chance.randrange(len(data) + 1) :]
        yield bytes(data)


PACKED: Final[Mapping[str, Target]] = {
    "packed-json": Target(oracle.json_request, oracle.json_seeds),
    "packed-sbs": Target(oracle.sbs_request, oracle.sbs_seeds),
    "packed-several": Target(oracle.several_requests, oracle.several_seeds),
    "packed-stored": Target(oracle.stored_rows, oracle.stored_seeds),
}
"""Of the compiled module."""

TARGETS: Final[Mapping[str, Target]] = {
    "stream": Target(stream, _stream_seeds),
    "envelope": Target(envelope, _envelope_seeds),
    "conversations": Target(conversation_oracle.check, _conversation_seeds),
    "eventer": Target(eventer, _eventer_seeds),
    **(PACKED if packed.IS_COMPILED else {}),
}

assert all(len(seed) <= MAX_BYTES for target in TARGETS.values() for seed in target.seeds())
