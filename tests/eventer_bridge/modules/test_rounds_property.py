"""Random modules and registrations: what each session saw equals a naive reference."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import EventType, ProcessEvent
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    Scripted,
    register_event,
    running,
    stored,
)
from tests.support.examples import examples

MAX_ROUNDS = 5
MAX_EVENTS = 40


class Behaviour(NamedTuple):
    """What a module does.

    Attributes:
        query_types: its subscription.
        additions: types that it adds for an event of a type.
        raises_on: type of events on which it raises.
        delays: how many turns of the loop its calls take, repeated.
    """

    query_types: list[EventType]
    additions: dict[EventType, list[EventType]]
    raises_on: EventType | None
    delays: list[int]


class Outcome(NamedTuple):
    """What becomes of a session: its events, or the kind of error; what each module saw."""

    events: list[EventType] | str
    seen: list[list[list[EventType]]]


event_types = st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map(tuple)
query_types = st.one_of(
    event_types,
    st.lists(st.sampled_from("ab?"), max_size=2).map(lambda i: (*i, "*")),
    st.just(("?", "a")),
)
behaviours = st.builds(
    Behaviour,
    st.lists(query_types, max_size=3),
    st.dictionaries(event_types, st.lists(event_types, min_size=1, max_size=2), max_size=3),
    st.none() | event_types,
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)


def matches(query_type: EventType, event_type: EventType) -> bool:
    if not query_type:
        return not event_type
    if query_type[0] == "*":
        return True
    return (
        bool(event_type)
        and query_type[0] in {"?", event_type[0]}
        and matches(query_type[1:], event_type[1:])
    )


def reference(modules: list[Behaviour], requested: list[EventType]) -> Outcome:
    """One module after the other, one event after the other."""
    seen: list[list[list[EventType]]] = [[] for _ in modules]
    events = list(requested)
    first_new = 0
    for round_number in range(1, MAX_ROUNDS + 2):
        new = events[first_new:]
        if not new:
            break
        if round_number > MAX_ROUNDS:
            return Outcome("LimitError", seen)
        first_new = len(events)
        has_raised = False
        for module, seen_by_it in zip(modules, seen, strict=True):
            offered = [i for i in new if any(matches(j, i) for j in module.query_types)]
            if offered:
                seen_by_it.append(offered)
            has_raised |= module.raises_on in offered
            for i in offered:
                events += module.additions.get(i, [])
        if has_raised:
            return Outcome("ModuleError", seen)
        if len(events) > MAX_EVENTS:
            return Outcome("LimitError", seen)
    return Outcome(events, seen)


def behave(module: Scripted, behaviour: Behaviour) -> None:
    n_calls = 0

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        nonlocal n_calls
        n_calls += 1
        for _ in range(behaviour.delays[n_calls % len(behaviour.delays)]):
            await asyncio.sleep(0)
        if any(i.type == behaviour.raises_on for i in events):
            raise RuntimeError("as told")
        return [
            module.event(*i) for event in events for i in behaviour.additions.get(event.type, ())
        ]

    module.on_process = on_process


async def check(modules: list[Behaviour], requests: list[list[EventType]]) -> None:
    async with running(*(Subscription(i.query_types) for i in modules)) as (core, made):
        for module, behaviour in zip(made, modules, strict=True):
            behave(module, behaviour)
        sessions = []
        for number, request in enumerate(requests):
            sessions.append(core.register(CONNECTION, [register_event(*i) for i in request]))
            if number % 2:
                await asyncio.sleep(0)  # some are registered while others are processed
        await asyncio.wait([i.committed for i in sessions])
        expected = [reference(modules, i) for i in requests]

        all_events: list[EventType] = []
        for number, (session, outcome) in enumerate(zip(sessions, expected, strict=True)):
            error = session.committed.exception()
            if error is None:
                assert [i.type for i in session.events] == outcome.events
                assert {i.id.session for i in session.events} == {number + 2}
                assert [i.id.instance for i in session.events] == list(
                    range(1, len(session.events) + 1)
                )
                all_events += [i.type for i in session.events]
            else:
                assert isinstance(error, EventerBridgeError)
                assert type(error).__name__ == outcome.events
            for module, seen in zip(made, outcome.seen, strict=True):
                assert module.seen.get(number + 2, []) == seen
        assert [i.type for i in await stored(core)] == all_events

        await core.stop()
        for module in made:
            assert module.n_sessions == len(module.closed)  # each session closed, once
            told = {i: is_committed for i, is_committed in module.closed if i is not None}
            assert told == {i: sessions[i - 2].committed.exception() is None for i in module.seen}


@given(
    st.lists(behaviours, min_size=1, max_size=4),
    st.lists(st.lists(event_types, min_size=1, max_size=4), min_size=1, max_size=6),
)
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_modules(
    monkeypatch: pytest.MonkeyPatch, modules: list[Behaviour], requests: list[list[EventType]]
) -> None:
    monkeypatch.setattr(limits, "MAX_MODULE_ROUNDS", MAX_ROUNDS)
    monkeypatch.setattr(limits, "MAX_SESSION_EVENTS", MAX_EVENTS)
    uvloop.run(check(modules, requests))


def test_the_reference_knows_every_outcome() -> None:
    endless = Behaviour([("*",)], {("a",): [("a",)]}, None, [0])
    raising = Behaviour([("b",)], {}, ("b",), [0])
    growing = Behaviour([("*",)], {("c",): [("c",), ("c",)]}, None, [0])
    assert reference([endless], [("a",)]).events == "LimitError"
    assert reference([endless, raising], [("a",), ("b",)]).events == "ModuleError"
    assert reference([growing], [("c",)] * 8).events == "LimitError"
    assert reference([endless, raising], [("c",)]) == Outcome([("c",)], [[[("c",)]], []])
