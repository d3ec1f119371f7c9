"""Eventer messages of all nine kinds, in each of their forms."""

from typing import Any, Final

from hat import json as hat_json
from msgspec import Raw

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
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    Payload,
    QueryLatestParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    Timestamp,
)


def json_payload(value: Any) -> JsonPayload:
    """A payload with the same text that hat-event makes of the value."""
    return JsonPayload(Raw(hat_json.encode(value).encode()))


_PAYLOADS: Final[tuple[Payload | None, ...]] = (
    None,
    BinaryPayload("blob", bytes(range(256))),
    BinaryPayload("", b""),
    json_payload({"value": 21.5, "unit": "°C", "nested": [None, True, {"": -1}]}),
    json_payload(None),
    json_payload("x" * 100),
)

_SOURCE_TIMESTAMPS: Final = (
    None,
    Timestamp(-1, 999_999),
    Timestamp(INT64_MIN, 0),
    Timestamp(INT64_MAX, 63),
    Timestamp(1_700_000_000, 0x2000 - 1),
    Timestamp(1 << 33, 0x2000),
)

_REGISTER_EVENTS: Final = [
    RegisterEvent(("plant", "žižula", str(i) * i), source_timestamp, payload)
    for i, (source_timestamp, payload) in enumerate(zip(_SOURCE_TIMESTAMPS, _PAYLOADS, strict=True))
]

_NOW: Final = Timestamp(1_700_000_000, 5)

_EVENTS: Final = [
    Event(EventId(1, 2, i * 700), each.type, _NOW, each.source_timestamp, each.payload)
    for i, each in enumerate(_REGISTER_EVENTS)
]

_OTHER_SESSIONS: Final = [
    Event(EventId(*i), (), Timestamp(i[1], 1), None, None)
    for i in ((1, 2, 3), (1, 3, 1), (2, 3, 1), (INT64_MIN, INT64_MAX, -1), (12, 3, 1), (1, 23, 1))
]

SAMPLES: Final[dict[str, Message]] = {
    "init_req": MsgInitReq("gui/1", "secret", (("a", "?", "*"), ("b",), ()), 1, True),
    "init_req, bare": MsgInitReq("", None, (), None, False),
    **{f"init_res, {i.name}": MsgInitRes(i) for i in Status},
    "init_res, error": MsgInitRes(None, "wrong client name or token: žižula"),
    **{f"status_notify, {i.name}": MsgStatusNotify(i) for i in Status},
    "events_notify": MsgEventsNotify(_EVENTS),
    "events_notify, one": MsgEventsNotify(_EVENTS[:1]),
    "events_notify, none": MsgEventsNotify([]),
    "events_ack": MsgEventsAck(),
    "register_req": MsgRegisterReq(_REGISTER_EVENTS),
    "register_req, no events": MsgRegisterReq([]),
    "register_res, events": MsgRegisterRes(_EVENTS),
    "register_res, no events": MsgRegisterRes([]),
    "register_res, failure": MsgRegisterRes(None),
    "query_req, latest": MsgQueryReq(QueryLatestParams((("a", "*"), ()))),
    "query_req, latest, all": MsgQueryReq(QueryLatestParams()),
    "query_req, timeseries": MsgQueryReq(
        QueryTimeseriesParams(
            (("a",), ("*",)),
            Timestamp(1, 2),
            Timestamp(3, 4),
            Timestamp(5, 6),
            Timestamp(7, 8),
            Order.ASCENDING,
            OrderBy.SOURCE_TIMESTAMP,
            0,
            EventId(9, 10, 11),
        )
    ),
    "query_req, timeseries, bare": MsgQueryReq(QueryTimeseriesParams()),
    "query_req, server": MsgQueryReq(QueryServerParams(1, True, INT64_MAX, EventId(1, 2, 3))),
    "query_req, server, bare": MsgQueryReq(QueryServerParams(-1)),
    "query_res": MsgQueryRes(QueryResult(_EVENTS + _OTHER_SESSIONS, True)),
    "query_res, none": MsgQueryRes(QueryResult([], False)),
}
"""By name; each is also what hat-event can say (``tests/vectors``)."""
