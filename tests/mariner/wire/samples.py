"""Messages of all ten kinds, in each of their forms."""

from typing import Final

from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    Payload,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    Timestamp,
)
from mariner.wire.messages import (
    UNAVAILABLE,
    UNKNOWN,
    ConnectionAttempt,
    CursorLost,
    EventsAck,
    EventsMsg,
    Gap,
    InitReq,
    InitRes,
    KnownHistory,
    Message,
    OtherHistory,
    Parked,
    PingReq,
    PingRes,
    QueryReq,
    QueryRes,
    RegisterReq,
    RegisterRes,
    StatusMsg,
    UpToDate,
)

_PAYLOADS: Final[tuple[Payload | None, ...]] = (
    None,
    BinaryPayload("blob", bytes(range(256))),
    BinaryPayload("", b""),
    JsonPayload.of({"value": 21.5, "unit": "°C", "nested": [None, True, {"": -1}]}),
    JsonPayload.of(None),
)

_REGISTER_EVENTS: Final = tuple(
    RegisterEvent(("plant", "žižula", str(i)), Timestamp(-1, 999_999) if i % 2 else None, payload)
    for i, payload in enumerate(_PAYLOADS)
)

_EVENTS: Final = [
    Event(EventId(1, 2, i + 1), each.type, Timestamp(1_700_000_000, i), each.source_timestamp, p)
    for i, (each, p) in enumerate(zip(_REGISTER_EVENTS, _PAYLOADS, strict=True))
]

SAMPLES: Final[dict[str, Message]] = {
    "init_req": InitReq("app", "secret", (("a", "?", "*"), ("b",), ()), 1, True),
    "init_req, bare": InitReq("", None, (), None, False),
    "init_res, success": InitRes(True, status=Status.OPERATIONAL),
    "init_res, failure": InitRes(False, error="wrong client name or token"),
    "status": StatusMsg(Status.STANDBY),
    "events": EventsMsg(_EVENTS),
    "events, none": EventsMsg([]),
    "register_req": RegisterReq(-(1 << 63), _REGISTER_EVENTS),
    "register_req, no events": RegisterReq(0, ()),
    "register_res, success": RegisterRes((1 << 63) - 1, True, events=_EVENTS),
    "register_res, failure": RegisterRes(3, False),
    "query_req, latest": QueryReq(4, QueryLatestParams((("a", "*"),))),
    "query_req, latest, all": QueryReq(4, QueryLatestParams()),
    "query_req, timeseries": QueryReq(
        5,
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
        ),
    ),
    "query_req, timeseries, bare": QueryReq(5, QueryTimeseriesParams()),
    "query_req, server": QueryReq(6, QueryServerParams(1, True, 100, EventId(1, 2, 3))),
    "query_req, server, bare": QueryReq(6, QueryServerParams(-1)),
    "query_res": QueryRes(7, _EVENTS, True),
    "query_res, none": QueryRes(7, [], False),
    "ping_req": PingReq(8),
    "ping_res": PingRes(8),
}
"""By name; each is also what hat-mariner can say (``tests/vectors``)."""

EXTENDED_QUERIES: Final = (
    QueryReq(
        9,
        QueryTimeseriesParams(
            ids=(EventId(1, 2, 3), EventId(-1, 0, 1)),
            payload=JsonPayload.of({"a": [None]}),
            unique_type=True,
        ),
    ),
    QueryReq(9, QueryTimeseriesParams(ids=(), payload=BinaryPayload("t", b"\x00"))),
    QueryReq(9, QueryLatestParams((("a", "*"),), EventId(1, 2, 3))),
)
"""What only we say: 002 has not all conditions of 000, and no pages of the latest."""

EXTENDED_MESSAGES: Final = (
    InitRes(True, status=Status.STANDBY, extensions=("replay", "é")),
    InitRes(False, error="too many connections", outcome="unavailable"),
    RegisterReq(1, _REGISTER_EVENTS, "k" * 64),
    RegisterReq(1, _REGISTER_EVENTS, "key", "the one before"),
    RegisterRes(1, True, events=_EVENTS, repeated=True),
    InitReq("app", None, (), None, True, start="earliest", cursor="c", decline_gap=True),
    InitReq("app", None, (), None, True, start=(EventId(1, 2, 3),)),
    InitReq("app", None, (), None, True, start=()),
    InitReq("app", None, (), None, True, start=(), histories=()),
    InitReq(
        "app",
        None,
        (),
        None,
        True,
        start=(EventId(1, 2, 3),),
        cursor="c",
        histories=(KnownHistory(1, "é"),),
        attempt=ConnectionAttempt("me", -1),
    ),
    InitRes(True, status=Status.STANDBY, cursor_resets=2),
    InitRes(True, status=Status.STANDBY, histories=(KnownHistory(-1, "a"), KnownHistory(2, ""))),
    EventsMsg(_EVENTS, redelivered=True),
    EventsAck((EventId(1, 2, 3),), (Parked(EventId(1, 2, 2), "why"),), (EventId(0, 1, 1),)),
    EventsAck(),
    UpToDate(),
    Gap(1, EventId(1, 5, 1)),
    Gap(-1, None),
    Gap(1, None, OtherHistory(0, "why")),
    CursorLost("another connection has it"),
)
"""What only we say beyond 002: extensions."""

FAILED_REGISTRATIONS: Final = (
    RegisterRes(3, False, error="not allowed: a/b"),
    RegisterRes(3, False, error="outcome unknown: a sync failed", outcome=UNKNOWN),
    RegisterRes(3, False, error="server is STANDBY, not OPERATIONAL", outcome=UNAVAILABLE),
)
"""What only we say: hat-mariner gives no reason, and knows no outcome but success and failure."""
