"""Mariner messages that stand on the wire in another form (002, "JSON Schema definitions").

Where the type of a property depends on another one (``success``, ``query_type``), it is kept raw
here or is a property of one of the ``QueryProperties``, which are decoded in a second step.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from eventer_bridge import limits
from eventer_bridge.model import (
    EventId,
    EventType,
    Int64,
    Order,
    OrderBy,
    Payload,
    Timestamp,
)
from mariner.wire.messages import (
    EventsMsg,
    InitReq,
    PingReq,
    PingRes,
    QueryRes,
    RegisterReq,
    StatusMsg,
    Tagged,
)

EventTypes: TypeAlias = tuple[EventType, ...]
EventIds: TypeAlias = Annotated[tuple[EventId, ...], msgspec.Meta(max_length=limits.MAX_QUERY_IDS)]


class WireInitRes(Tagged, frozen=True, tag="init_res"):
    """``status`` is of a defined type in a success, ``error`` in a failure."""

    success: bool
    status: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireRegisterRes(Tagged, frozen=True, tag="register_res"):
    """``events`` are of a defined type in a success, the others in a failure."""

    register_id: Int64
    success: bool
    events: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    outcome: Raw | UnsetType = UNSET


class WireQueryReq(Tagged, frozen=True, tag="query_req", forbid_unknown_fields=False):
    """What the three kinds of query have in common; the rest is in a :class:`WireQuery`."""

    query_id: Int64
    query_type: str


WireMessage: TypeAlias = (
    InitReq
    | WireInitRes
    | StatusMsg
    | EventsMsg
    | RegisterReq
    | WireRegisterRes
    | WireQueryReq
    | QueryRes
    | PingReq
    | PingRes
)


class Head(msgspec.Struct, gc=False):
    """What a refusal tells of any message."""

    msg_type: Raw | UnsetType = UNSET
    register_id: Raw | UnsetType = UNSET


class QueryProperties(msgspec.Struct, gc=False, tag_field="query_type"):
    """Properties of a ``query_req`` that depend on its ``query_type``.

    Optional ones may be absent, but not null.
    """


class LatestProperties(QueryProperties, tag="latest"):
    """See ``model.QueryLatestParams``."""

    event_types: EventTypes | UnsetType = UNSET
    last_event_id: EventId | UnsetType = UNSET


class TimeseriesProperties(QueryProperties, tag="timeseries"):
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


class ServerProperties(QueryProperties, tag="server"):
    """See ``model.QueryServerParams``."""

    server_id: Int64
    persisted: bool
    max_results: Int64 | UnsetType = UNSET
    last_event_id: EventId | UnsetType = UNSET


WireQuery: TypeAlias = LatestProperties | TimeseriesProperties | ServerProperties
