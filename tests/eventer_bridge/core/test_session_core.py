"""Requests that come together become what they would become one after the other."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb.group_commit import CommitObserver
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import engine
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import LimitError
from eventer_bridge.model import Event, EventId, QueryServerParams, RegisterEvent, Timestamp
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps
from tests.eventer_bridge.backends.putting import put, put_all
from tests.eventer_bridge.core.engines import SOURCE, Recorder, refusal, register_event, submit
from tests.eventer_bridge.modules import scripted
from tests.eventer_bridge.modules.scripted import Scripted

A, B = register_event("a"), register_event("b", value="x" * 100)
NEW = register_event("new")
LARGE_EVENTS = 8
LARGE = [A] * (LARGE_EVENTS + 1)

REQUESTS: dict[str, Sequence[Sequence[RegisterEvent]]] = {
    "none": [],
    "one": [[A]],
    "singles": [[A], [B], [A], [A]],
    "of several events": [[A, B], [B], [A, A, A]],
    "one has no events": [[A], [], [B]],
    "new types": [[A], [NEW, A], [register_event("another")]],
    "one is wrong": [[A], [register_event("?")], [B]],
    "one is large": [[A], LARGE, [B], [A]],
    "together they are large": [[A] * (LARGE_EVENTS // 2 + 1)] * 2,
    "one has too many types": [[A], [NEW, register_event("n2"), register_event("n3")], [B]],
    "a condition": [[A], [register_event("c", value="x")], [register_event("c", value=1)]],
}

FURTHER: Sequence[Sequence[RegisterEvent]] = [[B], [A, B]]
"""Requests that come next."""


class Outcome(Recorder):
    """What came of requests, and what an observer heard."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[object] = []
        self.groups: list[int] = []  # which of them share a commit
        self.pending: tuple[int, int] = (0, 0)
        self.stored: Sequence[Event] = ()

    async def run(
        self,
        path: Path,
        register: Callable[[Engine, TypeQuota], list[Batch]],
        **arguments: Any,
    ) -> None:
        async with (
            await rocksdb.create(path) as backend,
            await engine.create(backend, 7, **arguments) as core,
        ):
            await asyncio.wait([core.register(SOURCE, [A, B]).committed])
            core.add_observer(self)
            outcomes = register(core, TypeQuota("client a", 2))
            commits = [i.committed for i in outcomes if refusal(i) is None]
            self.groups = [commits.index(i) for i in commits]
            self.pending = (core.pending_events, core._pending_bytes)
            for outcome in outcomes:
                await asyncio.wait([outcome.committed])
                if error := outcome.committed.exception():
                    self.outcomes.append((type(error), str(error)))
                else:
                    n_events, n_bytes = outcome.requested, outcome.payload_bytes
                    self.outcomes.append((outcome.source, n_events, n_bytes, [*outcome.events]))
            await backend.flush()
            assert (core.pending_events, core._pending_bytes, core._n_own) == (0, 0, 0)
            stored = (await core.query(QueryServerParams(7))).events
            self.stored = [i for i in stored if i.id.session > 1]  # STARTED names the store
            core.remove_observer(self)


