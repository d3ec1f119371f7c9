"""Rows of batches are those that plain Python makes of the same events."""

import copy
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge import packed
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.source_order import NOTHING
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch, BatchRows
from mariner.wire import codec
from tests.eventer_bridge.packed.support import (
    Staging,
    Types,
    compiled,
    decode_events,
    event_text,
    native,
    plain_batch,
    request,
)
from tests.support.examples import examples

pytestmark = compiled

MAX_PASSED: Final = 3
TYPES: Final = tuple((str(i),) for i in range(5))
"""The order of the last but one is not loaded: it ends with its next event. The last one is new."""


class Request(NamedTuple):
    """A request, by the numbers of its types and texts of these, sources and payload sizes.

    Attributes:
        events: its events.
        kind: how it becomes a batch: read; of objects; of objects and others that are added; the
            same of what was read.
    """

    events: Sequence[tuple[int, int, int | None, int | None]]
    kind: str = "read"

    def message(self) -> bytes:
        return request(*(self._event(*i) for i in self.events))

    def _event(self, number: int, text: int, source: int | None, size: int | None) -> bytes:
        spaces = b" " * text
        payload: Any = ... if size is None else b'"' + b"x" * max(0, size - 2) + b'"'
        return event_text(b'[%b"%d"]' % (spaces, number), source, payload)

    def registered(self) -> tuple[list[RegisterEvent], list[RegisterEvent]]:
        """Its events, and those that are added to them, some of which are binary."""
        found = [*decode_events(self.message())]
        if self.kind in ("read", "objects"):
            return found, []
        added = found[::-1]
        for n, event in enumerate(added):
            if n % 2 and isinstance(event.payload, JsonPayload):
                payload = BinaryPayload("x\ud800", bytes(event.payload.data))
                added[n] = RegisterEvent(event.type, event.source_timestamp, payload)
        return found, added

    def batch(self, types: Types) -> Batch:
        events, added = self.registered()
        if self.kind.startswith("read"):
            found = types.batch(self.message())
        else:
            found = packed.batch_of(events, types.table)
        if added:
            packed.extend(found, added[:1])
            packed.extend(found, added[1:])
        return found


class Both:
    """The same requests as batches of both implementations."""

    def __init__(self, types: Types | None = None) -> None:
        self.types = types or Types()
        for event_type in TYPES:
            self.types.id_of(event_type)
        self.types.unready.add(TYPES[-1])
        last = {self.types.ids[i]: NOTHING for i in (*TYPES[:3], TYPES[4])}
        bounds = MAX_PASSED, store_limits.MAX_ORDERED_BYTES
        self.staging = Staging(self.types, last, {}, bounds=bounds)
        self._session = 0

    def stage(
        self,
        requests: Sequence[Request],
        *,
        server: int = 1,
        time: int | None = None,
        spans: Sequence[tuple[int, int]] = ((0, -1),),
    ) -> bool:
        """Whether the order of a type ended."""
        moment = Timestamp(self._session if time is None else time, 5)
        first, self._session = self._session + 1, self._session + len(requests)
        found = [i.batch(self.types) for i in requests]
        packed.assign(found, server, first, moment.s, moment.us)
        in_python: list[Any] = []
        for number, (batch, some) in enumerate(zip(found, requests, strict=True), first):
            events, added = some.registered()
            in_python.append(plain_batch([*events, *added], (server, number, moment)))
            assert (batch.server, batch.session, batch.s, batch.us) == (server, number, moment.s, 5)
            check_view(batch, in_python[-1], len(events))
        staged = [self.staging.stage(found, in_python, *span) for span in spans]
        return any(i[-1] for i in staged)

    def write(self) -> None:
        self.staging.put()


