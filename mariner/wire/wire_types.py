"""Mariner messages as they stand on the wire (002, "JSON Schema definitions").

Structs that ``codec`` decodes into, one for each ``msg_type``. Where the type of a property
depends on another one (``success``, ``query_type``), it is kept raw here or is a property of
one of the ``Query`` structs, which are decoded in a second step. Additional properties, which the
schema allows everywhere, are refused here: ``lenient`` takes them off.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from eventer_bridge import limits
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    Int64,
    Order,
    OrderBy,
    Payload,
    RegisterEvent,
    Status,
    Timestamp,
)

EventTypes: TypeAlias = tuple[EventType, ...]
EventIds: TypeAlias = Annotated[tuple[EventId, ...], msgspec.Meta(max_length=limits.MAX_QUERY_IDS)]


class Wire(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="msg_type"):
    """Any message."""


class InitReq(Wire, tag="init_req"):
    """See ``messages.InitReq``."""

    client_name: str
    client_token: str | None
    subscriptions: EventTypes
    server_id: Int64 | None
    persisted: bool


class InitRes(Wire, tag="init_res"):
    """``status`` is of a defined type in a success, ``error`` in a failure."""

    success: bool
    status: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class StatusMsg(Wire, tag="status"):
    """See ``messages.StatusMsg``."""

    status: Status


class EventsMsg(Wire, tag="events"):
    """See ``messages.EventsMsg``."""

    events: list[Event]


class RegisterReq(Wire, tag="register_req"):
    """See ``messages.RegisterReq``."""

    register_id: Int64
    register_events: tuple[RegisterEvent, ...]


class RegisterRes(Wire, tag="register_res"):
    """``events`` are of a defined type in a success, the others in a failure."""

    register_id: Int64
    success: bool
    events: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    outcome: Raw | UnsetType = UNSET


class QueryReq(Wire, tag="query_req", forbid_unknown_fields=False):
    """What the three kinds of query have in common; the rest is in a :class:`Query`."""

    query_id: Int64
    query_type: str


class QueryRes(Wire, tag="query_res"):
    """See ``messages.QueryRes``."""

    query_id: Int64
    events: list[Event]
    more_follows: bool


class PingReq(Wire, tag="ping_req"):
    """See ``messages.PingReq``."""

    ping_id: Int64


class PingRes(Wire, tag="ping_res"):
    """See ``messages.PingRes``."""

    ping_id: Int64


WireMessage: TypeAlias = (
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


class Head(msgspec.Struct, gc=False):
    """What a refusal tells of any message."""

    msg_type: Raw | UnsetType = UNSET
    register_id: Raw | UnsetType = UNSET


class Query(msgspec.Struct, gc=False, tag_field="query_type"):
    """Properties of a ``query_req`` that depend on its ``query_type``.

    Optional ones may be absent, but not null.
    """


class Latest(Query, tag="latest"):
    """See ``model.QueryLatestParams``."""

    event_types: EventTypes | UnsetType = UNSET
    last_event_id: EventId | UnsetType = UNSET


class Timeseries(Query, tag="timeseries"):
    """See ``model.QueryTimeseriesParams``."""

    order: Order
    order_by: OrderBy
    event_types: EventTypes | UnsetType = UNSET
    t_from: Timestamp | UnsetType = UNSET
    t_to: Timestamp | UnsetType = UNSET
    source_t_from: Timestamp | UnsetType = UNSET
    source_t_to: Timestamp | UnsetType = UNSET
    max_results: Int64 | UnsetType = UNSET
    last_event_id: EventId | UnsetType = UNSET
    ids: EventIds | UnsetType = UNSET
    payload: Payload | UnsetType = UNSET
    unique_type: bool = False


class Server(Query, tag="server"):
    """See ``model.QueryServerParams``."""

    server_id: Int64
    persisted: bool
    max_results: Int64 | UnsetType = UNSET
    last_event_id: EventId | UnsetType = UNSET


WireQuery: TypeAlias = Latest | Timeseries | Server
