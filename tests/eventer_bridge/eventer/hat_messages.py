"""Our Eventer messages as those of the package hat-event, by its own conversions."""

from typing import Any

from hat.event.eventer import common

from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsAck,
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
    MsgStatusNotify,
)
from tests.support import hat_events


def to_hat(message: Message) -> Any:
    """What hat-event's client or server works with."""
    hat: Any = None
    match message:
        case MsgInitReq(name, token, subscriptions, server_id, persisted):
            hat = name, token, list(subscriptions), server_id, persisted
        case MsgInitRes(None, error):
            hat = error
        case MsgInitRes(status) | MsgStatusNotify(status):
            assert status is not None
            hat = common.Status[status.name]
        case MsgEventsNotify(events) | MsgRegisterRes(events):
            hat = None if events is None else [hat_events.event(i) for i in events]
        case MsgRegisterReq(register_events):
            hat = [hat_events.register_event(i) for i in register_events]
        case MsgQueryReq(params):
            hat = hat_events.query_params(params)
        case MsgQueryRes(result):
            found = [hat_events.event(i) for i in result.events]
            hat = common.QueryResult(found, result.more_follows)
        case MsgEventsAck():
            pass
    return hat


def encode(message: Message) -> tuple[str, bytes]:
    """Type and data as hat-event's client or server sends them (``send_msg`` there)."""
    name = codec.type_name(type(message))
    return name, bytes(common.sbs_repo.encode(name, _to_sbs(message)))


def _to_sbs(message: Message) -> Any:
    hat = to_hat(message)
    value: Any = None
    match message:
        case MsgInitReq(name, token, subscriptions, server_id, persisted):
            value = {
                "clientName": name,
                "clientToken": ("none", None) if token is None else ("value", token),
                "subscriptions": [list(i) for i in subscriptions],
                "serverId": ("none", None) if server_id is None else ("value", server_id),
                "persisted": persisted,
            }
        case MsgInitRes(None):
            value = "error", hat
        case MsgInitRes():
            value = "success", common.status_to_sbs(hat)
        case MsgStatusNotify():
            value = common.status_to_sbs(hat)
        case MsgEventsNotify():
            value = [common.event_to_sbs(i) for i in hat]
        case MsgRegisterReq():
            value = [common.register_event_to_sbs(i) for i in hat]
        case MsgRegisterRes(None):
            value = "failure", None
        case MsgRegisterRes():
            value = "events", [common.event_to_sbs(i) for i in hat]
        case MsgQueryReq():
            value = common.query_params_to_sbs(hat)
        case MsgQueryRes():
            value = common.query_result_to_sbs(hat)
        case MsgEventsAck():
            pass
    return value


def decode(name: str, data: bytes) -> Any:
    """What hat-event's client or server understands (``receive_msg`` there); as ``to_hat``."""
    value = common.sbs_repo.decode(name, data)
    match name.removeprefix("HatEventer."):
        case "MsgInitReq":
            value = (
                value["clientName"],
                _optional(value["clientToken"]),
                [tuple(i) for i in value["subscriptions"]],
                _optional(value["serverId"]),
                value["persisted"],
            )
        case "MsgInitRes":
            is_success = value[0] == "success"
            value = common.status_from_sbs(value[1]) if is_success else value[1]
        case "MsgStatusNotify":
            value = common.status_from_sbs(value)
        case "MsgEventsNotify":
            value = [common.event_from_sbs(i) for i in value]
        case "MsgRegisterReq":
            value = [common.register_event_from_sbs(i) for i in value]
        case "MsgRegisterRes":
            is_success = value[0] == "events"
            value = [common.event_from_sbs(i) for i in value[1]] if is_success else None
        case "MsgQueryReq":
            value = common.query_params_from_sbs(value)
        case "MsgQueryRes":
            value = common.query_result_from_sbs(value)
    return value


def _optional(value: tuple[str, Any]) -> Any:
    return value[1] if value[0] == "value" else None