def check_view(found: Batch, expected: Any, n_requested: int) -> None:
    """Hold what a batch tells, and its answer, to one in Python."""
    assert [*found] == [*expected]
    assert found.event_types == expected.event_types
    assert found.types == expected.types
    assert found.instances == [*expected.instances]
    assert found.payload_bytes == expected.payload_bytes
    assert found.requested == n_requested
    assert found.last_instance == expected.last_instance
    assert len(found) == len(expected)
    is_binary = any(isinstance(i.payload, BinaryPayload) for i in expected)
    assert found.is_encodable is not is_binary
    events = packed.session_events(found)
    assert events == packed.session_events(expected)
    if is_binary:
        for act in (packed.encode_events, packed.content, codec.encode_batch_successes):
            given: Any = [found] if act is codec.encode_batch_successes else found
            with pytest.raises(ValueError, match="binary"):
                act(given)
        return
    texts = [codec.encode_event(event) for event in events]
    assert packed.encode_events(found) == b",".join(texts)
    for begin in range(len(found) + 2):
        for end in range(-1, len(found) + 2):
            part = texts[begin : None if end < 0 else end]
            assert packed.encode_events(found, None, begin, end) == b",".join(part)
    asked = [RegisterEvent(i.type, i.source_timestamp, i.payload) for i in events]
    assert packed.content(found) == codec._encode(asked)
    [answer] = codec.encode_register_successes([found.register_id], [events[:n_requested]])
    assert codec.encode_batch_successes([found])[-len(answer) :] == answer


def one(*events: tuple[int, int, int | None, int | None]) -> list[Request]:
    return [Request(events)]


def of_sources(*sources: int | None) -> list[Request]:
    return one(*((0, 0, source, None) for source in sources))


LIMIT: Final = store_limits.MAX_ORDERED_BYTES - keys.SOURCED_HEAD_BYTES

SOURCES: Final = st.none() | st.integers(-3, 12)
EVENT: Final = st.tuples(
    st.sampled_from((0, 0, 0, 1, 2, 3, 4)),
    st.sampled_from((0, 0, 1)),
    st.one_of(st.integers(0, 12), st.integers(0, 12), SOURCES),
    st.sampled_from((None, 2, 7, 100, LIMIT, LIMIT + 1, LIMIT + 12, LIMIT + 13)),
)
KINDS: Final = st.sampled_from(("read", "read", "objects", "read and more", "objects and more"))
REQUESTS: Final = st.lists(
    st.builds(Request, st.lists(EVENT, min_size=1, max_size=4), KINDS), min_size=1
)
SPANS: Final = st.sampled_from((((0, 2), (2, -1)), ((0, 1), (1, 3), (3, 99)), ((1, 2),), ((9, 3),)))
STEP: Final = st.one_of(
    st.tuples(st.just("stage"), REQUESTS, st.just((1, None))),
    st.tuples(st.just("in order"), st.integers(1, 5), st.integers(1, 5)),
    st.tuples(
        st.just("stage"), REQUESTS, st.tuples(st.sampled_from((1, 2, -1)), st.integers(0, 9))
    ),
    st.tuples(st.just("parts"), REQUESTS, SPANS),
    st.tuples(st.just("write"), st.none(), st.none()),
    st.tuples(st.just("forget"), st.none(), st.none()),
)


