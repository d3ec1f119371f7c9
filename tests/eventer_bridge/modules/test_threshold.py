"""Thresholds: raised, cleared, hysteresis, what is ignored, restarts, failed sessions."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import history, rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core import engine
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ConditionError, ModuleError
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    JsonPayload,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.modules.threshold import _says_raised
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    register,
    register_event,
    running_engine,
    types,
)


def conf(*thresholds: dict[str, Any]) -> dict[str, Any]:
    return {"module": "eventer_bridge.modules.threshold", "thresholds": list(thresholds)}


TEMPERATURE = {
    "subscriptions": [["plant", "?", "temperature"]],
    "path": ["values", 0],
    "limit": 80,
    "hysteresis": 2,
}


def reading(value: object, unit: str = "u1") -> RegisterEvent:
    return register_event("plant", unit, "temperature", value={"values": [value]})


def state(alarm: Event) -> Any:
    assert isinstance(alarm.payload, JsonPayload)
    # its value may be more than a float holds
    return json.loads(bytes(alarm.payload.data))["state"]


async def states(core: Engine, *readings: RegisterEvent) -> list[Any]:
    """Registers one after the other; the states of the alarms that were added."""
    return [state(i) for event in readings for i in (await register(core, event))[1:]]


async def alarms(core: Engine) -> Sequence[Event]:
    result = await core.query(QueryTimeseriesParams([("alarm", "*")]))
    return result.events[::-1]


async def test_an_alarm_event() -> None:
    async with running_engine(conf(TEMPERATURE)) as core:
        cause = RegisterEvent(
            ("plant", "u1", "temperature"),
            Timestamp(12, 34),
            JsonPayload.of({"values": [81.5, 0]}),
        )
        events = await register(core, register_event("other"), cause)
        assert types(events) == ["other", "plant/u1/temperature", "alarm/plant/u1/temperature"]
        assert events[2].source_timestamp == Timestamp(12, 34)
        assert events[2].payload == JsonPayload.of(
            {
                "state": "RAISED",
                "value": 81.5,
                "limit": 80,
                "id": {"server": 1, "session": 2, "instance": 2},
            }
        )
        assert await alarms(core) == [events[2]]


async def test_limit_and_hysteresis() -> None:
    async with running_engine(conf(TEMPERATURE)) as core:
        assert await states(core, reading(80)) == []
        assert await states(core, reading(80.1)) == ["RAISED"]
        assert await states(core, reading(90), reading(80), reading(78.1)) == []
        assert await states(core, reading(78)) == ["CLEARED"]
        assert await states(core, reading(79), reading(80)) == []
        assert await states(core, reading(10**30)) == ["RAISED"]


def written(number: str) -> RegisterEvent:
    payload = JsonPayload(msgspec.Raw(f'{{"values": [{number}]}}'))
    return RegisterEvent(("plant", "u1", "temperature"), None, payload)


@pytest.mark.parametrize(
    ("limit", "hysteresis", "above", "cleared"),
    [
        (0.3, 0.1, "0.3000000000000000000001", "0.2"),
        (0.3, 0.1, "0.31", "2E-1"),
        (0.3, 0.1, "1", "0.20000000000000000000"),
        (1.1, 2.2, "1.10000001", "-1.1"),
        (80, 2, "1e999", "78"),
        (80, 2, "1e" + "9" * 30, "-1e" + "9" * 30),
        (1e308, 1e-300, "1e309", "99e306"),
        (0, 0, "1e-" + "9" * 30, "-0e" + "9" * 30),
        (0, 0, "0.1e-400", "-1e-" + "9" * 30),
        (10**17, 1, "100000000000000001", "99999999999999999"),
        (2**53, 0, "9007199254740993", "9007199254740992"),
    ],
)
async def test_decimals_are_compared_as_they_are_written(
    limit: float, hysteresis: float, above: str, cleared: str
) -> None:
    threshold = {**TEMPERATURE, "limit": limit, "hysteresis": hysteresis}
    async with running_engine(conf(threshold)) as core:
        at_limit = written(msgspec.json.encode(limit).decode())
        assert await states(core, at_limit) == []
        _, raised = await register(core, written(above))
        assert raised.payload is not None
        assert f'"value":{above},'.encode() in bytes(raised.payload.data)
        assert _says_raised(raised)  # as it is read after a restart
        if hysteresis:  # between the two, it stays as it is
            assert await states(core, at_limit) == []
        assert await states(core, written(cleared)) == ["CLEARED"]
        if hysteresis:
            assert await states(core, at_limit) == []


@pytest.mark.parametrize("key", ["limit", "hysteresis"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_settings_that_are_no_numbers(key: str, value: float) -> None:
    with pytest.raises(ModuleError, match=f"{key} {value}: expected a finite number"):
        async with running_engine(conf({**TEMPERATURE, key: value})):
            pass


async def test_each_event_type_has_its_own_alarm_in_one_session_too() -> None:
    async with running_engine(conf(TEMPERATURE)) as core:
        events = await register(
            core, reading(81), reading(82), reading(81, "u2"), reading(1), reading(1, "u3")
        )
        assert types(events[5:]) == [f"alarm/plant/{i}/temperature" for i in ("u1", "u2", "u1")]
        assert list(map(state, events[5:])) == ["RAISED", "RAISED", "CLEARED"]


async def test_what_has_no_number_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "eventer_bridge.modules.threshold")
    event_type = ("plant", "u1", "temperature")
    raw = [b"[", b"[" * 5_000 + b"]" * 5_000, b'{"values": 1}', b'{"values": ["1e9"]}']
    values: list[object] = [None, True, "90", [90], {}]
    events = [reading(i) for i in values]
    events += [RegisterEvent(event_type, None, JsonPayload(msgspec.Raw(i))) for i in raw]
    async with running_engine(conf(TEMPERATURE)) as core:
        assert await states(core, *events) == []
        assert len(caplog.records) == len(events)
        assert vars(caplog.records[0])["reason"] == "no number at the path"
        nothing = [RegisterEvent(event_type, None, i) for i in (None, BinaryPayload("x", b"90"))]
        assert await states(core, *nothing, reading(81)) == ["RAISED"]


async def test_its_own_alarms_are_not_looked_at() -> None:
    everything = {"subscriptions": [["*"]], "path": ["value"], "limit": 1}
    async with running_engine(conf(everything)) as core:
        events = await register(core, register_event("a", value={"value": 5}))
        assert types(events) == ["a", "alarm/a"]


async def test_several_thresholds() -> None:
    low = {"subscriptions": [["a"]], "limit": 1, "alarm_prefix": ["low"]}
    high = {"subscriptions": [["a"], ["b"]], "limit": 2, "alarm_prefix": ["high", "x"]}
    async with running_engine(conf(low, high)) as core:
        assert types(await register(core, register_event("a", value=3))) == [
            "a",
            "low/a",
            "high/x/a",
        ]
        assert types(await register(core, register_event("b", value=3))) == ["b", "high/x/b"]
    with pytest.raises(
        ModuleError,
        match=r"ModuleError: thresholds\[0\] and thresholds\[2\] could raise the same alarm:"
        r" expected different values of alarm_prefix$",
    ):
        async with running_engine(conf(low, high, {**low, "limit": 7})):
            pass


class Restarts:
    """Engines one after the other on the same backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def states(self, *readings: RegisterEvent) -> list[Any]:
        core = await engine.create(self.backend, 1, modules=[conf(TEMPERATURE)])
        try:
            return await states(core, *readings)
        finally:
            await core.async_close()


