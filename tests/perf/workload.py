"""What is sent and what has to come back: the same messages for both sides.

Event ``i`` of the series is a pure function of ``i``, so that every answer can be checked
without remembering what was sent. Messages are those of 002; what they are on the wire is
the business of ``wires``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

EVENT_TYPES: Final = 100
"""Types of the stored events, used in turn, unless a job asks for more ``types``: then
there are so few until the store has ten events of each of ``types``, and all of them from
there on. So a query for the newest 100 of a type is answered in full before and after."""

NEWEST: Final = 100
"""Events that a timeseries query asks for."""

ASKED_TYPE: Final = 7
"""The one of the types that queries ask for."""

_FIRST_S: Final = 1_700_000_000
"""Source timestamp of event 0; one event each millisecond."""


class WrongAnswerError(RuntimeError):
    """A server's answer is not what the specification and the stored events demand."""


def n_types(index: int, types: int) -> int:
    """How many types are used in turn when event ``index`` is registered."""
    return EVENT_TYPES if index < 10 * types else types


def register_event(index: int, types: int = EVENT_TYPES) -> dict[str, Any]:
    """Event ``index`` as it is registered; its value tells the index."""
    s, ms = divmod(index, 1_000)
    return {
        "type": ["perf", str(index % n_types(index, types))],
        "source_timestamp": {"s": _FIRST_S + s, "us": ms * 1_000},
        "payload": {
            "payload_type": "json",
            "data": {"value": index + 0.5, "unit": "C", "quality": "good"},
        },
    }


