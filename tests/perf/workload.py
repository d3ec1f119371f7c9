"""What is sent and what has to come back: the same messages for both sides.

Event ``i`` of the series is a pure function of ``i``, so that every answer can be checked
without remembering what was sent. Messages and framing are those of 002.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

EVENT_TYPES: Final = 100
"""Types of the stored events, used in turn."""

NEWEST: Final = 100
"""Events that a timeseries query asks for."""

ASKED_TYPE: Final = 7
"""The one of the types that queries ask for."""

_FIRST_S: Final = 1_700_000_000
"""Source timestamp of event 0; one event each millisecond."""


class WrongAnswerError(RuntimeError):
    """A server's answer is not what the specification and the stored events demand."""


def register_event(index: int) -> dict[str, Any]:
    """Event ``index`` as it is registered; its value tells the index."""
    s, ms = divmod(index, 1_000)
    return {
        "type": ["perf", str(index % EVENT_TYPES)],
        "source_timestamp": {"s": _FIRST_S + s, "us": ms * 1_000},
        "payload": {
            "payload_type": "json",
            "data": {"value": index + 0.5, "unit": "C", "quality": "good"},
        },
    }


def frame(message: dict[str, Any]) -> bytes:
    """A message with its header: one byte m, m bytes length, JSON."""
    data = msgspec.json.encode(message)
    header_size = (len(data).bit_length() + 7) // 8
    return bytes((header_size,)) + len(data).to_bytes(header_size, "big") + data


def init_request(subscriptions: Sequence[Sequence[str]] = ()) -> bytes:
    """The client of ``tests.support.hat_peers.CLIENTS``, by default without notifications."""
    return frame(
        {
            "msg_type": "init_req",
            "client_name": "app",
            "client_token": "secret",
            "subscriptions": subscriptions,
            "server_id": None,
            "persisted": False,
        }
    )


def register_requests(first: int, requests: int, events_per_request: int) -> list[bytes]:
    """Frames that register the events from ``first`` on; ``register_id`` from 0."""
    return [
        frame(
            {
                "msg_type": "register_req",
                "register_id": i,
                "register_events": [
                    register_event(first + i * events_per_request + j)
                    for j in range(events_per_request)
                ],
            }
        )
        for i in range(requests)
    ]


def query_requests(kind: str, requests: int) -> list[bytes]:
    """Frames of one of the queries ``newest``, ``absent``, ``latest``; ``query_id`` from 0."""
    event_type = ["perf", "absent" if kind == "absent" else str(ASKED_TYPE)]
    query: dict[str, Any] = {"query_type": "latest"}
    if kind != "latest":
        query = {
            "query_type": "timeseries",
            "order": "DESCENDING",
            "order_by": "TIMESTAMP",
            "max_results": NEWEST,
        }
    return [
        frame({"msg_type": "query_req", "query_id": i, "event_types": [event_type], **query})
        for i in range(requests)
    ]


def ping_requests(requests: int) -> list[bytes]:
    """Frames of pings; ``ping_id`` from 0."""
    return [frame({"msg_type": "ping_req", "ping_id": i}) for i in range(requests)]


def check_registered(answers: Sequence[bytes], first: int, events_per_request: int) -> None:
    """Every request succeeded, in order, with its events and rising ids.

    Raises:
        WrongAnswerError: one of them did not.
    """
    last_session = -1
    for i, answer in enumerate(answers):
        message = msgspec.json.decode(answer)
        _expect(message["msg_type"], "register_res")
        _expect(message["register_id"], i)
        _expect(message["success"], True)
        begin = first + i * events_per_request
        indexes = range(begin, begin + events_per_request)
        _check_events(message["events"], indexes)

        ids = [event["id"] for event in message["events"]]
        _expect({id_["server"] for id_ in ids}, {1})
        _expect([id_["instance"] for id_ in ids], list(range(1, events_per_request + 1)))
        sessions = {id_["session"] for id_ in ids}
        if len(sessions) != 1 or min(sessions) <= last_session:
            raise WrongAnswerError(f"sessions {sessions} of one request after {last_session}")
        last_session = min(sessions)


def check_queried(answers: Sequence[bytes], kind: str, stored: int) -> None:
    """Every answer holds exactly the events that the query asked for, in order.

    Args:
        answers: to :func:`query_requests` of ``kind``.
        kind: which query.
        stored: how many events of the series, from 0, the server has.

    Raises:
        WrongAnswerError: one of them does not.
    """
    of_type = range(ASKED_TYPE, stored, EVENT_TYPES)[::-1]
    expected: Sequence[int] = {
        "newest": of_type[:NEWEST],
        "absent": of_type[:0],
        "latest": of_type[:1],
    }[kind]
    for i, answer in enumerate(answers):
        message = msgspec.json.decode(answer)
        _expect(message["msg_type"], "query_res")
        _expect(message["query_id"], i)
        _check_events(message["events"], expected)
        _expect(message["more_follows"], kind == "newest" and len(of_type) > NEWEST)
        ids = [(event["id"]["session"], event["id"]["instance"]) for event in message["events"]]
        _expect(ids, sorted(set(ids), reverse=True))


def check_pinged(answers: Sequence[bytes]) -> None:
    """Every ping was answered, in order.

    Raises:
        WrongAnswerError: one was not.
    """
    for i, answer in enumerate(answers):
        _expect(msgspec.json.decode(answer), {"msg_type": "ping_res", "ping_id": i})


def _check_events(events: Sequence[dict[str, Any]], indexes: Iterable[int]) -> None:
    sent = [
        {name: event[name] for name in ("type", "source_timestamp", "payload")} for event in events
    ]
    _expect(sent, [register_event(i) for i in indexes])


def _expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise WrongAnswerError(f"got {str(actual)[:500]}\nexpected {str(expected)[:500]}")
