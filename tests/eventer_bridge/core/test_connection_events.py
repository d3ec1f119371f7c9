"""Engine: events that tell of connections."""

import asyncio
from collections import Counter

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import connection_events
from eventer_bridge.core.connection_events import Announcer
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import Event, JsonPayload, QueryServerParams, SourceType, Status
from tests.eventer_bridge.core.engines import SOURCE


async def test_connections_are_announced(core: Engine, backend: Backend) -> None:
    core.announce(SOURCE, "gui", is_connected=True)
    core.announce(SOURCE, "gui", is_connected=False)
    events = (await core.query(QueryServerParams(7))).events[2:]
    assert [(e.id.session, "/".join(e.type), e.payload) for e in events] == [
        (2, "event/communication/connected", None),
        (2, "event/7/eventer/gui", JsonPayload.of("CONNECTED")),
        (3, "event/communication/disconnected", None),
        (3, "event/7/eventer/gui", JsonPayload.of("DISCONNECTED")),
    ]


async def test_thousands_that_end_at_once_are_told_of_in_turns(core: Engine) -> None:
    sources = [core.create_source(SourceType.CONNECTION) for _ in range(100)]
    for source in sources:
        core.announce(source, "gui", is_connected=True)
    assert core.pending_events < 100  # two of each connection
    core.announce(sources[0], "gui", is_connected=False)  # not before the others
    while core.pending_events:
        await asyncio.sleep(0)
    events = (await core.query(QueryServerParams(7))).events
    assert [i.type[-1] for i in events[2::2]] == ["connected"] * 100 + ["disconnected"]


async def test_connections_end_with_the_last_stop(
    core: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    sources = [core.create_source(SourceType.CONNECTION) for _ in range(200)]
    for source in sources:
        core.announce(source, f"gui {source.id % 2}", is_connected=True)
    core.announce(sources[0], f"gui {sources[0].id % 2}", is_connected=False)
    await core.stop()  # as one of a pair does, whose clients stay
    core.announce(sources[1], f"gui {sources[1].id % 2}", is_connected=False)
    await core.start()
    await core.stop(is_last=True)
    for source in sources:  # their connections are closed then
        core.announce(source, f"gui {source.id % 2}", is_connected=False)
    events: list[Event] = []
    while len(events) < 2 or events[-1].payload != JsonPayload.of("STOPPED"):
        last = events[-1].id if events else None
        events += (await core.query(QueryServerParams(7, last_event_id=last))).events
    told = Counter(i.type[-1] for i in events)
    # one was lost while nothing could be registered
    assert (told["connected"], told["disconnected"]) == (200, 199)
    assert told["gui 0"] + told["gui 1"] == 399
    assert core.status is Status.STANDBY


async def test_a_name_that_cannot_be_announced_leaves_a_line(
    core: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", connection_events.mlog.name)
    core.announce(SOURCE, "x" * 2_000, is_connected=True)
    core.announce(SOURCE, "*", is_connected=True)
    message = "name of a connection not announced"
    long, wildcard = (vars(i) for i in caplog.records if i.msg == message)
    assert long["client"] == "x" * (limits.MAX_REASON_CHARACTERS - 1) + "…"
    assert "at most 1024 are allowed" in long["reason"]
    assert wildcard["client"] == "*"
    assert "'?' and '*' are for queries only" in wildcard["reason"]
    core.announce(SOURCE, "?", is_connected=False)
    events = (await core.query(QueryServerParams(7))).events[2:]
    states = ["connected", "connected", "disconnected"]
    assert [i.type for i in events] == [("event", "communication", i) for i in states]


async def test_names_that_are_announced_have_a_quota(
    core: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", connection_events.mlog.name)
    quota = TypeQuota("announced clients", 3)
    monkeypatch.setattr(core, "_announcer", Announcer(7, core._register_announced))
    monkeypatch.setattr(core._announcer, "_quota", quota)
    for name in "abc":  # the first brings event/communication/connected, too
        core.announce(SOURCE, name, is_connected=True)
    events = (await core.query(QueryServerParams(7))).events
    assert [e.type[-1] for e in events[3::2]] == ["a", "b"]
    assert [e.type[-1] for e in events[2::2]] == ["connected"] * 3
    assert "max_event_types: 3" in vars(caplog.records[-1])["reason"]
