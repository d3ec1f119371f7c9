"""Fan-out: who hears of which events, and what finding that out costs."""

import asyncio
import itertools
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits, slices
from eventer_bridge.core.fanout import Fanout, Filter
from eventer_bridge.model import Event, EventId, EventType, Timestamp
from eventer_bridge.packed import Batch, batch_of, stored_batch
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.putting import TYPES as TYPE_TABLE

TYPES: list[EventType] = [("a",), ("a", "b"), ("b",), ("c", "d")]
QUERY_TYPES: list[EventType] = [("*",), ("a", "*"), ("?",), ("b",), ("x",)]


class Recorder:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes, int]] = []
        self.heard: list[asyncio.Future[None]] = []

    def notify(self, message: bytes, event_count: int, session: Batch) -> None:
        self.told.append((message, event_count))

    def on_failed(self, error: Exception) -> None:
        raise AssertionError from error

    def delay_queries(self, commit: asyncio.Future[None]) -> None:
        self.heard.append(commit)


class Hashed(Subscription):
    """A subscription that counts how often it is hashed."""

    n_hashed = 0

    def __hash__(self) -> int:
        Hashed.n_hashed += 1
        return super().__hash__()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def session_of(loop: asyncio.AbstractEventLoop, *events: tuple[int, EventType]) -> Batch:
    """A session of events, each given by its server and its type."""
    made = [
        Event(EventId(server, 1, number), event_type, Timestamp(0, 0), None, None)
        for number, (server, event_type) in enumerate(events, 1)
    ]
    if not made:
        return batch_of([], TYPE_TABLE)
    batch = stored_batch(made, TYPE_TABLE)
    batch.committed = loop.create_future()
    return batch


def encode(session: Batch, indices: Sequence[int]) -> bytes:
    return bytes(session.events[i].id.instance - 1 for i in indices)


def prepare(session: Batch) -> Steps[None]:
    yield


