"""Requests with a key, while others are under way."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import memory
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.core import engine
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.keyed_requests import KeyedRequests
from eventer_bridge.core.session import REMOTE_SOURCE, Repeated, Session
from eventer_bridge.errors import (
    ConditionError,
    EventerBridgeError,
    ModuleError,
    RequestKeyError,
    RequestOrderError,
)
from eventer_bridge.model import JsonPayload, RegisterEvent
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.core.engines import SOURCE, register_event
from tests.eventer_bridge.modules import scripted
from tests.eventer_bridge.modules.scripted import Scripted

REFUSED = RequestKeyError("refused")


def events(value: int) -> list[RegisterEvent]:
    return [RegisterEvent(("a",), None, JsonPayload.of(value))]


class Core:
    """Registers what is asked for, and resolves it when the test says so."""

    def __init__(self, *, has_one_commit: bool = False) -> None:
        self.requests = KeyedRequests(memory.create(), self._register_all)
        self.keys: list[str] = []
        self.refused: set[str] = set()
        self._commit = asyncio.get_running_loop().create_future() if has_one_commit else None

    def _register_all(
        self, _: object, asked: Any, __: object, keys: Sequence[RequestKey]
    ) -> list[Session | EventerBridgeError]:
        names = [key.key for key in keys]
        self.keys += names
        future = asyncio.get_running_loop().create_future
        return [
            REFUSED
            if name in self.refused
            else Session(REMOTE_SOURCE, len(i), 1, self._commit or future())
            for i, name in zip(asked, names, strict=True)
        ]

    def register(self, *names: str, value: int = 0) -> Any:
        keys = [request_key(name, *events(value)) for name in names]
        return self.requests.register(REMOTE_SOURCE, [events(value)] * len(keys), None, keys)


async def nothing_is_under_way(core: Core) -> None:
    """Nothing is left of clients that are gone, either."""
    await asyncio.sleep(0)
    assert not core.requests._under_way
    assert not core.requests._turns


async def test_one_that_failed_is_registered_again_once() -> None:
    core = Core()
    first, second = core.register("1", "2")
    first.resolve(ModuleError("failed"))
    await asyncio.sleep(0)
    [again] = core.register("1")  # while the other one of its turn is under way
    assert isinstance(again, Session)
    [repeated, other] = core.register("1", "2")
    assert isinstance(repeated, Repeated)
    assert (repeated.session, other.session) == (again, second)
    assert core.keys == ["1", "2", "1"]
    again.resolve(None)
    second.resolve(None)
    await nothing_is_under_way(core)


async def test_one_is_known_when_a_later_one_failed_before_it_was_stored() -> None:
    core = Core()
    first, second, third = core.register("1", "2", "3")
    third.resolve(ModuleError("failed"))
    await asyncio.sleep(0)
    repeated, other, _ = core.register("1", "2", "4")
    assert (repeated.session, other.session) == (first, second)
    assert core.keys == ["1", "2", "3", "4"]


async def test_one_that_failed_is_registered_again_before_that_is_noticed() -> None:
    core = Core()
    [first] = core.register("1")
    first.resolve(ModuleError("failed"))
    [again] = core.register("1")
    again.resolve(None)
    await nothing_is_under_way(core)


async def test_one_that_was_refused_is_not_under_way() -> None:
    core = Core()
    core.refused = {"2", "3"}
    first, *_ = core.register("1", "2", "3")
    core.refused.clear()
    second, repeated = core.register("2", "1")
    assert isinstance(second, Session)
    assert repeated.session is first
    assert core.keys == ["1", "2", "3", "2"]


async def test_turns_of_one_commit() -> None:
    core = Core(has_one_commit=True)
    sessions = [*core.register("1", "2"), *core.register("3", "4")]
    repeated = core.register("4", "1", "2", "3")
    assert [i.session for i in repeated] == [sessions[i] for i in (3, 0, 1, 2)]
    [refused] = core.register("3", value=1)
    assert str(refused).startswith("request_key '3' was used before, with other events (")
    sessions[0].resolve(None)
    await nothing_is_under_way(core)


@pytest.mark.parametrize("how", ["at once", "in steps", "with modules"])
async def test_those_after_one_that_is_refused_are_refused_with_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    condition = {"subscriptions": [["c"]], "condition": {"type": "json", "data_type": "string"}}
    arguments: dict[str, Any] = {"conditions": Conditions([condition])}
    if how == "in steps":
        monkeypatch.setattr(limits, "LARGE_SESSION_EVENTS", 1)
    elif how == "with modules":
        arguments["modules"] = [{"module": scripted.NAME, "make": Scripted}]
    bad = [register_event("c", value=1)] * 2
    names = ["a", "b", "c", "d"]
    asked = [[register_event("a")], bad, events(1), events(2)]
    keys = [
        request_key(name, *i, after=after)
        for name, i, after in zip(names, asked, [None, *names], strict=False)
    ]
    async with memory.create() as backend, await engine.create(backend, 7, **arguments) as core:
        outcomes = core.register_keyed(SOURCE, asked, None, keys)
        errors = []
        for outcome in outcomes:
            if isinstance(outcome, Session):
                await asyncio.wait([outcome.committed])
                errors.append(outcome.committed.exception())
            else:
                errors.append(outcome)
        assert errors[0] is None
        assert isinstance(errors[1], ConditionError)
        assert [*map(str, errors[2:])] == [
            f"request_key '{i}', its after_key, is not stored" for i in "bc"
        ]
        [again] = core.register_keyed(SOURCE, [events(3)], None, [keys[3]])
        assert isinstance(again, RequestOrderError)
