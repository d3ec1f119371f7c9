"""The same over chatter and Eventer (001, 003), for a component that knows the token.

Its few messages are made by hand, in SBS: integers in groups of seven bits, the last one
marked; texts, bytes and arrays begin with their length; an alternative with its index.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.logs import flood
from tests.torture.attacks.queries import prepare_events, prepare_types
from tests.torture.attacks.strangers import FEW_GUESSES, guesses
from tests.torture.attacks.wire import tried, until

_TOKEN: Final = "insider"

_NOTHING: Final = b"\x80"  # of an optional value

_SENDING_S: Final = 60.0

_NO: Final = b"\x00"

_YES: Final = b"\x01"


def integer(value: int) -> bytes:
    """An integer."""
    groups = [value & 0x7F | 0x80]
    while not -0x40 <= value < 0x40:
        value >>= 7
        groups.append(value & 0x7F)
    return bytes(reversed(groups))


def text(value: str) -> bytes:
    """A string."""
    return data(value.encode())


def data(value: bytes) -> bytes:
    """Bytes."""
    return integer(len(value)) + value


def array(items: Iterable[bytes]) -> bytes:
    """An array of encoded items."""
    encoded = [*items]
    return integer(len(encoded)) + b"".join(encoded)


def some(value: bytes) -> bytes:
    """An optional value that is there."""
    return integer(1) + value


def event_type(segments: Iterable[str]) -> bytes:
    """A type, or a pattern of types."""
    return array(map(text, segments))


def message(number: int, kind: str, body: bytes) -> bytes:
    """The first message of a conversation, which expects an answer."""
    descriptor = integer(number) + integer(number) + _YES + _YES + _NO
    return wire.frame(descriptor + text(f"HatEventer.{kind}") + data(body))


def init_req(
    name: str, token: str, subscriptions: Sequence[Sequence[str]] = (), persisted: bytes = _NO
) -> bytes:
    """The first message."""
    patterns = array(map(event_type, subscriptions))
    body = text(name) + some(text(token)) + patterns + _NOTHING + persisted
    return message(1, "MsgInitReq", body)


def endless_ack(number: int, notification: bytes) -> bytes:
    """What acknowledges a notification, and leaves the conversation open."""
    first = notification[: next(i for i, byte in enumerate(notification) if byte & 0x80) + 1]
    descriptor = integer(number) + first + _NO + _YES + _NO
    return wire.frame(descriptor + text("HatEventer.MsgEventsAck") + data(b""))


def register_req(number: int, types: Iterable[Sequence[str]]) -> bytes:
    """A registration of events without payload."""
    events = array(event_type(i) + _NOTHING + _NOTHING for i in types)
    return message(number, "MsgRegisterReq", events)


def timeseries_req(
    number: int, patterns: Iterable[Sequence[str]], *, newest: bool, max_results: int = 1
) -> bytes:
    """A query for the newest events, or else for the oldest by source time before 1970."""
    none = _NOTHING
    before_all = none if newest else some(integer(-1) + integer(0))
    order = integer(0) + integer(0 if newest else 1)
    body = some(array(map(event_type, patterns))) + none + none + none + before_all + order
    return message(number, "MsgQueryReq", integer(1) + body + some(integer(max_results)) + none)


class Component:
    """An initialised Eventer client; it reads frames, not what they say."""

    def __init__(
        self,
        port: int,
        name: str = "insider",
        subscriptions: Sequence[Sequence[str]] = (),
        persisted: bytes = _NO,
    ) -> None:
        self.socket = wire.connect(port)
        self._file = self.socket.makefile("rb")
        self.socket.sendall(init_req(name, _TOKEN, subscriptions, persisted))
        self.receive("MsgInitRes")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def receive(self, kind: str) -> bytes:
        """The next message of this kind.

        Raises:
            ConnectionError: the gateway closed.
        """
        while True:
            size = self._read(1)[0]
            frame = self._read(int.from_bytes(self._read(size), "big"))
            if kind.encode() in frame[:60]:
                return frame

    def _read(self, n_bytes: int) -> bytes:
        read = self._file.read(n_bytes)
        if len(read) < n_bytes:
            raise ConnectionError("closed")
        return read


def guess_tokens(target: Target) -> Facts:
    """Guess the token for five seconds."""
    messages = (init_req("insider", f"guess {i}") for i in range(100_000))
    return guesses(target.eventer, messages, target.duration(5))


def long_names(target: Target) -> Facts:
    """Name oneself by what takes three times the room in a log, with a wrong token."""
    first = init_req("\x7f" * 60_000, "guess")
    return flood(target, target.eventer, lambda _: first)


def wrong_messages(target: Target) -> Facts:
    """As many wrong messages as possible, each on a connection of its own."""
    return flood(target, target.eventer, lambda number: wire.frame(b"%d" % number))


def _send(target: Target, frames: Iterable[bytes]) -> Facts:
    """Send registrations one after the other."""
    n_answered = largest = 0
    end = time.monotonic() + _SENDING_S
    for frame in frames:
        if time.monotonic() > end:
            break
        with tried(), Component(target.eventer) as component:
            component.socket.sendall(frame)
            largest = max(largest, len(component.receive("MsgRegisterRes")))
            n_answered += 1
    return {"answered": n_answered, "largest answer bytes": largest}


def huge_types(target: Target) -> Facts:
    """Types of 15.7 MB, each another one."""
    return _send(
        target,
        (
            register_req(2, [[f"{i}" + "\x7f" * target.count(15_700_000)]])
            for i in range(target.count(30))
        ),
    )


def full_requests(target: Target) -> Facts:
    """Requests of 65,536 events."""
    types = [["app", f"{i % 100}"] for i in range(target.count(65_536))]
    frame = register_req(2, types)
    return _send(target, [frame] * target.count(40))


def _types(target: Target, make: Callable[[int], list[str]], n: int, per_request: int) -> Facts:
    n_sent = 0
    began = time.monotonic()
    with tried(), Component(target.eventer) as component:
        for begin in range(0, n, per_request):
            if time.monotonic() - began > _SENDING_S:
                break
            types = [make(i) for i in range(begin, min(n, begin + per_request))]
            component.socket.sendall(register_req(begin + 2, types))
            component.receive("MsgRegisterRes")
            n_sent += len(types)
    return {"types": n_sent, "seconds": time.monotonic() - began}


def million_types(target: Target) -> Facts:
    """A million types."""
    return _types(target, lambda i: ["app", f"{i}"], target.count(1_000_000), 5_000)


def types_by_names(target: Target) -> Facts:
    """1,000 clients, as which one introduces oneself in turn, and 300 types of each."""
    n_types = 0
    for number in range(target.count(1_000)):
        with tried(), Component(target.eventer, f"client {number}") as component:
            types = [["app", f"{number}", f"{i:x<1000}"] for i in range(300)]
            component.socket.sendall(register_req(2, types))
            component.receive("MsgRegisterRes")
            n_types += 300
    return {"types": n_types}


def long_client_names(target: Target) -> Facts:
    """Come and go under ever other names of 60 kB, which are announced as types."""
    n = 0
    for number in until(target.duration(8)):
        with tried():
            Component(target.eventer, f"{number}" + "x" * 60_000).close()
            n += 1
    return {"connections": n}


def many_patterns(target: Target) -> Facts:
    """Queries with 256 patterns, each of which every type has to be compared with."""
    patterns = [["app", "?", f"no {i}"] for i in range(256)]
    return _ask(target, patterns, newest=True)


def newest(target: Target) -> Facts:
    """The newest event of all that one may see."""
    return _ask(target, [["app", "*"]], newest=True)


def costly_queries(target: Target) -> Facts:
    """Events that there are none of, among all by their source's time."""
    return _ask(target, [["app", "*"]], newest=False)


