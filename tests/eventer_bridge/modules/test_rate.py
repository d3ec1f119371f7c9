"""Rates: what is counted, silence, bounds, and servers that are not operational."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ConditionError
from eventer_bridge.model import JsonPayload, ProcessEvent, QueryTimeseriesParams, Timestamp
from eventer_bridge.modules.base import Module, ModuleEngine
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    NAME,
    Scripted,
    register,
    register_event,
    running_engine,
    stored,
    types,
)

CONF: dict[str, Any] = {
    "module": "eventer_bridge.modules.rate",
    "subscriptions": [["a", "*"]],
    "window_s": 0.1,
}


async def rates(core: Engine, *segments: str, total: int, prefix: str = "rate") -> list[int]:
    """Wait until a type was counted and is silent; its counts, window by window."""
    params = QueryTimeseriesParams([(prefix, *segments)])
    counts: list[int] = []
    while sum(counts) < total or counts[-1] != 0:
        counts = [_count(i.payload) for i in (await core.query(params)).events[::-1]]
        await asyncio.sleep(0.005)
    assert sum(counts) == total
    return counts


def _count(payload: object) -> int:
    assert isinstance(payload, JsonPayload)
    value = payload.value()
    assert value.keys() == {"count", "window_s"}
    assert 0.1 <= value["window_s"] < 10
    assert isinstance(value["count"], int)
    return value["count"]


async def test_counts_and_then_silence_once() -> None:
    before = Timestamp.now()
    async with running_engine(CONF) as core:
        await asyncio.gather(
            *(core.register(CONNECTION, [register_event("a", "x")] * i).committed for i in (1, 2)),
            core.register(CONNECTION, [register_event("a", "y"), register_event("b")]).committed,
        )
        counts = await rates(core, "a", "x", total=3)
        assert counts.count(0) == 1
        await rates(core, "a", "y", total=1)
        await register(core, register_event("a", "y"))
        await rates(core, "a", "y", total=2)
        assert await rates(core, "a", "x", total=3) == counts  # silent, nothing came any more
        events = await stored(core)
        assert {i for i in types(events) if i.startswith("rate")} == {"rate/a/x", "rate/a/y"}
        first = next(i for i in events if i.type == ("rate", "a", "x"))
        assert first.source_timestamp is not None
        assert before <= first.source_timestamp <= first.timestamp


async def test_its_own_events_are_not_counted() -> None:
    async with running_engine({**CONF, "subscriptions": [["*"]], "prefix": ["n", "per"]}) as core:
        await register(core, register_event("x"))
        await rates(core, "per", "x", total=1, prefix="n")
        expected = {"x", "n/per/x", "n/per/event/1/engine", "n/per/event/1/history"}
        assert set(types(await stored(core))) == expected


async def test_what_is_not_stored_is_not_counted() -> None:
    conditions = Conditions(
        [{"subscriptions": [["a", "*"]], "condition": {"type": "json", "data_type": "number"}}]
    )
    async with running_engine(CONF, conditions=conditions) as core:
        with pytest.raises(ConditionError):
            await register(core, register_event("a", value="wrong"))
        await register(core, register_event("a", value=1))
        await rates(core, "a", total=1)


async def test_no_more_types_than_configured(caplog: pytest.LogCaptureFixture) -> None:
    async with running_engine({**CONF, "max_types": 2}) as core:
        await register(core, *(register_event("a", str(i)) for i in (1, 2, 3, 4, 1)))
        await rates(core, "a", "2", total=1)
        await rates(core, "a", "1", total=2)
        assert not [i for i in types(await stored(core)) if i in {"rate/a/3", "rate/a/4"}]
    record = caplog.records[0]
    assert record.message == "events of too many types are not counted"
    assert (vars(record)["events"], vars(record)["max_types"]) == (2, 2)


async def test_a_type_that_is_too_long_does_not_hold_back_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_engine(CONF) as core:
        await register(core, register_event(*["a"] * 64), register_event("a", "x"))
        await rates(core, "a", "x", total=1)
    assert caplog.records[0].message == "rate cannot be registered"
    assert vars(caplog.records[0])["reason"].startswith("event type has 65 segments")


async def test_windows_end_in_vain_while_the_server_is_not_operational(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "eventer_bridge.modules.rate")
    released = asyncio.Event()

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        if events[0].type == ("hold",):
            await released.wait()
        return []

    def make(module_engine: ModuleEngine) -> Module:
        module = Scripted(module_engine)
        module.on_process = on_process
        return module

    async with running_engine({"module": NAME, "make": make}, CONF) as core:
        await register(core, register_event("a", "x"))
        session = core.register(CONNECTION, [register_event("hold")])
        stopping = asyncio.ensure_future(core.stop())
        while "window skipped" not in caplog.messages:
            await asyncio.sleep(0.005)
        released.set()
        await stopping
        assert session.committed.exception() is None
    assert "server is STOPPING, not OPERATIONAL" in {
        vars(i)["reason"] for i in caplog.records if i.message == "window skipped"
    }
