"""Histories: what is told, and who may go on from where."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import history, rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.history import History, HistorySpan
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import InvalidEventError, StoreDamagedError
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    JsonPayload,
    QueryServerParams,
    RegisterEvent,
    Source,
    SourceType,
    Timestamp,
)
from tests.eventer_bridge.backends.putting import put

SOURCE = Source(SourceType.CONNECTION, 1)

TWICE_RESTORED = History(
    "c", 2_000, (HistorySpan(None, 0, 5), HistorySpan("a", 8, 20), HistorySpan("b", 1_000, 1_030))
)


@pytest.mark.parametrize(
    ("held", "session", "is_followed"),
    [
        ("c", 3_000, True),
        ("c", 2_000, True),
        ("b", 1_030, True),
        ("b", 1_031, False),
        ("a", 20, True),
        ("a", 21, False),
        ("a", 1_010, False),
        ("x", 1, False),
        # of a time from before histories, or not known
        (None, 5, True),
        (None, 6, False),
        (None, 15, True),
        (None, 25, False),
        (None, 1_020, True),
        (None, 1_999, False),
        (None, 2_001, True),
    ],
)
def test_who_may_go_on(held: str | None, session: int, is_followed: bool) -> None:
    reason = history.refusal(held, TWICE_RESTORED, session)
    assert (reason is None) is is_followed
    if reason is not None:
        assert "c" in reason
        assert str(session) in reason
        assert held is None or held in reason


def event_of(told: RegisterEvent, session: int, server: int = 7) -> Event:
    return Event(EventId(server, session, 2), told.type, Timestamp(1, 0), None, told.payload)


def test_each_history_tells_of_those_before() -> None:
    assert history.read(event_of(history.begin(7, "a", None, None), 1)) == History("a", 1)
    first = history.read(event_of(history.begin(7, "a", None, 5), 8))
    assert first == History("a", 8, (HistorySpan(None, 0, 5),))
    second = history.read(event_of(history.begin(7, "b", first, 20), 1_000))
    third = history.read(event_of(history.begin(7, "c", second, 1_030), 2_000))
    assert third == TWICE_RESTORED
    assert third.ids == {"a", "b", "c", None}
    for n in range(2 * limits.MAX_HISTORY_SPANS):  # is bounded, and can be read
        third = history.read(event_of(history.begin(7, str(n), third, 3_000 + n), 3_000 + n))
        assert third is not None
    assert len(third.before) == limits.MAX_HISTORY_SPANS


def test_what_tells_of_no_history() -> None:
    good = history.begin(7, "a", None, None)
    session = [event_of(good, 3)]
    assert history.of_session(session) == History("a", 3)
    assert history.of_session([*session, *session]) == History("a", 3)
    assert history.of_session([event_of(good, 3, server=8)]) is None  # not its own
    assert history.read_all([event_of(good, 3, server=8)]) == {}
    for payload in (
        None,
        JsonPayload.of("a"),
        JsonPayload.of({"id": 3}),
        JsonPayload.of({"id": "x" * 1_000}),
        JsonPayload.of({"id": "a", "before": [{"id": "b", "first": 1, "last": 1 << 70}]}),
        JsonPayload(msgspec.Raw(b'{"id": "\xff"}')),
    ):
        wrong = msgspec.structs.replace(good, payload=payload)
        assert history.of_session([event_of(wrong, 3)]) is None


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    backend = await rocksdb.create_temporary()
    yield backend
    await backend.async_close()


async def told(core: Engine) -> list[Event]:
    """All that a server has told of its history."""
    params = QueryServerParams(core.server_id)
    return [i for i in (await core.query(params)).events if history.is_history(i.type)]


async def test_a_server_tells_its_history_once(backend: Backend) -> None:
    async with await engine.create(backend, 7) as core:
        [event] = await told(core)
        assert history.read(event) == History(backend.history_id, 1)
        assert event.id == EventId(7, 1, 2)  # behind STARTED
        await core.stop()
        await core.start()
        assert await told(core) == [event]
        assert await core.known_history(7) == history.read(event)
        assert await core.known_history(8) is None


@pytest.mark.parametrize("n_events", [1, limits.LARGE_SESSION_EVENTS + 1])
async def test_clients_do_not_tell_histories(backend: Backend, n_events: int) -> None:
    async with await engine.create(backend, 7) as core:
        for event_type in (history.type_of(7), history.type_of(8)):
            for _ in range(2):  # what was refused is not remembered as good
                with pytest.raises(InvalidEventError, match="is for servers"):
                    await registered(core, event_type, n_events)
        for event_type in (("event", "7", "history", "x"), ("event", "7"), ("x", "7", "history")):
            await registered(core, event_type, n_events)
        assert len(await told(core)) == 1


async def registered(core: Engine, event_type: EventType, n_events: int) -> None:
    others = [RegisterEvent(("a",), None, None)] * (n_events - 1)
    await core.register(SOURCE, [RegisterEvent(event_type, None, None), *others]).committed


async def test_a_damaged_name_of_a_history_is_told(tmp_path: Path) -> None:
    await (await rocksdb.create(tmp_path)).async_close()
    store = Store(tmp_path)
    commit = Commit()
    commit.batch.put(keys.HISTORY_KEY, b"\xff")
    store.ext_write_synced(commit)
    store.ext_close()
    with pytest.raises(StoreDamagedError, match="is damaged: its history has no name"):
        await rocksdb.create(tmp_path)


async def test_a_store_of_before_gets_a_history(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        of_before = Event(EventId(7, 40, 1), ("a",), Timestamp(1, 0), None, None)
        await put(backend, [of_before])
    store = Store(tmp_path)
    commit = Commit()
    commit.batch.delete(keys.HISTORY_KEY)
    store.ext_write_synced(commit)
    assert store.history_id() is None
    store.ext_close()
    names = set()
    for _ in range(2):
        async with await rocksdb.create(tmp_path) as backend:
            names.add(backend.history_id)
            async with await engine.create(backend, 7) as core:
                [event] = await told(core)
                expected = History(
                    backend.history_id, event.id.session, (HistorySpan(None, 0, 40),)
                )
                assert history.read(event) == expected
    assert len(names) == 1


def test_names_of_our_own() -> None:
    own = history.new_id()
    assert history.is_own_id(own)
    for name in ("", "hand-made", own.upper(), own.replace("-", ""), f"{own} "):
        assert not history.is_own_id(name)
