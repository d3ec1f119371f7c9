"""Audit: one event a session, who it was, and whom it forgets."""

from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import Event, JsonPayload, RegisterEvent, Source, SourceType
from tests.eventer_bridge.modules.scripted import (
    CONNECTION,
    HISTORY,
    NAME,
    STARTED,
    Scripted,
    answering,
    register,
    register_event,
    running_engine,
    stored,
    types,
)

CONF: dict[str, Any] = {"module": "eventer_bridge.modules.audit"}


def client(core: Engine, name: str) -> Source:
    """A client that connected."""
    source = core.create_source(SourceType.CONNECTION)
    core.announce(source, name, is_connected=True)
    return source


async def audited(core: Engine, source: Source, *events: RegisterEvent) -> Any:
    """Registers, and returns the payload of the audit event; None: there is none."""
    return payload((await register(core, *events, source=source))[len(events) :])


def payload(added: Any) -> Any:
    found = [i.payload.value() for i in added if isinstance(i.payload, JsonPayload)]
    assert len(found) <= 1
    return found[0] if found else None


async def test_one_event_a_session() -> None:
    async with running_engine(CONF) as core:
        source = client(core, "app")
        events = [register_event("a"), register_event("b"), register_event("a")]
        all_events = await register(core, *events, source=source)
        assert types(all_events) == ["a", "b", "a", "audit"]
        assert payload(all_events[3:]) == {
            "source_type": "CONNECTION",
            "source_id": source.id,
            "client": "app",
            "events": 3,
            "types": [{"type": ["a"], "events": 2}, {"type": ["b"], "events": 1}],
            "other_events": 0,
        }
        assert (await stored(core))[-4:] == all_events


async def test_connections_are_audited_and_forgotten() -> None:
    async with running_engine(CONF) as core:
        source = client(core, "app")
        other = client(core, "other")
        assert (await audited(core, source, register_event("a")))["client"] == "app"
        assert (await audited(core, other, register_event("a")))["client"] == "other"
        core.announce(source, "app", is_connected=False)
        assert (await audited(core, source, register_event("a")))["client"] is None
        assert (await audited(core, other, register_event("a")))["client"] == "other"
        sessions: dict[int, list[Event]] = {}
        for i in await stored(core):
            sessions.setdefault(i.id.session, []).append(i)
        connections = [i for i in sessions.values() if "event/communication" in types(i)[0]]
        assert [types(i) for i in connections] == [
            ["event/communication/connected", "event/1/eventer/app", "audit"],
            ["event/communication/connected", "event/1/eventer/other", "audit"],
            ["event/communication/disconnected", "event/1/eventer/app", "audit"],
        ]
        # also the sessions in which it began and ended know the name
        assert [payload(i[2:])["client"] for i in connections] == ["app", "other", "app"]


async def test_a_client_cannot_take_another_name() -> None:
    async with running_engine(CONF) as core:
        source = client(core, "app")
        for state in ("CONNECTED", "DISCONNECTED", 1, None):
            fake = register_event("event", "1", "eventer", "admin", value=state)
            assert (await audited(core, source, fake))["client"] == "app"
        assert (await audited(core, source, register_event("a")))["client"] == "app"
        assert (await audited(core, CONNECTION, register_event("a")))["client"] is None


async def test_engine_and_modules_are_sources_too() -> None:
    made: list[Scripted] = []

    def make(module_engine: Any) -> Scripted:
        made.append(Scripted(module_engine))
        return made[0]

    async with running_engine({"module": NAME, "make": make}, CONF) as core:
        [started] = [i for i in await stored(core) if i.type == ("audit",)]
        assert payload([started]) == {
            "source_type": "ENGINE",
            "source_id": 0,
            "client": None,
            "events": 2,
            "types": [{"type": list(i), "events": 1} for i in (STARTED, HISTORY)],
            "other_events": 0,
        }
        # what a module adds is not what was asked for; what it registers itself is
        made[0].on_process = answering({("a",): [("b",)], ("c",): [("b",)]})
        assert (await audited(core, CONNECTION, register_event("z")))["events"] == 1
        events = await register(core, register_event("a"))
        assert types(events) == ["a", "b", "audit"]
        assert payload(events[2:])["types"] == [{"type": ["a"], "events": 1}]
        await made[0].engine.register([made[0].event("c")])
        last = payload((await stored(core))[-1:])
        assert (last["source_type"], last["source_id"]) == ("MODULE", made[0].source.id)
        assert last["types"] == [{"type": ["c"], "events": 1}]


async def test_subscriptions_type_and_bound() -> None:
    conf = {**CONF, "subscriptions": [["a", "*"]], "event_type": ["log", "who"], "max_types": 2}
    async with running_engine(conf) as core:
        source = client(core, "app")  # learned, though its events are not looked at
        assert await audited(core, source, register_event("b")) is None
        events = [register_event("a", str(i)) for i in (1, 2, 3, 3, 3, 2)]
        all_events = await register(core, register_event("b"), *events, source=source)
        assert types(all_events)[-1] == "log/who"
        found = payload(all_events[7:])
        assert found["client"] == "app"
        assert found["events"] == 6
        assert found["types"] == [
            {"type": ["a", "3"], "events": 3},
            {"type": ["a", "2"], "events": 2},
        ]
        assert found["other_events"] == 1


async def test_it_does_not_remember_more_connections_than_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_AUDITED_CONNECTIONS", 2)
    async with running_engine(CONF) as core:
        sources = [client(core, name) for name in "abc"]
        found = [(await audited(core, i, register_event("x")))["client"] for i in sources]
        assert found == [None, "b", "c"]
