"""Mariner messages with another form on the wire (002, "JSON Schema definitions").

A property whose type depends on another one (``success``, ``query_type``) is kept raw here, or
is a property of one of the ``QueryProperties``, which are decoded in a second step.
"""

from typing import Annotated, Any, Final, TypeAlias

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
    CursorLost,
    EventsAck,
    EventsMsg,
    Gap,
    InitReq,
    PingReq,
    PingRes,
    QueryRes,
    RegisterReq,
    StatusMsg,
    Tagged,
    UpToDate,
)

EventTypes: TypeAlias = tuple[EventType, ...]
EventIds: TypeAlias = Annotated[tuple[EventId, ...], msgspec.Meta(max_length=limits.MAX_QUERY_IDS)]


class WireInitRes(Tagged, frozen=True, tag="init_res"):
    """``error`` has a defined type on failure, the others on success."""

    success: bool
    status: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    extensions: Raw | UnsetType = UNSET
    histories: Raw | UnsetType = UNSET
    cursor_resets: Raw | UnsetType = UNSET


class WireRegisterRes(Tagged, frozen=True, tag="register_res"):
    """``events`` and ``repeated`` have a defined type on success, the others on failure."""

    register_id: Int64
    success: bool
    events: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    outcome: Raw | UnsetType = UNSET
    repeated: Raw | UnsetType = UNSET


class WireQueryReq(Tagged, frozen=True, tag="query_req", forbid_unknown_fields=False):
    """Common properties of the three kinds of query; the others are in a :class:`WireQuery`."""

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
    | EventsAck
    | UpToDate
    | Gap
    | CursorLost
)


class Head(msgspec.Struct, gc=False):
    """Properties of any message for its refusal."""

    msg_type: Raw | UnsetType = UNSET
    register_id: Raw | UnsetType = UNSET


class RawEvents(msgspec.Struct, gc=False):
    """The events of any message that has some to register."""

    register_events: tuple[Raw, ...] = ()


class Types(msgspec.Struct, gc=False):
    """The types of any query, as they came."""

    event_types: Raw | UnsetType = UNSET


ABSENT: Final[Any] = None
"""Default of a property that may be absent, but not null."""


class QueryProperties(msgspec.Struct, gc=False, tag_field="query_type", kw_only=True):
    """Properties of a ``query_req`` that depend on its ``query_type``.

    They are those of the model, in the same order.
    """


class LatestProperties(QueryProperties, tag="latest", kw_only=True):
    """See ``model.QueryLatestParams``."""

    event_types: EventTypes = ABSENT
    last_event_id: EventId = ABSENT


class TimeseriesProperties(QueryProperties, tag="timeseries", kw_only=True):
    """See ``model.QueryTimeseriesParams``."""

    event_types: EventTypes = ABSENT
    t_from: Timestamp = ABSENT
    t_to: Timestamp = ABSENT
    source_t_from: Timestamp = ABSENT
    source_t_to: Timestamp = ABSENT
    order: Order
    order_by: OrderBy
    max_results: Int64 = ABSENT
    last_event_id: EventId = ABSENT
    ids: EventIds = ABSENT
    payload: Payload = ABSENT
    unique_type: bool = False


class ServerProperties(QueryProperties, tag="server", kw_only=True):
    """See ``model.QueryServerParams``."""

    server_id: Int64
    persisted: bool
    max_results: Int64 = ABSENT
    last_event_id: EventId = ABSENT


WireQuery: TypeAlias = LatestProperties | TimeseriesProperties | ServerProperties
