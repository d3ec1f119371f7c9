"""The ten messages of the Mariner protocol (002, "Messages").

Plain values; ``codec`` turns them into bytes and back, ``protocol`` knows who may send
which of them when. Events, register events and query parameters are those of
``eventer_bridge.model``.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from eventer_bridge.model import Event, EventType, QueryParams, RegisterEvent, Status

UNKNOWN: Final = "unknown"
"""An outcome of a registration."""


class InitReq(msgspec.Struct, frozen=True, gc=False):
    """Client → server, once, first: who the client is and what it wants to hear of."""

    client_name: str
    client_token: str | None
    subscriptions: tuple[EventType, ...]
    server_id: int | None
    persisted: bool


class InitRes(msgspec.Struct, frozen=True, gc=False):
    """Server → client: ``status`` where it succeeded, ``error`` where not."""

    success: bool
    status: Status | None = None
    error: str | None = None


class StatusMsg(msgspec.Struct, frozen=True, gc=False):
    """Server → client: the server's status changed."""

    status: Status


class EventsMsg(msgspec.Struct, frozen=True, gc=False):
    """Server → client: new events of one session."""

    events: Sequence[Event]


class RegisterReq(msgspec.Struct, frozen=True, gc=False):
    """Client → server: register these events in one session."""

    register_id: int
    register_events: tuple[RegisterEvent, ...]


class RegisterRes(msgspec.Struct, frozen=True, gc=False):
    """Server → client: the events in the order of the request, or the reason why not.

    Attributes:
        outcome: of a failure: :data:`UNKNOWN` where the events may be stored all the same;
            None: they are not.
    """

    register_id: int
    success: bool
    events: Sequence[Event] | None = None
    error: str | None = None
    outcome: str | None = None


class QueryReq(msgspec.Struct, frozen=True, gc=False):
    """Client → server: one of the three queries."""

    query_id: int
    params: QueryParams


class QueryRes(msgspec.Struct, frozen=True, gc=False):
    """Server → client: events that satisfy a query, and whether there are more."""

    query_id: int
    events: Sequence[Event]
    more_follows: bool


class PingReq(msgspec.Struct, frozen=True, gc=False):
    """Either → other: to be answered at once."""

    ping_id: int


class PingRes(msgspec.Struct, frozen=True, gc=False):
    """Answer to :class:`PingReq`."""

    ping_id: int


Message: TypeAlias = (
    InitReq
    | InitRes
    | StatusMsg
    | EventsMsg
    | RegisterReq
    | RegisterRes
    | QueryReq
    | QueryRes
    | PingReq
    | PingRes
)
