"""The ten messages of the Mariner protocol (docs/protocol.md), and four of ours.

Plain values, tagged with their ``msg_type``; most have the same form on the wire. ``codec``
encodes and decodes them, ``protocol`` defines which role may send which of them when. Events,
register events and query parameters are those of ``eventer_bridge.model``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from eventer_bridge import limits, model
from eventer_bridge.errors import Outcome
from eventer_bridge.model import Event, EventId, EventType, HistoryId, Int64

UNKNOWN: Final = Outcome.UNKNOWN.value
UNAVAILABLE: Final = Outcome.UNAVAILABLE.value
"""Outcomes of a registration that failed."""

NEEDS_REQUEST_KEY: Final = "expected with a request_key only"
"""The reason for refusing an ``after_key`` without a ``request_key``."""

RequestKey: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=limits.MAX_REQUEST_KEY_CHARACTERS)
]


class Tagged(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="msg_type"
):
    """Any message. Decoding refuses additional properties: ``lenient`` removes them."""


CursorName: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=limits.MAX_CURSOR_NAME_CHARACTERS)
]
StartIds: TypeAlias = Annotated[
    tuple[EventId, ...], msgspec.Meta(max_length=limits.MAX_REMOTE_SERVERS)
]


class KnownHistory(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Which history the events of a server are of (``eventer_bridge.backends.history``)."""

    server_id: Int64
    id: HistoryId


Histories: TypeAlias = Annotated[
    tuple[KnownHistory, ...], msgspec.Meta(max_length=limits.MAX_REMOTE_SERVERS)
]


