"""Requests with a key, while others are under way."""

import asyncio
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import dummy, rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.keyed_requests import KeyedRequests
from eventer_bridge.core.session import resolve
from eventer_bridge.errors import (
    ConditionError,
    ModuleError,
    RequestKeyError,
    RequestOrderError,
)
from eventer_bridge.model import JsonPayload, RegisterEvent
from eventer_bridge.packed import Batch, batch_of
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.backends.putting import TYPES
from tests.eventer_bridge.core.engines import SOURCE, refusal, register_event, submit
from tests.eventer_bridge.modules import scripted
from tests.eventer_bridge.modules.scripted import Scripted

REFUSED = RequestKeyError("refused")


def events(value: int) -> list[RegisterEvent]:
    return [RegisterEvent(("a",), None, JsonPayload.of(value))]


class Core:
    """Registers what is asked for; a test says when it is decided."""

    def __init__(self, *, has_one_commit: bool = False) -> None:
        self.requests = KeyedRequests(dummy.DummyBackend(), self._register)
        self.calls: list[str] = []  # the keys of what was registered together
        self.refused: set[str] = set()
        self._commit = asyncio.get_running_loop().create_future() if has_one_commit else None

    def _register(self, batches: list[Batch]) -> None:
        names = [batch.key.key for batch in batches if batch.key is not None]
        self.calls.append(" ".join(names))
        for batch, name in zip(batches, names, strict=True):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if name in self.refused:
                resolve(future, REFUSED)
            batch.committed = future if self._commit is None or future.done() else self._commit

    def register(self, *names: str, value: int = 0) -> list[Batch]:
        batches = [batch_of(events(value), TYPES) for _ in names]
        for name, batch in zip(names, batches, strict=True):
            batch.source, batch.key = SOURCE, request_key(name, *events(value))
        self.requests.register(batches)
        return batches


async def nothing_is_under_way(core: Core) -> None:
    """Nothing is left of clients that are gone, either."""
    await asyncio.sleep(0)
    assert not core.requests._under_way
    assert not core.requests._by_commit


async def test_one_that_failed_is_registered_again_once() -> None:
    core = Core()
    first, second = core.register("1", "2")
    resolve(first.committed, ModuleError("failed"))
    await asyncio.sleep(0)
    [again] = core.register("1")  # while the other one that came with it is under way
    assert again.first is None
    assert [i.first for i in core.register("1", "2")] == [again, second]
    assert core.calls == ["1 2", "1"]
    resolve(again.committed, None)
    resolve(second.committed, None)
    await nothing_is_under_way(core)


async def test_one_is_known_when_a_later_one_failed_before_it_was_stored() -> None:
    core = Core()
    first, second, third = core.register("1", "2", "3")
    resolve(third.committed, ModuleError("failed"))
    await asyncio.sleep(0)
    assert [i.first for i in core.register("1", "2", "4")] == [first, second, None]
    assert core.calls == ["1 2 3", "4"]


async def test_one_that_failed_is_registered_again_before_that_is_noticed() -> None:
    core = Core()
    [first] = core.register("1")
    resolve(first.committed, ModuleError("failed"))
    [again] = core.register("1")
    assert again.first is None
    await asyncio.sleep(0)
    assert core.register("1")[0].first is again
    resolve(again.committed, None)
    await nothing_is_under_way(core)


async def test_one_that_was_refused_is_not_under_way() -> None:
    core = Core()
    core.refused = {"2", "3"}
    first, *refused = core.register("1", "2", "3")
    assert [*map(refusal, refused)] == [REFUSED] * 2
    core.refused.clear()
    assert [i.first for i in core.register("2", "1")] == [None, first]
    assert core.calls == ["1 2 3", "2"]


async def test_those_of_one_commit() -> None:
    core = Core(has_one_commit=True)
    batches = [*core.register("1", "2"), *core.register("3", "4")]
    repeated = core.register("4", "1", "2", "3")
    assert [i.first for i in repeated] == [batches[i] for i in (3, 0, 1, 2)]
    assert {i.committed for i in repeated} == {batches[0].committed}
    [refused] = core.register("3", value=1)
    assert isinstance(refusal(refused), RequestKeyError)
    assert str(refusal(refused)).startswith("request_key '3' was used before, with other events (")
    resolve(batches[0].committed, None)
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
    async with (
        await rocksdb.create_temporary() as backend,
        await engine.create(backend, 7, **arguments) as core,
    ):
        batches = submit(core, asked, keys)
        await asyncio.wait({i.committed for i in batches})
        errors = [i.committed.exception() for i in batches]
        assert errors[0] is None
        assert isinstance(errors[1], ConditionError)
        assert [*map(str, errors[2:])] == [
            f"request_key '{i}', its after_key, is not stored" for i in "bc"
        ]
        with pytest.raises(RequestOrderError):
            core.register(SOURCE, events(3), None, keys[3])


async def test_where_nothing_is_kept_keys_are_refused() -> None:
    key = request_key("k", *events(1))
    async with dummy.DummyBackend() as backend, await engine.create(backend, 7) as core:
        for keys in ([key], [key, None], [None, key, key]):
            errors = [refusal(i) for i in submit(core, [events(1)] * len(keys), keys)]
            assert [type(i) for i in errors] == [
                type(None) if i is None else RequestKeyError for i in keys
            ]
