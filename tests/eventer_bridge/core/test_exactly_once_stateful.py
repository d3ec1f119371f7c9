"""Request keys, cursors and parked events, driven by a model, over kills of the store.

The model is a list of what was registered, and what each cursor is at. A kill may cut the list
behind what was acknowledged, and sets cursors back to a moment since they were kept last; a key is
known exactly if its events are, as long as it has to be.

``EXAMPLES``: see ``tests.eventer_bridge.backends.test_stateful``.
"""

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest
import uvloop
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import RequestKeyError, RequestOrderError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    QueryServerParams,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends import test_stateful
from tests.eventer_bridge.backends.oracle import request_key
from tests.eventer_bridge.core.engines import refusal, submit
from tests.support.examples import EXAMPLES, examples

STEPS: Final = 30
KEYS: Final = KeyRetention(duration_s=100.0, max_entries=4)
RULES: Final = (RetentionRule((("noise",),), max_entries=2),)

T = TypeVar("T")


class Entry(NamedTuple):
    """A session that was registered under a key.

    Attributes:
        owner, key, content: of the request.
        events: those that were asked for.
        committed: of the session.
    """

    owner: str
    key: str
    content: int
    events: Sequence[Event]
    committed: asyncio.Future[None]


class Request(NamedTuple):
    """What is asked for."""

    key: str
    content: int
    after: str | None


class Place(NamedTuple):
    """A cursor of the model."""

    seen: EventId | None
    parked: dict[EventId, tuple[str, bool]]


class Later(PassedTime):
    """Time that passes, and some more.

    Attributes:
        later_s: how much.
    """

    later_s = 0.0

    def before(self, seconds: float | None) -> Timestamp | None:
        if seconds is None:
            return None
        return Timestamp.from_float(Timestamp.now().to_float() + self.later_s - seconds)


class Holder:
    """A connection that has a cursor."""

    def on_cursor_lost(self, reason: str) -> None:
        """It is not looked at."""

    def redeliver(self) -> None:
        """It is not looked at."""


KEY_NAMES: Final = st.sampled_from(
    ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "\x00", "ö\U0001f600"]
)
CURSORS: Final = st.sampled_from(["c", "c\\", '"', "c\x00x"])
POSITION: Final = st.integers(0, 1 << 16)
requests = st.builds(Request, KEY_NAMES, st.integers(0, 3), st.none() | KEY_NAMES)


def events_of(content: int) -> list[RegisterEvent]:
    """Events of a request: one or two, some of which retention deletes."""
    types = [("noise",), ("a",)][: 1 + content % 2] if content > 1 else [("a",)]
    return [RegisterEvent(i, None, JsonPayload.of(content)) for i in types]


