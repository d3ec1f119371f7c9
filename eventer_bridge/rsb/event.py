"""RSB's event model (004).

An event is a value; its times are microseconds since 1970-01-01 UTC. Its id is derived from its
sender and sequence number, on demand. Strings are bytes on the wire. Bytes that are not UTF-8 are
kept by ``surrogateescape``, so that re-encoding an event gives the same bytes.

Sans I/O; values may be used on any thread, scopes are parsed on one.
"""

import re
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, Self
from uuid import UUID, uuid4, uuid5

import msgspec
from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import Int64, cut

MAX_SEQUENCE: Final = (1 << 32) - 1

_SCOPE: Final = re.compile(r"/(?:[-_a-zA-Z0-9]+/)*")


class Scope(NamedTuple):
    """Destination of an event: ``/a/b/`` of segments a and b. Listeners on ``/a/`` get it, too."""

    segments: tuple[str, ...]

    @override
    def __str__(self) -> str:
        return "/" + "".join([f"{segment}/" for segment in self.segments])

    def includes(self, other: "Scope") -> bool:
        """Whether ``other`` is this scope or below it."""
        return other.segments[: len(self.segments)] == self.segments


_scopes: Final[BoundedCache[str, Scope]] = BoundedCache()


def parse_scope(text: str) -> Scope:
    """Parse a scope, or raise ``InvalidEventError``."""
    scope = _scopes.known.get(text)
    if scope is not None:
        return scope
    if len(text) > limits.MAX_TYPE_BYTES:
        raise InvalidEventError(
            f"scope has {len(text)} characters, at most {limits.MAX_TYPE_BYTES} are allowed"
        )
    if not _SCOPE.fullmatch(text):
        raise InvalidEventError(
            f"scope {cut(text)!r}: expected '/', or '/a/b/' of letters, digits, '-' and '_'"
        )
    scope = Scope(tuple(text.split("/")[1:-1]))
    _scopes.put(text, scope, sys.getsizeof(text) + type_bytes(scope.segments))
    return scope


class RsbEventId(msgspec.Struct, frozen=True, gc=False):
    """Sender of an event, and its counter, which wraps to 0 after 2**32 - 1."""

    sender: UUID
    sequence: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]


class MetaData(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times of an event, and user-defined items (004, "Meta Data").

    Create and send time are by the sender's clock, receive and deliver time by the receiver's;
    None if unknown.
    """

    create_time: Int64 | None = None
    send_time: Int64 | None = None
    receive_time: Int64 | None = None
    deliver_time: Int64 | None = None
    user_times: Mapping[str, Int64] = {}
    user_infos: Mapping[str, str] = {}


class RsbEvent(msgspec.Struct, frozen=True):
    """See the module.

    ``schema`` is the encoding of ``data``, "" if unknown; ``method`` its role in a pattern of
    communication, as "REQUEST".
    """

    event_id: RsbEventId
    scope: Scope
    schema: str = "void"
    data: bytes = b""
    method: str | None = None
    causes: tuple[RsbEventId, ...] = ()
    meta: MetaData = MetaData()

    @property
    def id(self) -> UUID:
        """Identifier of the event (004), derived: UUID v5 of sender and sequence number."""
        return uuid5(self.event_id.sender, f"{self.event_id.sequence:08x}")

    def sent(self) -> Self:
        """The event with a send time, now unless set already, and without the receiver's times."""
        send_time = self.meta.send_time
        if send_time is None:
            send_time = now_us()
        return self._with_times(send_time=send_time, receive_time=None, deliver_time=None)

    def delivered(self, received_us: int) -> Self:
        """The event, received at the given time and delivered now."""
        return self._with_times(receive_time=received_us, deliver_time=now_us())

    def _with_times(self, **times: int | None) -> Self:
        return msgspec.structs.replace(self, meta=msgspec.structs.replace(self.meta, **times))


class Informer:
    """A sending participant: it numbers its events, which go to its scope or to scopes below."""

    def __init__(self, scope: Scope, sequence: int = 0) -> None:
        self.scope = scope
        self.sender = uuid4()
        self._sequence = sequence

    def next_id(self) -> RsbEventId:
        """Identifier of its next event."""
        sequence = self._sequence
        self._sequence = 0 if sequence == MAX_SEQUENCE else sequence + 1
        return RsbEventId(self.sender, sequence)

    def create(
        self,
        scope: Scope,
        schema: str = "void",
        data: bytes = b"",
        *,
        method: str | None = None,
        causes: tuple[RsbEventId, ...] = (),
        meta: MetaData = MetaData(),  # noqa: B008  # immutable
    ) -> RsbEvent:
        """A new :class:`RsbEvent`, not sent yet; created now unless ``meta`` has a create time."""
        create_time = now_us() if meta.create_time is None else meta.create_time
        meta = MetaData(create_time, user_times=meta.user_times, user_infos=meta.user_infos)
        return RsbEvent(self.next_id(), scope, schema, data, method, causes, meta)


def now_us() -> int:
    """The wall clock of this machine, in microseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1000
