"""Several sub-modules of one kind under one subscription."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ModuleError
from eventer_bridge.model import ProcessEvent
from eventer_bridge.modules.base import Module, ModuleEngine
from eventer_bridge.modules.specialized import SpecializedModule
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.modules.scripted import (
    NAME,
    Scripted,
    answering,
    register,
    register_event,
    running_engine,
    stored,
    types,
)


@contextlib.asynccontextmanager
async def hosting(
    *query_types: str,
) -> AsyncIterator[tuple[Engine, SpecializedModule, list[Scripted]]]:
    """An engine with one host, of a sub-module for each query type."""
    made: list[Scripted] = []
    hosts: list[SpecializedModule] = []

    def make(module_engine: ModuleEngine) -> Module:
        made.extend(
            Scripted(module_engine, Subscription([tuple(i.split("/"))])) for i in query_types
        )
        hosts.append(SpecializedModule("parts", made))
        return hosts[0]

    async with running_engine({"module": NAME, "make": make}) as core:
        yield core, hosts[0], made


async def test_each_sub_module_gets_what_it_wants() -> None:
    async with hosting("a/*", "?/x", "b/y") as (core, host, subs):
        assert host.subscription == Subscription([("a", "*"), ("?", "x"), ("b", "y")])
        subs[0].on_process = answering({("a", "x"): [("b", "y")], ("a", "z"): [("c", "z")]})
        subs[1].on_process = answering({("a", "x"): [("c", "x")]})
        events = await register(core, register_event("a", "x"), register_event("a", "z"))
        # the additions of the first, then those of the second
        assert types(events) == ["a/x", "a/z", "b/y", "c/z", "c/x"]
        assert subs[0].seen == {2: [[("a", "x"), ("a", "z")]]}
        assert subs[1].seen == {2: [[("a", "x")], [("c", "x")]]}
        assert subs[2].seen == {2: [[("b", "y")]]}
        await core.stop()
        assert [i.closed for i in subs] == [[(2, True)]] * 3
        assert all(i.is_closed for i in subs)


async def test_a_sub_module_that_has_nothing_to_do_has_no_session() -> None:
    async with hosting("a", "b") as (core, _, subs):
        await register(core, register_event("b"))
        assert [i.n_sessions for i in subs] == [0, 1]


async def test_a_sub_module_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        raise ZeroDivisionError

    async def on_close(module: Scripted, is_committed: bool) -> None:
        raise KeyError

    async with hosting("a", "a", "a") as (core, _, subs):
        subs[1].on_process = on_process
        subs[0].on_close = on_close
        with pytest.raises(ModuleError, match=r"failed: ZeroDivisionError$"):
            await register(core, register_event("a"))
        assert await stored(core) == []
        assert [i.closed for i in subs] == [[(2, False)], [(2, False)], []]
    assert "in parts[1]" in caplog.text  # a note of the traceback
    assert "in parts[0]" in caplog.text


async def test_a_sub_module_that_closes_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with hosting("a", "a") as (core, _, subs):
        await subs[0].async_close()
        await register(core, register_event("a"))
        assert [i.n_sessions for i in subs] == [0, 1]
    [record] = [i for i in caplog.records if i.levelname == "ERROR"]
    assert (record.message, vars(record)["sub_module"]) == (
        "sub-module closed by itself",
        "parts[0]",
    )
