"""The nine messages of the Eventer protocol (001, "Chatter messages").

Plain values, named as in 001; ``codec`` encodes and decodes them. Events, register events and
query parameters are those of ``eventer_bridge.model``. The chatter conversation, not the
message, relates an answer to its request.

===============  ===============  ========================================
message          direction        answered by
===============  ===============  ========================================
MsgInitReq       client → server  MsgInitRes
MsgInitRes       server → client
MsgStatusNotify  server → client
MsgEventsNotify  server → client  MsgEventsAck, if it was not the last
MsgEventsAck     client → server
MsgRegisterReq   client → server  MsgRegisterRes, if it was not the last
MsgRegisterRes   server → client
MsgQueryReq      client → server  MsgQueryRes
MsgQueryRes      server → client
===============  ===============  ========================================
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Status,
)


class MsgInitReq(msgspec.Struct, frozen=True, gc=False):
    """The first message, sent once: the client's identity and subscription."""

    client_name: str
    client_token: str | None
    subscriptions: tuple[EventType, ...]
    server_id: int | None
    persisted: bool


class MsgInitRes(msgspec.Struct, frozen=True, gc=False):
    """``status`` on success; else None, and ``error``."""

    status: Status | None
    error: str = ""


class MsgStatusNotify(msgspec.Struct, frozen=True, gc=False):
    """The server's status changed."""

    status: Status


class RefusedEvent(msgspec.Struct, frozen=True, gc=False):
    """A server's event that is well-formed but not valid here, and is skipped.

    ``events_before``: number of valid events before it in the message.
    """

    id: EventId
    reason: str
    events_before: int


class MsgEventsNotify(msgspec.Struct, frozen=True, gc=False):
    """New events of one session; ``refused`` are those skipped."""

    events: Sequence[Event]
    refused: Sequence[RefusedEvent] = ()


class MsgEventsAck(msgspec.Struct, frozen=True, gc=False):
    """The client has the events of the notification."""


class MsgRegisterReq(msgspec.Struct, frozen=True, gc=False):
    """Register these events in one session."""

    register_events: Sequence[RegisterEvent]


class MsgRegisterRes(msgspec.Struct, frozen=True, gc=False):
    """The events in the order of the request; None for a failure."""

    events: Sequence[Event] | None


class MsgQueryReq(msgspec.Struct, frozen=True, gc=False):
    """One of the three queries."""

    params: QueryParams


class MsgQueryRes(msgspec.Struct, frozen=True, gc=False):
    """Events that match a query, and whether there are more; ``refused`` are those skipped."""

    result: QueryResult
    refused: Sequence[RefusedEvent] = ()


Message: TypeAlias = (
    MsgInitReq
    | MsgInitRes
    | MsgStatusNotify
    | MsgEventsNotify
    | MsgEventsAck
    | MsgRegisterReq
    | MsgRegisterRes
    | MsgQueryReq
    | MsgQueryRes
)


class RefusedReq(msgspec.Struct, frozen=True, gc=False):
    """A request that is well-formed but inadmissible: it can be answered instead of closing.

    A MsgInitReq by an error, a MsgRegisterReq by a failure. For a MsgQueryReq there is no such
    answer in 001. The reason has the error, and the expected value.
    """

    message_type: type[MsgInitReq | MsgRegisterReq | MsgQueryReq]
    reason: str