filters = st.builds(
    lambda types, server_id, persisted: Filter(Subscription(types), server_id, persisted),
    st.lists(st.sampled_from(QUERY_TYPES), max_size=2),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
# of one server, as those of a session are
events = st.builds(
    lambda server, types: [(server, i) for i in types],
    st.sampled_from([1, 2]),
    st.lists(st.sampled_from(TYPES), max_size=8),
)


@given(st.lists(st.tuples(filters, st.booleans()), max_size=8), st.lists(events, max_size=4))
def test_everybody_hears_of_what_passes_its_filter(
    joining: list[tuple[Filter, bool]], sessions: list[list[tuple[int, EventType]]]
) -> None:
    loop = asyncio.new_event_loop()
    heard = [(False, False)]

    def on_hearing() -> None:
        heard.append((fanout.hears(persisted=False), fanout.hears(persisted=True)))
        assert heard[-1] != heard[-2]

    def check_heard() -> None:
        there = {one_filter.persisted for one_filter in fanout.groups}
        assert heard[-1] == (False in there, True in there)

    fanout = Fanout(encode, prepare, on_hearing)
    ways = itertools.cycle(
        [fanout.notify, lambda *args: slices.at_once(fanout.notify_in_steps(*args))]
    )
    receivers: list[tuple[Recorder, Filter, bool]] = []
    for one_filter, leaves in joining:
        receivers.append((Recorder(), one_filter, leaves))
        fanout.add(receivers[-1][0], one_filter)
        check_heard()
    expected: dict[Recorder, list[tuple[bytes, int]]] = {i: [] for i, _, _ in receivers}
    for turn in range(2):
        for each in sessions:
            for persisted in False, True:
                next(ways)(session_of(loop, *each), persisted)
                for receiver, one_filter, leaves in receivers:
                    indices = [
                        index
                        for index, (server, event_type) in enumerate(each)
                        if one_filter.persisted is persisted
                        and one_filter.subscription.matches(event_type)
                        and one_filter.server_id in (None, server)
                    ]
                    if indices and not (turn and leaves):
                        expected[receiver].append((bytes(indices), len(indices)))
        for receiver, one_filter, leaves in receivers:
            if leaves:
                fanout.remove(receiver, one_filter)
                check_heard()
    for receiver, told in expected.items():
        assert receiver.told == told
    loop.close()


def test_subscriptions_are_not_hashed_for_an_event(loop: asyncio.AbstractEventLoop) -> None:
    fanout = Fanout(encode, prepare)
    receivers = [Recorder() for _ in range(10)]
    for number, receiver in enumerate(receivers):
        query_types = [(f"{number}", f"{i}") for i in range(limits.MAX_SUBSCRIPTION_TYPES - 1)]
        fanout.add(receiver, Filter(Hashed([("a",), *query_types]), None, False))
    before = Hashed.n_hashed
    assert before > 0
    for _ in range(3):
        fanout.notify(session_of(loop, *[(1, ("a",))] * 50), False)
    assert all(len(receiver.told) == 3 for receiver in receivers)
    assert Hashed.n_hashed == before


@pytest.mark.parametrize("persisted", [False, True])
def test_each_new_type_is_matched_in_a_step_of_its_own(
    loop: asyncio.AbstractEventLoop, persisted: bool
) -> None:
    fanout, recorder = Fanout(encode, prepare), Recorder()
    fanout.add(recorder, Filter(Subscription([("t", "?")]), None, persisted))
    session = session_of(loop, *[(1, ("t", str(number))) for number in range(100)])
    assert sum(1 for _ in fanout.notify_in_steps(session, persisted)) > 100
    assert sum(1 for _ in fanout.notify_in_steps(session, persisted)) < 100  # they are known
    assert recorder.told == [(bytes(range(100)), 100)] * 2


@pytest.mark.parametrize("persisted", [False, True])
def test_who_comes_later_hears_what_others_did_not_want(
    loop: asyncio.AbstractEventLoop, persisted: bool
) -> None:
    fanout = Fanout(encode, prepare)
    first, second = Recorder(), Recorder()
    fanout.add(first, Filter(Subscription([("b",)]), None, persisted))
    fanout.notify(session_of(loop, (1, ("a",))), persisted)
    fanout.add(second, Filter(Subscription([("a",)]), None, persisted))
    fanout.notify(session_of(loop, (1, ("a",))), persisted)
    assert (first.told, second.told) == ([], [(b"\0", 1)])


def test_who_is_to_hear_the_same_shares_a_message(loop: asyncio.AbstractEventLoop) -> None:
    made: list[Sequence[int]] = []

    def keep(session: Batch, indices: Sequence[int]) -> bytes:
        made.append(indices)
        return encode(session, indices)

    fanout = Fanout(keep, prepare)
    receivers = [Recorder() for _ in range(4)]
    for receiver, query_type in zip(receivers, [("a",), ("?",), ("a", "*"), ("b",)], strict=True):
        fanout.add(receiver, Filter(Subscription([query_type]), None, False))
    fanout.notify(session_of(loop, (1, ("a",)), (1, ("a",))), False)
    assert made == [[0, 1]]
    assert [i.told for i in receivers] == [[(b"\0\1", 2)]] * 3 + [[]]


def test_what_is_remembered_of_types_is_bounded(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CACHE_BYTES", 100_000)
    fanout = Fanout(encode, prepare)
    for number in range(100):  # all of which each type reaches: 800 bytes
        fanout.add(Recorder(), Filter(Subscription([("*",)]), number, False))
    types = [(f"{number}",) for number in range(400)]
    for event_type in types:  # the table of batches has them from now on
        session_of(loop, (-1, event_type))
    tracemalloc.start()
    try:
        for event_type in types:
            fanout.notify(session_of(loop, (-1, event_type)), False)
        assert tracemalloc.get_traced_memory()[1] < 120_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("persisted", [False, True])
def test_nothing_is_made_for_those_who_left(
    loop: asyncio.AbstractEventLoop, persisted: bool
) -> None:
    n_encoded = 0

    def count(session: Batch, indices: Sequence[int]) -> bytes:
        nonlocal n_encoded
        n_encoded += 1
        return b""

    fanout = Fanout(count, prepare)
    leaving, staying = Recorder(), Recorder()
    one_filter = Filter(Subscription([("a",)]), None, persisted)
    fanout.add(leaving, one_filter)
    fanout.add(staying, Filter(Subscription([("b",)]), None, persisted))
    for _ in range(2):
        fanout.notify(session_of(loop, (1, ("a",))), persisted)
        fanout.remove(leaving, one_filter)
    assert (n_encoded, len(leaving.told)) == (1, 1)


def test_one_that_leaves_while_it_is_notified(loop: asyncio.AbstractEventLoop) -> None:
    fanout = Fanout(encode, prepare)
    one_filter = Filter(Subscription([("a",)]), None, False)

    class Leaving(Recorder):
        def notify(self, message: bytes, event_count: int, session: Batch) -> None:
            super().notify(message, event_count, session)
            fanout.remove(self, one_filter)

    receivers = [Leaving() for _ in range(3)]
    for receiver in receivers:
        fanout.add(receiver, one_filter)
    for _ in range(2):
        fanout.notify(session_of(loop, (1, ("a",))), False)
    assert [len(receiver.told) for receiver in receivers] == [1, 1, 1]


def test_one_that_raises_costs_the_others_nothing(loop: asyncio.AbstractEventLoop) -> None:
    fanout = Fanout(encode, prepare)
    one_filter = Filter(Subscription([("a",)]), None, False)
    failed: list[Exception] = []

    class Raising(Recorder):
        def notify(self, message: bytes, event_count: int, session: Batch) -> None:
            raise ZeroDivisionError

        def on_failed(self, error: Exception) -> None:
            failed.append(error)

    receivers = [Raising() if i % 2 else Recorder() for i in range(9)]
    for receiver in receivers:
        fanout.add(receiver, one_filter)
    fanout.notify(session_of(loop, (1, ("a",))), False)
    assert [len(i.told) for i in receivers] == [1, 0] * 4 + [1]
    assert [type(i) for i in failed] == [ZeroDivisionError] * 4


class Closed(Recorder):
    """A receiver that is closed where it cannot be told."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[Exception] = []

    def on_failed(self, error: Exception) -> None:
        self.failed.append(error)


@pytest.mark.parametrize("is_large", [False, True])
def test_those_for_whom_there_is_no_message_are_closed(
    loop: asyncio.AbstractEventLoop, is_large: bool
) -> None:
    def encode_some(session: Batch, indices: Sequence[int]) -> bytes:
        if 1 in indices:
            raise MemoryError
        return encode(session, indices)

    fanout = Fanout(encode_some, prepare)
    of_a, of_b, of_all, of_none = [Closed() for _ in range(4)]
    for receiver, event_type in (of_a, "a"), (of_b, "b"), (of_all, "*"), (of_none, "c"):
        fanout.add(receiver, Filter(Subscription([(event_type,)]), None, True))
    session = session_of(loop, (1, ("a",)), (1, ("b",)))
    if is_large:
        slices.at_once(fanout.notify_in_steps(session, True))
    else:
        fanout.notify(session, True)
    assert of_a.told == [(b"\x00", 1)]
    assert [len(i.failed) for i in (of_a, of_b, of_all, of_none)] == [0, 1, 1, 0]


def test_who_may_want_what_nobody_could_be_told_of(loop: asyncio.AbstractEventLoop) -> None:
    fanout = Fanout(encode, prepare)
    receivers = [Closed() for _ in range(5)]
    filters = [
        Filter(Subscription([("a",)]), None, True),
        Filter(Subscription([("a",)]), 1, True),
        Filter(Subscription([("a",)]), 2, True),
        Filter(Subscription([("b",)]), None, True),
        Filter(Subscription([("a",)]), None, False),
    ]
    for receiver, one_filter in zip(receivers, filters, strict=True):
        fanout.add(receiver, one_filter)
    fanout.fail(session_of(loop, (1, ("a",))), True, MemoryError())
    assert [len(i.failed) for i in receivers] == [1, 1, 0, 0, 0]
    fanout.fail(None, True, MemoryError())
    assert [len(i.failed) for i in receivers] == [2, 2, 1, 1, 0]


def test_a_large_session_is_told_of_in_steps(loop: asyncio.AbstractEventLoop) -> None:
    done: list[object] = []

    def encode_in_turn(session: Batch, indices: Sequence[int]) -> bytes:
        assert session is large
        done.append(indices)
        return b""

    def prepare_in_turn(session: Batch) -> Steps[None]:
        assert session is large
        done.append("prepared")
        yield

    fanout = Fanout(encode_in_turn, prepare_in_turn)
    n_parts = 3
    large = session_of(loop, *[(1, ("a",)), (1, ("b",))] * limits.STEP_EVENTS, (1, ("a",)))
    assert len(list(slices.parts(len(large.events)))) == n_parts
    assert list(fanout.notify_in_steps(large, False)) == []  # nobody is there
    receivers = {name: Recorder() for name in ("a", "b", "c")}
    for name, receiver in receivers.items():
        fanout.add(receiver, Filter(Subscription([(name,)]), None, False))
    last = Recorder()
    fanout.add(last, Filter(Subscription([("a",)]), None, True))

    n_steps = len(list(fanout.notify_in_steps(large, False)))
    # to match two types, to collect, to prepare, to send two messages
    assert n_steps == 2 + n_parts + 1 + 2
    n = limits.STEP_EVENTS
    assert done == ["prepared", list(range(0, 2 * n + 1, 2)), list(range(1, 2 * n, 2))]
    assert [i.told for i in receivers.values()] == [[(b"", n + 1)], [(b"", n)], []]
    # what they ask next has to wait for it
    assert [i.heard for i in receivers.values()] == [[large.committed], [large.committed], []]
    assert (last.told, last.heard) == ([], [])

    slices.at_once(fanout.notify_in_steps(large, True))
    assert (last.told, last.heard) == ([(b"", n + 1)], [])
    done.clear()
    slices.at_once(fanout.notify_in_steps(session_of(loop, *[(1, ("x",))]), False))
    assert done == []  # nothing is made for nobody