@given(st.lists(STEP, max_size=25))
@settings(max_examples=examples(150))
def test_rows_are_those_that_python_makes(steps: list[tuple[str, Any, Any]]) -> None:
    both = Both()
    source = 0
    for step, first, second in steps:
        if step == "stage":
            server, time = second
            both.stage(first, server=server, time=time)
        elif step == "parts":
            both.stage(first[:1], spans=second)
        elif step == "in order":
            events = [(n % 3, n % 2, source + n // 2, n) for n in range(second)]
            both.stage([Request(events)] * first)
            source += second
        elif step == "write":
            both.write()
        else:
            both.types.forget_ids()
    both.write()


def test_no_order_ends_while_events_come_in_order() -> None:
    both = Both()
    for second in range(50):
        events = [(0, 0, second, 3), (1, 0, second, 5), (0, 0, second, None)]
        assert not both.stage([Request(events)] * 3)
        if second % 7 == 0:
            both.write()
    both.write()


@pytest.mark.parametrize("source", [4, None])
def test_what_ends_an_order(source: int | None) -> None:
    both = Both()
    assert not both.stage(of_sources(5))
    for _ in range(MAX_PASSED):
        assert not both.stage(of_sources(source))
    assert both.stage(of_sources(source))
    for _ in range(3):  # it has ended
        assert not both.stage(of_sources(5, 3, None, 7))
    both.write()
    assert not both.stage(of_sources(1))
    both.write()


def test_one_in_order_makes_up_for_one_that_was_not() -> None:
    both = Both()
    assert not both.stage(of_sources(5))
    for source in range(6, 30):
        assert not both.stage(of_sources(3))
        assert not both.stage(of_sources(source, source, None))
    both.write()


def test_an_event_in_the_middle_that_is_not_in_order() -> None:
    both = Both()
    assert not both.stage(of_sources(5))
    assert not both.stage([*of_sources(6), *one((1, 0, 1, None)), *of_sources(7, 4, 8)])
    assert both.stage([*of_sources(9), *of_sources(*[4] * (MAX_PASSED + 1))])
    assert not both.stage(of_sources(9))
    both.write()


def test_an_order_that_ends_in_the_middle() -> None:
    """What was before it is in order; where it ended is the last of that."""
    both = Both()
    assert both.stage([*of_sources(5, 6), *of_sources(*[4] * (MAX_PASSED + 2)), *of_sources(7)])
    [(type_id, end)] = both.staging.ends.items()
    assert type_id == both.types.ids[TYPES[0]]
    assert end[-keys.INT_BYTES :] == keys.encode_int(2)
    rows = both.staging.put()
    assert [keys.is_in_order(value) for _, value in rows] == [True, True] + [False] * 6


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 100_000])
def test_large_values(size: int) -> None:
    both = Both()
    assert not both.stage(one((0, 0, 1, 2)))
    assert both.stage(one((0, 0, 2, size))) is (size > LIMIT)
    both.stage(one((0, 0, 3, size), (0, 0, None, size), (0, 0, 2, 1)))
    both.write()


def test_the_order_of_a_type_that_is_not_loaded_ends_once() -> None:
    both = Both()
    assert both.stage(one((3, 0, 1, None)))
    assert both.staging.ends == {both.types.ids[TYPES[3]]: both.staging._floor}
    assert not both.stage(one((3, 0, 1, None), (3, 0, None, None)))
    both.write()


@pytest.mark.parametrize("source", [1, None])
def test_a_new_type(source: int | None) -> None:
    """Its id is looked up; its order begins with the first event that is in order."""
    both = Both()
    assert both.stage(one((4, 0, source, 3), (0, 0, 1, 3), (4, 1, 2, None))) is (source is None)
    if source is None:
        assert both.staging.ends == {both.types.ids[TYPES[4]]: b""}
    assert not both.stage(one((4, 0, 3, 3)))
    both.write()


def test_a_type_without_an_id_changes_nothing() -> None:
    both = Both()
    both.stage(of_sources(1))
    types = both.types
    found = types.batch(request(event_text("0", 2), event_text("4"), event_text("1", 3)))
    packed.assign([found], 1, 99, 99, 0)
    before = copy.deepcopy((both.staging.last, both.staging.ends))
    type_id = types.ids.pop(TYPES[4])
    for rows in (both.staging.rows, both.staging._plain_rows):
        last, ends = copy.deepcopy(before)
        with pytest.raises(KeyError):
            rows.stage([found], types.ids, last, ends, both.staging._floor, True)
        assert (last, ends) == before
        assert len(rows) == 1
    types.ids[TYPES[4]] = type_id
    assert not both.stage(of_sources(2))
    both.write()


def test_two_texts_of_a_type_have_one_order() -> None:
    both = Both()
    assert not both.stage(one((0, 0, 5, None), (0, 1, 6, None), (0, 2, 6, None), (0, 0, 7, None)))
    assert not both.stage(one((0, 0, 9, None), (0, 1, 8, None)))
    assert not both.stage([*one((0, 0, 11, None)), *one((0, 1, 12, None)), *one((0, 0, 11, None))])
    assert not both.stage(one((0, 1, 14, None), (0, 0, 14, None)))
    both.write()


