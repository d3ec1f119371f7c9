import pytest

from eventer_bridge import limits
from eventer_bridge.backends.request_keys import digest_in_steps, digests
from eventer_bridge.model import BinaryPayload, JsonPayload, RegisterEvent
from eventer_bridge.packed import batch_of
from eventer_bridge.slices import at_once
from tests.eventer_bridge.backends.oracle import draft, numbered
from tests.eventer_bridge.backends.putting import TYPES


def test_digests_are_those_that_stores_hold() -> None:
    requests: list[list[RegisterEvent]] = [
        [],
        [draft("a/b")],
        [draft("a", 1, JsonPayload.of({"x": 1})), draft("b", None, BinaryPayload("t", b"12"))],
    ]
    assert [i.hex() for i in digests(batch_of(i, TYPES) for i in requests)] == [
        "39347ff402b6c53d831154110e30ac6a",
        "722f01a3ab140e153eb39de4b92f2e3a",
        "1440d9f1df262f9dedcc12c3bc7d05a7",
    ]


@pytest.mark.parametrize(
    "n_events", [1, limits.STEP_EVENTS, limits.STEP_EVENTS + 1, 3 * limits.STEP_EVENTS]
)
def test_the_digest_of_a_large_request_is_that_of_any(n_events: int) -> None:
    events = numbered(*"ab" * n_events)[:n_events]
    assert [at_once(digest_in_steps(events))] == list(digests([batch_of(events, TYPES)]))