def _ask(target: Target, patterns: Sequence[Sequence[str]], *, newest: bool) -> Facts:
    n_answered = 0
    with contextlib.ExitStack() as stack, tried():
        components = [stack.enter_context(Component(target.eventer)) for _ in range(4)]
        for number in until(target.duration(8)):
            for component in components:
                component.socket.sendall(timeseries_req(number + 2, patterns, newest=newest))
            for component in components:
                component.receive("MsgQueryRes")
                n_answered += 1
    return {"answers/s": n_answered / target.duration(8)}


def ask_and_leave(target: Target) -> Facts:
    """20 connections that ask 64 times and leave at once; thrice."""
    n_asked = 0
    for _ in range(3):
        for _ in range(target.count(20)):
            with tried(), Component(target.eventer) as component:
                frames = (timeseries_req(i + 2, [["*"]], newest=False) for i in range(64))
                component.socket.sendall(b"".join(frames))
                n_asked += 64
        time.sleep(target.duration(1))
    return {"asked": n_asked}


def half_frames(target: Target) -> Facts:
    """100 connections with all of a full frame but its last bytes."""
    half = wire.frame(b" " * target.count(15 << 20))[:-1]
    components = []
    for _ in range(target.count(100)):
        with tried():
            component = Component(target.eventer)
            component.socket.settimeout(1)
            components.append(component)
            component.socket.sendall(half)
    time.sleep(target.duration(10))
    for component in components:
        component.close()
    return {"connections": len(components)}


def open_conversations(target: Target) -> Facts:
    """Conversations that are begun and never gone on with."""
    n = 0
    with tried(), Component(target.eventer) as component:
        for number in range(target.count(200_000)):
            component.socket.sendall(message(number + 2, "MsgEventsAck", b""))
            n += 1
    return {"conversations": n}


def endless_acks(target: Target) -> Facts:
    """Acknowledge 66,000 notifications, and never end a conversation."""
    n_heard = 0
    n_sent = target.count(66_000)
    with contextlib.ExitStack() as stack, tried():
        keeper, other = (
            stack.enter_context(Component(target.eventer, name, [["acked"]], persisted))
            for name, persisted in (("keeper", _YES), ("other", _NO))
        )
        for number in range(2, n_sent + 2):
            other.socket.sendall(register_req(number, [["acked"]]))
            other.receive("MsgEventsNotify")
            n_heard += 1
            keeper.socket.sendall(endless_ack(number, keeper.receive("MsgEventsNotify")))
    return {"not heard of": n_sent - n_heard}


ATTACKS: Final = {
    "eventer-guesses": Attack(guess_tokens, limits=FEW_GUESSES),
    "eventer-long-names": Attack(long_names),
    "eventer-wrong-messages": Attack(wrong_messages),
    "eventer-huge-types": Attack(
        huge_types, limits=Limits(at_most={"largest answer bytes": 64 << 10})
    ),
    "eventer-full-requests": Attack(full_requests, limits=Limits(query_p99_s=0.050)),
    "eventer-million-types": Attack(million_types),
    "eventer-types-by-names": Attack(types_by_names),
    "eventer-long-client-names": Attack(long_client_names),
    "eventer-many-patterns": Attack(many_patterns, prepare_types),
    "eventer-newest": Attack(newest, prepare_types),
    "eventer-costly-queries": Attack(costly_queries, prepare_events),
    "eventer-ask-and-leave": Attack(ask_and_leave, prepare_events),
    "eventer-half-frames": Attack(half_frames),
    "eventer-open-conversations": Attack(open_conversations),
    "eventer-endless-acks": Attack(
        endless_acks, limits=Limits(at_most={"not heard of": 0}), timeout_s=900
    ),
}