def test_a_type_that_was_learned_anew_has_the_same_order() -> None:
    """Who has a request from before the table was full registers it with others."""
    types = Types(2_000)
    both = Both(types)
    messages = [request(event_text("0", source)) for source in (5, 3)]
    old = types.batch(messages[0])
    for number in range(10):
        types.batch(request(event_text(b'[%b"0"]' % (b" " * number), 5)))
    found = [old, types.batch(messages[1])]
    packed.assign(found, 1, 1, 1, 0)
    in_python = [
        plain_batch(decode_events(message), (1, number, Timestamp(1, 0)))
        for number, message in enumerate(messages, 1)
    ]
    staged = both.staging.stage(found, in_python)
    assert len(staged[2]) == 1
    source, _, n_passed = both.staging.last[types.ids["0",]]
    assert (source, n_passed) == (keys.encode_timestamp(Timestamp(5, 0)), 1)


def test_events_of_two_servers_and_a_clock_that_goes_back() -> None:
    both = Both()
    assert not both.stage(of_sources(1), server=2, time=5)
    assert not both.stage(of_sources(2), server=3, time=5)
    assert both.stage(of_sources(3), server=2, time=4)
    assert not both.stage(of_sources(3), server=2, time=6)
    both.write()


@pytest.mark.parametrize("server", [0, INT64_MIN, INT64_MAX])
@pytest.mark.parametrize("time", [0, INT64_MIN, INT64_MAX])
def test_bounds_of_ids_and_timestamps(server: int, time: int) -> None:
    both = Both()
    both._session = INT64_MAX - 9
    both.stage(of_sources(1, 2), server=server, time=time)
    both.write()


@pytest.mark.parametrize(
    "source", [(0, 0), (-1, 999_999), (10**18 - 1, 1), (INT64_MIN, 0), (INT64_MAX, 999_999)]
)
def test_bounds_of_source_timestamps(source: tuple[int, int]) -> None:
    both = Both()
    message = request(event_text("0", source))
    found = [both.types.batch(message), packed.batch_of(decode_events(message), both.types.table)]
    packed.assign(found, 1, 1, 1, 0)
    in_python = [
        plain_batch(decode_events(message), (1, number, Timestamp(1, 0))) for number in (1, 2)
    ]
    both.staging.stage(found, in_python)
    assert len(both.staging.put()) == 2


@pytest.mark.parametrize("seed", range(10))
def test_sessions_that_have_their_ids(seed: int) -> None:
    """Some of another server's, whose other events nobody may see here."""
    both, chance = Both(), random.Random(seed)
    for session in range(1, 9):
        time = Timestamp(session, 7)
        instances = sorted(chance.sample(range(1, 1_000), chance.randrange(1, 30)))
        events = []
        for instance in instances:
            payload = chance.choice(
                (None, JsonPayload.of("x" * (instance % 40)), BinaryPayload("t", b"\0" * 9))
            )
            source = chance.choice((None, Timestamp(session, 5), Timestamp(chance.randrange(9), 0)))
            name = chance.choice(TYPES)
            events.append(Event(EventId(3, session, instance), name, time, source, payload))
        found = packed.stored_batch(events, both.types.table)
        assert found.instances == instances
        assert found.last_id == events[-1].id
        assert [*found.events] == events
        expected = plain_batch(events, (3, session, time), instances)
        check_view(found, expected, len(events))
        middle = chance.randrange(len(events) + 1)
        spans = ((0, middle), (middle, -1)) if session % 2 else ((0, -1),)
        for span in spans:
            both.staging.stage([found], [expected], *span)
        if session % 3 == 0:
            both.write()
    both.write()