class ExactlyOnceMachine(RuleBasedStateMachine):
    """See the module.

    Attributes:
        entries: what was registered, and is or may be stored.
        places: cursors.
        moments: ``places`` since they were kept last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.directory = Path(tempfile.mkdtemp())
        self.n_kills = 0
        self.clock = Later()
        self.entries: list[Entry] = []
        self.places: dict[str, Place] = {}
        self.moments: list[dict[str, Place]] = [{}]
        self.run(self.open())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    async def open(self) -> None:
        self.backend = await rocksdb.create(
            self.directory / str(self.n_kills), None, RULES, self.clock, key_retention=KEYS
        )
        self.core = Engine(self.backend, 1)
        await self.core.start()

    async def close(self) -> None:
        await self.core.async_close()
        await self.backend.async_close()

    def teardown(self) -> None:
        self.run(self.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    # --- requests -------------------------------------------------------------------------

    @rule(
        owner=st.sampled_from(["x", "y"]),
        wanted=st.lists(requests, min_size=1, max_size=3),
        is_patient=st.booleans(),
    )
    def register(self, owner: str, wanted: list[Request], is_patient: bool) -> None:
        async def register() -> None:
            keys = [
                request_key(i.key, *events_of(i.content), owner=owner, after=i.after)
                for i in wanted
            ]
            made = submit(self.core, [events_of(i.content) for i in wanted], keys)
            for request, batch in zip(wanted, made, strict=True):
                self.compare(owner, request, batch)
            for batch in made:
                if is_patient and refusal(batch) is None:
                    await asyncio.wait([batch.committed])
                    batch.committed.result()

        self.run(register())

    def compare(self, owner: str, request: Request, batch: Batch) -> None:
        entry, may_know = self.known(owner, request.key)
        error = refusal(batch)
        if batch.first is not None:
            assert entry is not None
            assert entry.content == request.content
            assert may_know is not False
            first = batch.first
            assert [*first.events[: first.requested]] == [*entry.events]
        elif isinstance(error, RequestKeyError):
            assert entry is not None
            assert entry.content != request.content
            assert may_know is not False
        elif isinstance(error, RequestOrderError):
            assert may_know is not True
            assert request.after is not None
            assert self.known(owner, request.after)[1] is not True
        else:
            assert error is None
            assert may_know is not True
            assert request.after is None or self.known(owner, request.after)[1] is not False
            events = batch.events[: batch.requested]
            assert len(events) == len(events_of(request.content))
            made = Entry(owner, request.key, request.content, events, batch.committed)
            self.entries.append(made)

    def known(self, owner: str, key: str) -> tuple[Entry | None, bool | None]:
        """The last session of a key, and whether that is known; None: it may be."""
        mine = [i for i in self.entries if i.owner == owner]
        entry = next((i for i in reversed(mine) if i.key == key), None)
        if entry is None:
            return None, False
        if not entry.committed.done():
            return entry, True
        if KEYS.is_expired(entry.events[0].timestamp, self.clock):
            return entry, False
        newer = mine[mine.index(entry) + 1 :]
        return entry, True if len(newer) < KEYS.max_entries else None

    @rule(seconds=st.sampled_from([0.0, 0.0, 70.0, 120.0]))
    def look_later(self, seconds: float) -> None:
        """Have the store believe that it is later; events go on to have the time of the machine."""
        self.clock.later_s = seconds

    # --- cursors --------------------------------------------------------------------------

    @property
    def cursors(self) -> Cursors:
        assert self.core.cursors is not None
        return self.core.cursors

    def an_event(self, position: int) -> EventId:
        ids = [i.id for entry in self.entries for i in entry.events] or [EventId(1, 1, 1)]
        return ids[position % len(ids)]

    def cursor(self, name: str) -> Cursor:
        wanted = Subscription([("*",)]), None
        self.places.setdefault(name, Place(None, {}))
        return self.cursors.take("x", name, Holder(), {}, wanted)

    def changed(self) -> None:
        self.moments.append(copy.deepcopy(self.places))

    @rule(name=CURSORS, position=POSITION)
    def acknowledge(self, name: str, position: int) -> None:
        event_id = self.an_event(position)
        self.cursors.acknowledge(self.cursor(name), [event_id])
        place = self.places[name]
        self.places[name] = place._replace(seen=max(event_id, place.seen or event_id))
        self.changed()

    @rule(name=CURSORS, position=POSITION, reason=st.sampled_from(["", "x", "ä"]))
    def park(self, name: str, position: int, reason: str) -> None:
        event_id = self.an_event(position)
        self.cursors.park(self.cursor(name), {event_id: reason})
        self.places[name].parked[event_id] = reason, False
        self.changed()

    @rule(name=CURSORS, position=POSITION)
    def done(self, name: str, position: int) -> None:
        event_id = self.an_event(position)
        self.cursors.done(self.cursor(name), [event_id])
        self.places[name].parked.pop(event_id, None)
        self.changed()

    @rule(name=CURSORS)
    def redeliver(self, name: str) -> None:
        cursor, parked = self.cursor(name), self.places[name].parked
        self.cursors.redeliver(cursor, [*parked])
        parked.update({i: (reason, True) for i, (reason, _) in parked.items()})
        self.changed()

    @rule(name=CURSORS, position=POSITION)
    def reset(self, name: str, position: int) -> None:
        event_id = self.an_event(position)
        self.cursors.reset(self.cursor(name), {1: event_id})
        self.places[name] = self.places[name]._replace(seen=event_id)
        self.changed()

    @rule(name=CURSORS)
    def delete(self, name: str) -> None:
        self.cursors.delete(self.cursor(name))
        del self.places[name]
        self.changed()

    @rule()
    def keep_cursors(self) -> None:
        self.run(self.cursors.rows.flush())
        self.moments = self.moments[-1:]

    @invariant()
    def cursors_are_as_the_model(self) -> None:
        assert self.found() == self.places
        for cursor in self.cursors:
            assert cursor.n_parked == len(self.places[cursor.name].parked)

    def found(self) -> dict[str, Place]:
        return {
            cursor.name: Place(
                cursor.seen.get(1),
                {i: (row.reason, row.is_due) for i, row in self.cursors.parked(cursor).items()},
            )
            for cursor in self.cursors
        }

    # --- the store ------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.run(self.close())
        assert all(i.committed.done() for i in self.entries)
        self.run(self.open())
        self.moments = self.moments[-1:]
        self.check_stored()

    @rule(n_iterations=st.integers(0, 3))
    def kill(self, n_iterations: int) -> None:
        """Go on with what the disk holds now, as after a kill at this moment."""

        async def iterate() -> None:
            for _ in range(n_iterations):
                await asyncio.sleep(0)

        self.run(iterate())
        n_durable = sum(i.committed.done() for i in self.entries)
        left_behind = self.directory / str(self.n_kills)
        self.n_kills += 1
        test_stateful.copy(left_behind, self.directory / str(self.n_kills))
        self.run(self.close())
        shutil.rmtree(left_behind)
        self.run(self.open())
        # retention keeps the latest event of a type, and so one of the last session
        last = max((i.id.session for i in self.stored()), default=0)
        n_stored = sum(i.events[0].id.session <= last for i in self.entries)
        assert n_stored >= n_durable
        del self.entries[n_stored:]
        assert self.found() in self.moments
        self.places = self.found()
        self.moments = [copy.deepcopy(self.places)]
        self.check_stored()

    def check_stored(self) -> None:
        """What is stored is what was registered, but for what retention deletes."""
        found = self.stored()
        registered = [i for entry in self.entries for i in entry.events]
        kept = [i for i in registered if i.type == ("a",)]
        assert [i for i in found if i.type == ("a",)] == kept
        assert [i for i in found if i.type == ("noise",)] == [
            i for i in registered if i.type == ("noise",) and i in found
        ]

    def stored(self) -> list[Event]:
        """What is stored of what was asked for."""
        found: list[Event] = []
        last = None
        while page := self.run(self.backend.query(QueryServerParams(1, last_event_id=last))).events:
            found += [i for i in page if i.type[0] in {"a", "noise"}]
            last = page[-1].id
        return found


@pytest.fixture(autouse=True)
def nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cursors are kept when the model says so."""
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CURSOR_PERIOD_S", 1e6)
        patch.setattr(limits, "COUNTED_REQUEST_KEYS", 2)
        patch.setattr(limits, "MIN_REQUEST_RUN", 2)
        yield


def test_exactly_once() -> None:
    run_state_machine_as_test(
        ExactlyOnceMachine,
        settings=settings(
            max_examples=examples(3),
            stateful_step_count=STEPS,
            derandomize=EXAMPLES is None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            deadline=None,
        ),
    )
