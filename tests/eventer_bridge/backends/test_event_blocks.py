"""Events in blocks: in order, and as they were for who reads them."""

from itertools import chain
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.backends import event_blocks
from eventer_bridge.backends.event_blocks import EventBlocks
from eventer_bridge.model import Event, EventId, Timestamp, natural_key

BLOCK: Final = 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_blocks, "BLOCK_EVENTS", BLOCK)


def make(second: int) -> Event:
    return Event(EventId(1, second, 1), ("a",), Timestamp(second, 0), None, None)


def in_order(blocks: list[list[Event]]) -> list[Event]:
    return [*chain.from_iterable(blocks)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1_000)),
        st.tuples(st.just("delete"), st.integers(0, 1_000)),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_what_is_read_is_sorted_and_does_not_change(steps: list[tuple[str, int]]) -> None:
    events = EventBlocks()
    known: list[Event] = []
    seen: list[tuple[list[list[Event]], list[Event]]] = []
    for step, number in steps:
        if step == "add":
            event = make(number)
            if event not in known:
                known = sorted([*known, event], key=natural_key)
                events.add(event)
        elif step == "delete" and events.n_blocks:
            position = number % events.n_blocks
            kept = [event for event in events.block(position) if event.id.session % 3]
            deleted = [event for event in events.block(position) if event not in kept]
            known = [event for event in known if event not in deleted]
            rest = in_order(events.snapshot()[position + 1 :])
            following = events.replace(position, kept)
            assert in_order(events.snapshot()[following:]) == rest
        elif step == "read":
            seen.append((events.snapshot(), known))
    seen.append((events.snapshot(), known))
    assert len(events) == len(known)
    for blocks, expected in seen:
        assert in_order(blocks) == expected
        assert all(1 <= len(block) <= BLOCK for block in blocks)


def test_small_blocks_are_joined() -> None:
    events = EventBlocks()
    for second in range(100 * BLOCK):
        events.add(make(second))
    number = 0
    while number < events.n_blocks:
        number = events.replace(number, [*events.block(number)][:1])
    assert len(events) == 100
    assert events.n_blocks == 100 // BLOCK


def test_what_is_read_does_not_change_when_an_event_is_inserted_or_appended() -> None:
    events = EventBlocks()
    for second in range(0, 200, 10):
        events.add(make(second))
    for second in 5, 6, 7, 8, 9, 95, 195, 196, 300:
        blocks = events.snapshot()
        before = in_order(blocks)
        events.add(make(second))
        assert in_order(blocks) == before
        assert len(in_order(events.snapshot())) == len(before) + 1