@pytest.mark.parametrize("wrong", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_not_as_many_instances_as_events(wrong: list[int]) -> None:
    types = Types()
    events = decode_events(request(*(event_text("a", n, "x" * n) for n in range(3))))
    with pytest.raises(ValueError, match="instances"):
        native.make_batch(events, types.table, packed._payload, 0, None, None, wrong)


def test_parts() -> None:
    types = Types()
    sizes = [0, 5, 99, 1, 1, 200, 3, 3, 3]
    message = request(*(event_text("a", 1, "x" * n if n else None) for n in sizes))
    found, expected = types.batch(message), plain_batch(decode_events(message))
    for max_events, max_bytes in ((1, 1), (2, 1_000), (4, 100), (99, 9_999), (9, 7)):
        assert found.parts(max_events, max_bytes) == expected.parts(max_events, max_bytes)


# --- BatchRows alone ---------------------------------------------------------------------------


def stage(rows: BatchRows, types: Types, *requests: Batch, first_session: int = 1) -> packed.Staged:
    """Stage requests of types whose order has ended."""
    ends = dict.fromkeys(types.ids.values(), b"")
    packed.assign([*requests], 1, first_session, 1, 0)
    return rows.stage([*requests], types.ids, {}, ends, b"", True)


def _note(found: list[tuple[bytes, bytes]], family: Any, key: bytes, value: bytes, of: Any) -> None:
    assert of is family
    found.append((key, value))


def test_rows_are_put_in_their_order_and_begin_anew() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    messages = [request(*(event_text(i) for i in names)) for names in ("ba", "ab", "c", "ca")]
    requests = [types.batch(i) for i in messages]
    for _ in range(2):
        assert stage(rows, types, *requests)
        assert len(rows) == 7
        found: list[tuple[bytes, bytes]] = []
        family: Any = object()

        put = partial(_note, found, family)
        latest = rows.put(put, family)
        assert [key for key, _ in found] == sorted({key for key, _ in found})
        last = {key[:4]: (key, value) for key, value in found}
        assert latest == [*last.items()]
        assert len(last) == 3
        assert len(rows) == 0
    assert rows.put(put, family) == []


def test_an_error_while_rows_are_put_is_told() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    assert stage(rows, types, types.batch(request(event_text("a"), event_text("b"))))

    def fail(*_: object) -> None:
        raise OSError("full")

    family: Any = None
    with pytest.raises(OSError, match="full"):
        rows.put(fail, family)


def test_many_rows() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    messages = [
        request(*(event_text(str(n % 7), n, "x" * (n % 50)) for n in range(first, first + 100)))
        for first in range(0, 5_000, 100)
    ]
    requests = [types.batch(i) for i in messages]
    for some in (requests[:1], requests[1:4], requests[4:]):
        assert stage(rows, types, *some, first_session=requests.index(some[0]))
    found: dict[bytes, bytes] = {}
    family: Any = None
    rows.put(lambda key, value, _: found.__setitem__(key, value), family)
    values = [found[key] for key in sorted(found, key=lambda key: key[keys.TYPE_BYTES :])]
    assert [keys.source_of(i) for i in values] == [
        keys.encode_timestamp(Timestamp(n, 0)) for n in range(5_000)
    ]
    assert [keys.payload_of(i) for i in values] == [
        JsonPayload.of("x" * (n % 50)) for n in range(5_000)
    ]


def test_wrong_arguments_are_refused() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    found = types.batch(request(event_text("a")))
    wrong: Any
    for wrong in ((found,), None, [b""], [[]], [found, None]):
        with pytest.raises(TypeError):
            rows.stage(wrong, types.ids, {}, {}, b"", True)
        with pytest.raises(TypeError):
            packed.assign(wrong, 1, 1, 1, 1)
        with pytest.raises(TypeError):
            packed.unready(wrong)
        with pytest.raises(TypeError):
            packed.encode_answers(wrong, b"", b"", b"")
        with pytest.raises(TypeError):
            packed.encode_sbs_answers(wrong[::-1] if wrong else wrong)
    for number in range(4):
        numbers = [1, 1, 1, 1]
        numbers[number] = INT64_MAX + 1
        with pytest.raises(OverflowError):
            packed.assign([found], *numbers)
    right: list[Any] = [[found], types.ids, {}, {}, b"", True]
    for number in range(1, 5):
        for wrong in (None, [], bytearray()):
            arguments = [*right]
            arguments[number] = wrong
            with pytest.raises(TypeError):
                native.BatchRows.stage(rows, *arguments)
    with pytest.raises(IndexError):
        native.BatchRows.stage(rows, *right, -1)
    with pytest.raises(IndexError):
        packed.unready([found], -1)
    with pytest.raises(IndexError):
        packed.encode_events(found, None, -1)
    assert len(rows) == 0