@pytest.mark.parametrize("arguments", ["", "conditions", "modules"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_together_they_are_as_one_after_the_other(
    name: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timestamp, "now", lambda: Timestamp(5, 6))
    monkeypatch.setattr(limits, "LARGE_SESSION_EVENTS", LARGE_EVENTS)
    condition = {"subscriptions": [["c"]], "condition": {"type": "json", "data_type": "number"}}
    further: dict[str, Any] = {}
    if arguments == "conditions":
        further["conditions"] = Conditions([condition])
    elif arguments == "modules":
        further["modules"] = [{"module": scripted.NAME, "make": Scripted}]
    requests = REQUESTS[name]

    def one_by_one(core: Engine, quota: TypeQuota) -> list[Batch]:
        return [j for i in (*requests, *FURTHER) for j in submit(core, [i], (), quota)]

    def at_once(core: Engine, quota: TypeQuota) -> list[Batch]:
        return [j for i in (requests, FURTHER) for j in submit(core, i, (), quota)]

    expected, together = Outcome(), Outcome()
    await expected.run(tmp_path / "1", one_by_one, **further)
    await together.run(tmp_path / "2", at_once, **further)
    assert len(together.outcomes) == len(requests) + len(FURTHER)
    for found in expected, together:
        found.sessions = [i for i in found.sessions if i[0] > 2]
    assert together.outcomes == expected.outcomes
    if name == "one is large" and not arguments:  # those that wait for it do so together
        expected.groups[-1] = expected.groups[-2]
    assert together.groups == expected.groups
    assert together.pending == expected.pending
    assert together.stored == expected.stored
    assert sorted(together.sessions) == sorted(expected.sessions)
    assert [i for i, persisted in together.sessions if not persisted] == [
        i for i, persisted in expected.sessions if not persisted
    ]


async def test_they_are_committed_together(tmp_path: Path) -> None:
    commits: list[float] = []
    observer = CommitObserver(commits.append, lambda seconds: None, lambda seconds: None)
    async with (
        await rocksdb.create(tmp_path, observer) as backend,
        await engine.create(backend, 7) as core,
    ):
        await asyncio.wait([core.register(SOURCE, [A, B]).committed])
        commits.clear()
        batches = submit(core, [[A], [B, A], [A]])
        commit = {i.committed for i in batches}
        assert len(commit) == 1
        await asyncio.wait(commit)
        assert commits == [4]
        assert len({i.events[0].timestamp for i in batches}) == 1


async def test_all_of_a_commit_are_stored_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(session: int, name: str) -> list[Event]:
        return [Event(EventId(7, session, 1), (name,), Timestamp(1, 0), None, A.payload)]

    async with await rocksdb.create(tmp_path) as backend:
        await put(backend, event(1, "a"))
        sessions = [event(2, "a"), event(3, "new"), event(4, "a")]
        monkeypatch.setattr(limits, "MAX_EVENT_TYPES", 1)
        futures = put_all(backend, sessions)
        await asyncio.wait(futures)
        assert [type(i.exception()) for i in futures] == [LimitError] * 3
        stored = (await backend.query(QueryServerParams(7))).events
        assert [i.id.session for i in stored] == [1]


async def test_they_are_refused_while_it_is_not_operational(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await rocksdb.create(tmp_path) as backend, await engine.create(backend, 7) as core:
        await asyncio.wait([core.register(SOURCE, [A, B]).committed])
        with monkeypatch.context() as patch:
            patch.setattr(core._clock, "fault", "events are ahead of the clock")
            refused = submit(core, [[A], [B]])
            assert [str(refusal(i)) for i in refused] == ["events are ahead of the clock"] * 2
        await core.stop()
        refused = submit(core, [[A], [B]])
        assert [str(refusal(i)) for i in refused] == ["server is STANDBY, not OPERATIONAL"] * 2


async def test_those_that_ids_are_left_for_are_registered(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend, await engine.create(backend, 7) as core:
        await asyncio.wait([core.register(SOURCE, [A, B]).committed])
        core._session_ids._ceiling = core._session_ids._session + 2
        errors = [refusal(i) for i in submit(core, [[A], [B], [A]])]
        assert [type(i) for i in errors] == [type(None), type(None), LimitError]


async def test_each_is_notified_if_others_take_long(tmp_path: Path) -> None:
    """Their notifications wait for those before, while the commit is done."""
    is_waiting = True

    def others() -> Steps[None]:
        while is_waiting:
            yield

    async with await rocksdb.create(tmp_path) as backend, await engine.create(backend, 7) as core:
        first = core.register(SOURCE, [A, B])
        await asyncio.wait([first.committed])
        recorder = Recorder()
        core.add_observer(recorder)
        sessions = submit(core, [[A], [B, A], [A]])
        numbers = [i.events[0].id.session for i in sessions]
        core.between_notifications(others)
        await asyncio.wait([i.committed for i in sessions])
        assert recorder.sessions == [(i, False) for i in numbers]
        assert core.pending_events == 4
        is_waiting = False
        while len(recorder.sessions) < 2 * len(sessions):
            await asyncio.sleep(0)
        assert recorder.sessions[len(sessions) :] == [(i, True) for i in numbers]
        assert core.pending_events == 0
