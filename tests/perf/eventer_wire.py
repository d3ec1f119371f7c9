"""The workload over Eventer: the same is asked and answered as over Mariner.

Each request begins a chatter conversation, whose identifier tells which request it is.
"""

from typing import Any, Final

import msgspec

from eventer_bridge.chatter import codec as chatter
from eventer_bridge.eventer import codec as eventer
from eventer_bridge.eventer import messages as eventer_messages
from eventer_bridge.net.framing import encode_frame
from mariner.wire import codec as mariner
from mariner.wire import messages as mariner_messages

_FIRST_REQUEST: Final = 2
"""Chatter's identifier of request 0; the first message is the one that initialises."""


def encode(message: dict[str, Any]) -> bytes:
    """Frame of a request of 002, as ``Wire.encode``."""
    decoded = mariner.decode(msgspec.json.encode(message))
    msg_id, data = 1, b""
    msg_type = chatter.PING_TYPES[chatter.Dialect.CURRENT]
    request: eventer_messages.Message
    match decoded:
        case mariner_messages.PingReq(ping_id):
            msg_id = _FIRST_REQUEST + ping_id
        case mariner_messages.InitReq(name, _, subscriptions, server_id, persisted):
            # the servers that are measured have no token, and take none then
            request = eventer_messages.MsgInitReq(name, None, subscriptions, server_id, persisted)
            msg_type, data = eventer.encode(request)
        case mariner_messages.RegisterReq(register_id, events):
            msg_id = _FIRST_REQUEST + register_id
            msg_type, data = eventer.encode(eventer_messages.MsgRegisterReq(events))
        case mariner_messages.QueryReq(query_id, params):
            msg_id = _FIRST_REQUEST + query_id
            msg_type, data = eventer.encode(eventer_messages.MsgQueryReq(params))
        case _:
            raise AssertionError(f"no request: {decoded}")
    msg = chatter.Msg(msg_id, msg_id, True, True, False, msg_type, data)
    return encode_frame(chatter.encode(msg, chatter.Dialect.CURRENT))


def decode(frame: bytes) -> dict[str, Any]:
    """Message of 002 that means the same, as ``Wire.decode``."""
    msg = chatter.decode(frame, chatter.Dialect.CURRENT)
    request_id = msg.first - _FIRST_REQUEST
    if msg.type == chatter.PONG_TYPES[chatter.Dialect.CURRENT]:
        return {"msg_type": "ping_res", "ping_id": request_id}
    if msg.type == chatter.PING_TYPES[chatter.Dialect.CURRENT]:
        return {"msg_type": "ping_req", "ping_id": request_id}
    message: mariner_messages.Message
    match eventer.decode(msg.type, msg.data):
        case eventer_messages.MsgInitRes(status, error):
            message = mariner_messages.InitRes(status is not None, status, error or None)
        case eventer_messages.MsgRegisterRes(events):
            message = mariner_messages.RegisterRes(request_id, events is not None, events)
        case eventer_messages.MsgQueryRes(result):
            message = mariner_messages.QueryRes(request_id, result.events, result.more_follows)
        case eventer_messages.MsgEventsNotify(events):
            message = mariner_messages.EventsMsg(events)
        case other:
            raise AssertionError(f"no answer: {other}")
    decoded: dict[str, Any] = msgspec.json.decode(mariner.encode(message))
    return decoded