class ConnectionAttempt(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A connection of a process, whose name no other has; later ones have greater numbers."""

    reader: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_READER_NAME_CHARACTERS)]
    number: Int64


class InitReq(Tagged, frozen=True, tag="init_req", omit_defaults=True):
    """Client → server, once, first: the client's identity and subscription.

    With ``start`` what was persisted before is sent, too: from the oldest event on, or behind the
    last one that was seen of each server. ``cursor`` names what keeps how far the client
    acknowledged; with it, an older ``attempt`` does not take it from a newer one. ``decline_gap``:
    whether to decline the client if retention deleted what it did not see, and to close it if that
    happens later. ``histories`` are of the events in ``start``, as far as they are known. The
    client wants to know the server's; if they differ, it is told (:class:`Gap`). None: it does not,
    and is declined.
    """

    client_name: str
    client_token: str | None
    subscriptions: tuple[EventType, ...]
    server_id: Int64 | None
    persisted: bool
    start: Literal["earliest"] | StartIds | None = None
    cursor: CursorName | None = None
    decline_gap: bool = False
    histories: Histories | None = None
    attempt: ConnectionAttempt | None = None


class InitRes(Tagged, frozen=True, tag="init_res"):
    """Server → client: ``status`` on success, else ``error``.

    ``extensions`` are those that the server knows, ``histories`` those of the servers whose events
    it has, if the client wants to know. ``cursor_resets``: how often the client's cursor was reset:
    what was acknowledged before the last time counts no more. ``outcome``, of a failure:
    :data:`UNAVAILABLE` if the client was declined for a reason that may pass.
    """

    success: bool
    status: model.Status | None = None
    error: str | None = None
    extensions: tuple[str, ...] = ()
    histories: Histories = ()
    cursor_resets: int = 0
    outcome: str | None = None


class StatusMsg(Tagged, frozen=True, tag="status"):
    """Server → client: the server's status changed."""

    status: model.Status


class EventsMsg(Tagged, frozen=True, tag="events", omit_defaults=True):
    """Server → client: new events of one session, or of several that were persisted before.

    ``redelivered``: they were parked, and are to be tried again.
    """

    events: Sequence[Event]
    redelivered: bool = False


class RegisterReq(Tagged, frozen=True, tag="register_req", omit_defaults=True):
    """Client → server: register these events in one session.

    With a ``request_key`` it can be repeated, and the request ``after_key`` must be stored first.
    """

    register_id: Int64
    register_events: tuple[model.RegisterEvent, ...]
    request_key: RequestKey | None = None
    after_key: RequestKey | None = None

    def __post_init__(self) -> None:
        """Check a rule of the contract: raises ValueError, which decoding makes a refusal."""
        if self.after_key is not None and self.request_key is None:
            raise ValueError(f"after_key: {NEEDS_REQUEST_KEY}")


class RegisterRes(Tagged, frozen=True, tag="register_res"):
    """Server → client: the events in the order of the request, or the reason for a failure.

    ``outcome``, of a failure: :data:`UNKNOWN` if the events may be stored nevertheless,
    :data:`UNAVAILABLE` if they are not, for a reason that may pass; None: they are not.
    ``repeated``: the events were stored before, with the same ``request_key``.
    """

    register_id: Int64
    success: bool
    events: Sequence[Event] | None = None
    error: str | None = None
    outcome: str | None = None
    repeated: bool = False


class QueryReq(Tagged, frozen=True, tag="query_req"):
    """Client → server: one of the three queries."""

    query_id: Int64
    params: model.QueryParams


class QueryRes(Tagged, frozen=True, tag="query_res"):
    """Server → client: events that match a query, and whether there are more."""

    query_id: Int64
    events: Sequence[Event]
    more_follows: bool


class PingReq(Tagged, frozen=True, tag="ping_req"):
    """Either → other: requires an immediate answer."""

    ping_id: Int64


class PingRes(Tagged, frozen=True, tag="ping_res"):
    """Answer to :class:`PingReq`."""

    ping_id: Int64


class Parked(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """An event that a client cannot deal with now, and why."""

    id: EventId
    reason: Annotated[str, msgspec.Meta(max_length=limits.MAX_PARKED_REASON_CHARACTERS)]


class EventsAck(Tagged, frozen=True, tag="events_ack", omit_defaults=True):
    """Client → server: acknowledges events.

    ``ids`` are the last events that are dealt with, of each server, ``parked`` those that are left
    to people, ``done`` redelivered ones that are dealt with.
    """

    ids: StartIds = ()
    parked: Annotated[tuple[Parked, ...], msgspec.Meta(max_length=limits.MAX_PARKED_AT_ONCE)] = ()
    done: StartIds = ()


class UpToDate(Tagged, frozen=True, tag="up_to_date"):
    """Server → client: all events persisted before were sent."""


class OtherHistory(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The client saw other events than the server has, behind the session ``last`` (0: all).

    ``reason`` has more about it, with both histories.
    """

    last: Int64
    reason: str


class Gap(Tagged, frozen=True, tag="gap", omit_defaults=True):
    """Server → client: the next events do not continue those seen by the client.

    ``oldest`` is the next one. ``other_history``: why; None: retention deleted what it did not see.
    """

    server_id: Int64
    oldest: EventId | None
    other_history: OtherHistory | None = None


class CursorLost(Tagged, frozen=True, tag="cursor_lost"):
    """Server → client, before it closes the connection: why the client has the cursor no more."""

    reason: str


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
    | EventsAck
    | UpToDate
    | Gap
    | CursorLost
)


TYPES: Final[tuple[type[Any], ...]] = get_args(Message)
"""All message types."""


def name_of(struct: type[Any]) -> str:
    """``msg_type`` of a message class, or ``query_type`` of a query's properties."""
    return str(struct.__struct_config__.tag)


# --- messages with another form on the wire -----------------------------------------------
# A property whose type depends on another one (``success``, ``query_type``) is kept raw here, or
# is a property of one of the ``QueryProperties``, which are decoded in a second step.


EventTypes: TypeAlias = tuple[EventType, ...]
EventIds: TypeAlias = Annotated[tuple[EventId, ...], msgspec.Meta(max_length=limits.MAX_QUERY_IDS)]


class WireInitRes(Tagged, frozen=True, tag="init_res"):
    """``error`` and ``outcome`` have a defined type on failure, the others on success."""

    success: bool
    status: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    extensions: Raw | UnsetType = UNSET
    histories: Raw | UnsetType = UNSET
    cursor_resets: Raw | UnsetType = UNSET
    outcome: Raw | UnsetType = UNSET


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


WireMessage: TypeAlias = Message | WireInitRes | WireRegisterRes | WireQueryReq
"""A message as it is decoded first: :data:`FORMS` never have their plain form."""

FORMS: Final[Mapping[type[Any], type[Any]]] = {
    InitRes: WireInitRes,
    RegisterRes: WireRegisterRes,
    QueryReq: WireQueryReq,
}


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
    """Properties of a ``query_req`` by its ``query_type``: the model's, in the same order."""


class LatestProperties(QueryProperties, tag="latest", kw_only=True):
    """See ``model.QueryLatestParams``."""

    event_types: EventTypes = ABSENT
    last_event_id: EventId = ABSENT


class TimeseriesProperties(QueryProperties, tag="timeseries", kw_only=True):
    """See ``model.QueryTimeseriesParams``."""

    event_types: EventTypes = ABSENT
    t_from: model.Timestamp = ABSENT
    t_to: model.Timestamp = ABSENT
    source_t_from: model.Timestamp = ABSENT
    source_t_to: model.Timestamp = ABSENT
    order: model.Order
    order_by: model.OrderBy
    max_results: Int64 = ABSENT
    last_event_id: EventId = ABSENT
    ids: EventIds = ABSENT
    payload: model.Payload = ABSENT
    unique_type: bool = False


class ServerProperties(QueryProperties, tag="server", kw_only=True):
    """See ``model.QueryServerParams``."""

    server_id: Int64
    persisted: bool
    max_results: Int64 = ABSENT
    last_event_id: EventId = ABSENT


WireQuery: TypeAlias = LatestProperties | TimeseriesProperties | ServerProperties

QUERIES: Final[Mapping[type[Any], Callable[..., model.QueryParams]]] = {
    LatestProperties: model.QueryLatestParams,
    TimeseriesProperties: model.QueryTimeseriesParams,
    ServerProperties: model.QueryServerParams,
}
"""Parameters by their properties on the wire."""