async def test_a_restart_raises_no_alarm_twice_and_loses_none() -> None:
    restarts = Restarts(await rocksdb.create_temporary())
    assert await restarts.states(reading(81)) == ["RAISED"]
    assert await restarts.states(reading(82), reading(79)) == []
    assert await restarts.states(reading(78), reading(81, "u2")) == ["CLEARED", "RAISED"]
    assert await restarts.states(reading(79)) == []
    assert await restarts.states(reading(81), reading(81, "u2")) == ["RAISED"]
    await restarts.backend.async_close()


async def test_alarms_that_are_none_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    restarts = Restarts(await rocksdb.create_temporary())
    core = await engine.create(restarts.backend, 1)
    alarm_types = [("alarm", "plant", f"u{i}", "temperature") for i in range(3)]
    for alarm_type, payload in zip(
        alarm_types, [None, JsonPayload.of("x"), JsonPayload.of({"state": "RAISED"})], strict=True
    ):
        await register(core, RegisterEvent(alarm_type, None, payload))
    await core.async_close()
    assert await restarts.states(*(reading(81, f"u{i}") for i in range(3))) == ["RAISED"] * 2
    assert [i.message for i in caplog.records] == [
        "latest event of an alarm is not from this module"
    ]
    await restarts.backend.async_close()


async def test_a_failed_session_changes_no_state() -> None:
    conditions = Conditions(
        [{"subscriptions": [["checked"]], "condition": {"type": "json", "data_type": "number"}}]
    )
    wrong = register_event("checked", value="wrong")
    async with running_engine(conf(TEMPERATURE), conditions=conditions) as core:
        with pytest.raises(ConditionError):
            await register(core, reading(81), wrong)
        assert await states(core, reading(81)) == ["RAISED"]  # it was not, before
        # in one go: the failed one in between must not clear it for the others
        sessions = [
            core.register(CONNECTION, events)
            for events in ([reading(82)], [reading(1), wrong], [reading(82)], [reading(1)])
        ]
        results = [i.committed for i in sessions]
        for future in results:
            if future is not results[1]:
                await future
        assert [len(i.events) for i in sessions] == [1, 0, 1, 2]


@pytest.mark.parametrize("bound", [0, 2])
async def test_more_alarms_than_are_kept_in_memory(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ALARM_STATES", 3)
    units = [f"u{i}" for i in range(8)]
    restarts = Restarts(await rocksdb.create_temporary())
    if bound:
        monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", bound)
    core = await engine.create(restarts.backend, 1, modules=[conf(TEMPERATURE)])
    for value, expected in [
        (81, ["RAISED"]),
        (82, []),
        (1, ["CLEARED"]),
        (2, []),
        (83, ["RAISED"]),
    ]:
        for unit in units:
            assert await states(core, reading(value, unit)) == expected
    await core.async_close()
    assert await restarts.states(*(reading(84, i) for i in units)) == []
    await restarts.backend.async_close()


async def test_the_store_is_not_asked_where_memory_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[QueryParams] = []
    answer = RocksDbBackend.answer

    async def counting(
        self: RocksDbBackend, query: VisibleQuery, *args: Any, **more: Any
    ) -> QueryResult:
        asked.append(query.params)
        return await answer(self, query, *args, **more)

    monkeypatch.setattr(RocksDbBackend, "answer", counting)
    async with running_engine(conf(TEMPERATURE)) as core:
        for i in range(20):
            await register(core, reading(60 + 2 * i, f"u{i}"))
    wanted = history.ANY_TYPE, ("alarm", "plant", "?", "temperature")  # the engine, the module
    assert asked == [QueryLatestParams([i]) for i in wanted]