def init_request(subscriptions: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """The client of ``tests.support.hat_peers.CLIENTS``, by default without notifications."""
    return {
        "msg_type": "init_req",
        "client_name": "app",
        "client_token": "secret",
        "subscriptions": subscriptions,
        "server_id": None,
        "persisted": False,
    }


def register_requests(
    first: int,
    requests: int,
    events_per_request: int,
    types: int = EVENT_TYPES,
    *,
    make_key: Callable[[], str] | None = None,
    step: int = 0,
) -> Iterator[dict[str, Any]]:
    """Requests that register the events from ``first`` on; ``register_id`` from 0.

    With ``make_key`` they have keys, and each comes after the one before it, as those of
    ``ReconnectingClient``. With ``step`` each begins so many events after the one before it (other
    connections send those between them), or before it, if that is negative.
    """
    before = None
    for i in range(requests):
        begin = first + i * (step or events_per_request)
        events = [register_event(begin + j, types) for j in range(events_per_request)]
        request = {"msg_type": "register_req", "register_id": i, "register_events": events}
        if make_key is not None:
            request["request_key"] = make_key()
            if before is not None:
                request["after_key"] = before
            before = request["request_key"]
        yield request


def asked_type(kind: str, query_id: int, stored: int, types: int = EVENT_TYPES) -> str:
    """The type that a query asks for: always the same, or (``spread``) each another."""
    if kind == "absent":
        return "absent"
    if kind == "spread":
        return str((ASKED_TYPE + query_id * 37) % n_types(stored - 1, types))
    return str(ASKED_TYPE)


def query_requests(
    kind: str, requests: int, stored: int, types: int = EVENT_TYPES
) -> Iterator[dict[str, Any]]:
    """A query: ``newest``, ``spread``, ``absent``, ``latest``; ``query_id`` from 0."""
    query: dict[str, Any] = {"query_type": "latest"}
    if kind != "latest":
        query = {
            "query_type": "timeseries",
            "order": "DESCENDING",
            "order_by": "TIMESTAMP",
            "max_results": NEWEST,
        }
    for i in range(requests):
        event_types = [["perf", asked_type(kind, i, stored, types)]]
        yield {"msg_type": "query_req", "query_id": i, "event_types": event_types, **query}


def ping_requests(requests: int) -> Iterator[dict[str, Any]]:
    """Pings; ``ping_id`` from 0."""
    return ({"msg_type": "ping_req", "ping_id": i} for i in range(requests))


def last_event_mark(events: int) -> bytes:
    """Bytes that of the events from 0 on only the last one has, on any wire."""
    return str(events - 1 + 0.5).encode()


def check_registered(
    answers: Iterable[dict[str, Any]],
    first: int,
    events_per_request: int,
    types: int = EVENT_TYPES,
    *,
    step: int = 0,
) -> None:
    """Every request of :func:`register_requests` succeeded, in order, with rising ids.

    Raises:
        WrongAnswerError: one of them did not.
    """
    last_session = -1
    for i, message in enumerate(answers):
        _expect(message["msg_type"], "register_res")
        _expect(message["register_id"], i)
        _expect(message["success"], True)
        begin = first + i * (step or events_per_request)
        indexes = range(begin, begin + events_per_request)
        _check_events(message["events"], indexes, types)

        ids = [event["id"] for event in message["events"]]
        _expect({id_["server"] for id_ in ids}, {1})
        _expect([id_["instance"] for id_ in ids], list(range(1, events_per_request + 1)))
        sessions = {id_["session"] for id_ in ids}
        if len(sessions) != 1 or min(sessions) <= last_session:
            raise WrongAnswerError(f"sessions {sessions} of one request after {last_session}")
        last_session = min(sessions)


def check_added(answers: Iterable[dict[str, Any]]) -> None:
    """Every event became an entry of one stream, with rising ids.

    Raises:
        WrongAnswerError: one did not.
    """
    last_id = (0, 0)
    for answer in answers:
        _expect(answer["msg_type"], "added")
        if answer["id"] <= last_id:
            raise WrongAnswerError(f"id {answer['id']} after {last_id}")
        last_id = answer["id"]


def check_queried(
    answers: Iterable[dict[str, Any]], kind: str, stored: int, types: int = EVENT_TYPES
) -> None:
    """Every answer holds exactly the events that the query asked for, in order.

    Args:
        answers: to :func:`query_requests` of ``kind``.
        kind: which query.
        stored: how many events of the series, from 0, the server has.
        types: how many types they have.

    Raises:
        WrongAnswerError: one of them does not.
    """
    n_asked = {"absent": 0, "latest": 1}.get(kind, NEWEST)
    found: dict[str, list[int]] = {}
    for i, message in enumerate(answers):
        name = asked_type(kind, i, stored, types)
        if name not in found:
            found[name] = _newest(name, n_asked + 1, stored, types)
        expected = found[name][:n_asked]
        _expect(message["msg_type"], "query_res")
        _expect(message["query_id"], i)
        _check_events(message["events"], expected, types)
        _expect(message["more_follows"], kind != "latest" and len(found[name]) > n_asked)
        ids = [(event["id"]["session"], event["id"]["instance"]) for event in message["events"]]
        _expect(ids, sorted(set(ids), reverse=True))


def check_pinged(answers: Iterable[dict[str, Any]]) -> None:
    """Every ping was answered, in order.

    Raises:
        WrongAnswerError: one was not.
    """
    for i, answer in enumerate(answers):
        _expect(answer, {"msg_type": "ping_res", "ping_id": i})


def check_notified(messages: Iterable[dict[str, Any]], count: int) -> None:
    """A subscriber heard of the events from 0 to ``count``, once and in order.

    Raises:
        WrongAnswerError: it did not.
    """
    events: list[dict[str, Any]] = []
    for message in messages:
        if message["msg_type"] != "ping_req":  # the server looks after a silent subscriber
            _expect(message["msg_type"], "events")
            events += message["events"]
    _check_events(events, range(count), EVENT_TYPES)


def _newest(name: str, count: int, stored: int, types: int) -> list[int]:
    """Indexes of the newest events of a type."""
    if not name.isdigit():
        return []
    number = int(name)
    begin = 10 * types
    late = range(begin + (number - begin) % types, stored, types)
    early = range(number, min(begin, stored), EVENT_TYPES) if number < EVENT_TYPES else range(0)
    return list(islice((*reversed(late), *reversed(early)), count))


def _check_events(events: Sequence[dict[str, Any]], indexes: Iterable[int], types: int) -> None:
    sent = [
        {name: event[name] for name in ("type", "source_timestamp", "payload")} for event in events
    ]
    _expect(sent, [register_event(i, types) for i in indexes])


def _expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise WrongAnswerError(f"got {str(actual)[:500]}\nexpected {str(expected)[:500]}")
