"""Wrong answers are noticed."""

import copy
from typing import Any

import pytest

from tests.perf import workload

pytestmark = pytest.mark.perf


def _registered(requests: int, events_per_request: int) -> list[dict[str, Any]]:
    """Right answers to ``workload.register_requests(0, …)``."""
    return [
        {
            "msg_type": "register_res",
            "register_id": i,
            "success": True,
            "events": [
                {
                    "id": {"server": 1, "session": 10 + i, "instance": j + 1},
                    "timestamp": {"s": 1, "us": i},
                    **workload.register_event(i * events_per_request + j),
                }
                for j in range(events_per_request)
            ],
        }
        for i in range(requests)
    ]


def test_right_registrations_pass() -> None:
    workload.check_registered(_registered(3, 2), 0, 2)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ((1, "register_id"), 0),
        ((1, "success"), False),
        ((1, "events", 1, "id", "session"), 12),
        ((1, "events", 1, "id", "instance"), 1),
        ((1, "events", 0, "id", "server"), 2),
        ((1, "events", 0, "type"), ["perf", "0"]),
        ((1, "events", 0, "source_timestamp"), None),
        ((1, "events", 0, "payload", "data", "value"), 0),
        ((1, "events"), []),
    ],
)
def test_wrong_registrations_are_noticed(path: tuple[str | int, ...], wrong: object) -> None:
    messages: Any = _registered(3, 2)
    place = messages
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(workload.WrongAnswerError):
        workload.check_registered(messages, 0, 2)


def test_session_that_does_not_rise_is_noticed() -> None:
    messages = _registered(2, 1)
    messages[1]["events"][0]["id"]["session"] = 10
    with pytest.raises(workload.WrongAnswerError, match="sessions"):
        workload.check_registered(messages, 0, 1)


def _queried(indexes: range, more_follows: bool) -> dict[str, Any]:
    events = [
        {
            "id": {"server": 1, "session": i, "instance": 1},
            "timestamp": {"s": 1, "us": i},
            **workload.register_event(i),
        }
        for i in indexes
    ]
    return {"msg_type": "query_res", "query_id": 0, "events": events, "more_follows": more_follows}


def test_only_the_newest_events_in_order_pass() -> None:
    stored = 20_000
    right = _queried(range(19_907, 9_907, -100), True)
    workload.check_queried([right], "newest", stored)

    older = _queried(range(19_807, 9_807, -100), True)
    ascending = copy.deepcopy(right)
    ascending["events"].reverse()
    for wrong in (older, ascending, {**right, "more_follows": False}):
        with pytest.raises(workload.WrongAnswerError):
            workload.check_queried([wrong], "newest", stored)


def test_only_the_latest_event_passes() -> None:
    workload.check_queried([_queried(range(107, 108), False)], "latest", 200)
    with pytest.raises(workload.WrongAnswerError):
        workload.check_queried([_queried(range(7, 8), False)], "latest", 200)


def test_events_of_an_absent_type_are_noticed() -> None:
    workload.check_queried([_queried(range(0), False)], "absent", 200)
    with pytest.raises(workload.WrongAnswerError):
        workload.check_queried([_queried(range(7, 8), False)], "absent", 200)


def test_wrong_pong_is_noticed() -> None:
    pong = {"msg_type": "ping_res", "ping_id": 0}
    workload.check_pinged([pong])
    with pytest.raises(workload.WrongAnswerError):
        workload.check_pinged([pong, pong])


def test_right_entries_pass() -> None:
    workload.check_added([{"msg_type": "added", "id": (1, 0)}, {"msg_type": "added", "id": (1, 1)}])


@pytest.mark.parametrize(
    "wrong", [{"msg_type": "added", "id": (1, 0)}, {"msg_type": "text", "text": "-ERR"}]
)
def test_wrong_entry_is_noticed(wrong: dict[str, Any]) -> None:
    with pytest.raises(workload.WrongAnswerError):
        workload.check_added([{"msg_type": "added", "id": (1, 0)}, wrong])
