"""Events and queries of ours as those of the package hat-event."""

from typing import Any, Final

from hat import json as hat_json
from hat.event import common as event_common
from msgspec import Raw

from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Payload,
    QueryLatestParams,
    QueryParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)


def query_params(params: QueryParams) -> Any:
    """``hat.event.common.QueryParams``."""
    types = None
    if isinstance(params, QueryLatestParams | QueryTimeseriesParams):
        types = None if params.event_types is None else list(params.event_types)
        if isinstance(params, QueryLatestParams):
            return event_common.QueryLatestParams(types)
        return event_common.QueryTimeseriesParams(
            types,
            _timestamp(params.t_from),
            _timestamp(params.t_to),
            _timestamp(params.source_t_from),
            _timestamp(params.source_t_to),
            event_common.Order[params.order.name],
            event_common.OrderBy[params.order_by.name],
            params.max_results,
            _event_id(params.last_event_id),
        )
    return event_common.QueryServerParams(
        params.server_id, params.persisted, params.max_results, _event_id(params.last_event_id)
    )


def _timestamp(timestamp: Timestamp | None) -> Any:
    return timestamp and event_common.Timestamp(timestamp.s, timestamp.us)


def _event_id(event_id: EventId | None) -> Any:
    return event_id and event_common.EventId(event_id.server, event_id.session, event_id.instance)


def _payload(payload: Payload | None) -> Any:
    match payload:
        case BinaryPayload(data_type, data):
            return event_common.EventPayloadBinary(data_type, data)
        case JsonPayload():
            return event_common.EventPayloadJson(payload.value())
    return None


def register_event(event: RegisterEvent) -> Any:
    """``hat.event.common.RegisterEvent``."""
    return event_common.RegisterEvent(
        event.type, _timestamp(event.source_timestamp), _payload(event.payload)
    )


def as_sent(event: RegisterEvent) -> RegisterEvent:
    """The event as hat-event's client sends it, which writes JSON with spaces."""
    if not isinstance(event.payload, JsonPayload):
        return event
    payload = JsonPayload(Raw(hat_json.encode(event.payload.value()).encode()))
    return RegisterEvent(event.type, event.source_timestamp, payload)


def event(event: Event) -> Any:
    """``hat.event.common.Event``."""
    return event_common.Event(
        _event_id(event.id),
        event.type,
        _timestamp(event.timestamp),
        _timestamp(event.source_timestamp),
        _payload(event.payload),
    )


def event_of(theirs: Any) -> Event:
    """The opposite of :func:`event`."""
    payload: Payload | None = None
    match theirs.payload:
        case event_common.EventPayloadBinary(data_type, data):
            payload = BinaryPayload(data_type, data)
        case event_common.EventPayloadJson(value):
            payload = JsonPayload.of(value)
    source = theirs.source_timestamp
    return Event(
        EventId(*theirs.id),
        theirs.type,
        Timestamp(*theirs.timestamp),
        source and Timestamp(*source),
        payload,
    )


UNREADABLE: Final = (
    event_common.RegisterEvent(("x",), None, event_common.EventPayloadJson("\ud800")),
    event_common.RegisterEvent(("x",), event_common.Timestamp(0, 1_000_000), None),
    event_common.RegisterEvent(("x",) * 66, None, None),
)
"""Events that hat-event stores, and that are not valid here.

(Of an event with negative microseconds its LMDB backend dies.)
"""

UNSTORABLE: Final = (
    event_common.RegisterEvent(("x", "?"), None, None),
    event_common.RegisterEvent(("x", "*"), None, None),
    event_common.RegisterEvent(("x",) * 65, None, None),
    event_common.RegisterEvent(("x", "y" * 2_000), None, None),
)
"""Events that hat-event stores, and that can be shown here, but not stored."""
