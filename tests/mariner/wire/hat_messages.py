"""Our messages as those of the package hat-mariner."""

from typing import Any

from hat.event import common as event_common
from hat.mariner.transport import common

from mariner.wire.messages import (
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
from tests.support import hat_events


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
            hat = common.EventsMsg([hat_events.event(i) for i in events])
        case RegisterReq(register_id, register_events):
            hat = common.RegisterReqMsg(
                register_id, [hat_events.register_event(i) for i in register_events]
            )
        case RegisterRes(register_id, success, found):
            registered = None if found is None else [hat_events.event(i) for i in found]
            hat = common.RegisterResMsg(register_id, success, registered)
        case QueryReq(query_id, params):
            hat = common.QueryReqMsg(query_id, hat_events.query_params(params))
        case QueryRes(query_id, events, more_follows):
            result = event_common.QueryResult([hat_events.event(i) for i in events], more_follows)
            hat = common.QueryResMsg(query_id, result)
        case PingReq(ping_id):
            hat = common.PingReqMsg(ping_id)
        case PingRes(ping_id):
            hat = common.PingResMsg(ping_id)
    return hat
