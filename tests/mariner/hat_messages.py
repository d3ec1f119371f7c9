"""Our messages as those of the package hat-mariner."""

from typing import Any

from hat.event import common as event_common
from hat.mariner.transport import common

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
from mariner.messages import (
    EventsMsg,
    InitReq,
    InitRes,
    Message,
    PingReq,
    PingRes,
    QueryReq,
    QueryRes,
    RegisterReq,
    RegisterRes,
    StatusMsg,
)


def to_hat(message: Message) -> Any:
    """The message of ``hat.mariner.transport.common`` that says the same."""
    hat: Any
    match message:
        case InitReq(name, token, subscriptions, server_id, persisted):
            hat = common.InitReqMsg(name, token, list(subscriptions), server_id, persisted)
        case InitRes(success, status, error):
            hat = common.InitResMsg(success, status and event_common.Status[status.name], error)
        case StatusMsg(status):
            hat = common.StatusMsg(event_common.Status[status.name])
        case EventsMsg(events):
            hat = common.EventsMsg([_event(i) for i in events])
        case RegisterReq(register_id, register_events):
            hat = common.RegisterReqMsg(register_id, [_register_event(i) for i in register_events])
        case RegisterRes(register_id, success, found):
            registered = None if found is None else [_event(i) for i in found]
            hat = common.RegisterResMsg(register_id, success, registered)
        case QueryReq(query_id, params):
            hat = common.QueryReqMsg(query_id, _params(params))
        case QueryRes(query_id, events, more_follows):
            result = event_common.QueryResult([_event(i) for i in events], more_follows)
            hat = common.QueryResMsg(query_id, result)
        case PingReq(ping_id):
            hat = common.PingReqMsg(ping_id)
        case PingRes(ping_id):
            hat = common.PingResMsg(ping_id)
    return hat


def _params(params: QueryParams) -> Any:
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


def _register_event(event: RegisterEvent) -> Any:
    return event_common.RegisterEvent(
        event.type, _timestamp(event.source_timestamp), _payload(event.payload)
    )


def _event(event: Event) -> Any:
    return event_common.Event(
        _event_id(event.id),
        event.type,
        _timestamp(event.timestamp),
        _timestamp(event.source_timestamp),
        _payload(event.payload),
    )
