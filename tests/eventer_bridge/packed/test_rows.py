"""Rows of packed requests are those that Python makes of the same events."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge import packed
from eventer_bridge.backends.retention import Share
from eventer_bridge.backends.rocksdb import keys, source_order
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.source_order import NOTHING, SourceOrder
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core.session import make_events
from eventer_bridge.model import INT64_MAX, INT64_MIN, JsonPayload, Timestamp
from eventer_bridge.packed import Packed, PackedRows
from tests.eventer_bridge.packed.support import Types, compiled, decode_events, event_text, request
from tests.support.examples import examples

pytestmark = compiled

MAX_PASSED: Final = 3
HANDLES: Final = "event", "source", "session", "server", "type"
TYPES: Final = tuple((str(i),) for i in range(4))
"""The last of them is not loaded: its order ends with its next event."""

Put = tuple[bytes, bytes, str | None]


@pytest.fixture(autouse=True, scope="module")
def few_may_pass() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_order, "MAX_PASSED_EVENTS", MAX_PASSED)
        yield


class Batch:
    """What a ``WriteBatch`` gets."""

    def __init__(self) -> None:
        self.rows: list[Put] = []
        self._family: str | None = None

    def put(self, key: bytes, value: bytes, family: str | None = None) -> None:
        self.rows.append((key, value, family or self._family))

    def set_default_column_family(self, family: str | None) -> None:
        self._family = family


class Staging:
    """A store that only stages, and its commit."""

    def __init__(self, types: Types) -> None:
        for event_type in TYPES:
            types.id_of(event_type)
        self.types = types
        self.store = Store.__new__(Store)
        last = {types.ids[i]: NOTHING for i in TYPES[:3]}
        self.store.order = SourceOrder({}, last, keys.session_key(Timestamp(0, 0), 1, 1))
        # two types share a rule of retention, and one has none
        shares: list[Any] = [Share.__new__(Share) for _ in range(2)]
        shares_of = [shares[0], shares[0], shares[1]]
        self.store.counted = dict(zip(map(types.ids.__getitem__, TYPES), shares_of, strict=False))
        self.shares = {id(i): n for n, i in enumerate(shares)}
        self.store._handles = HANDLES  # type: ignore[assignment]
        self._begin()

    def _begin(self) -> None:
        self.batch = Batch()
        self.commit = Commit(batch=self.batch)  # type: ignore[arg-type]

    def stage(self, requests: Sequence[bytes], server: int, session: int, time: Timestamp) -> None:
        made = [
            make_events(server, session + number, decode_events(message), time)
            for number, message in enumerate(requests)
        ]
        type_ids = [self.types.ids[i.type] for events in made for i in events]
        self.store.stage(self.commit, made, type_ids, [])

    def order(self) -> Any:
        return self.store.order._last, self.store.order._ends

    def totals(self) -> Any:
        commit = self.commit
        tally = {self.shares[id(share)]: counts for share, counts in commit.tally.items()}
        return commit.n_events, commit.n_bytes, commit.sessions, tally, sorted(commit.sources)

    def state(self) -> Any:
        """Everything that staging changes; a copy."""
        rows = None if self.commit.packed is None else len(self.commit.packed)
        of_commit = self.totals(), rows or 0, self.commit.events, self.batch.rows
        return copy.deepcopy((self.order(), of_commit))

    def write(self) -> Any:
        """All rows of the commit, and the latest of each type; another one begins."""
        self.store._put_events(self.commit)
        rows, latest = self.batch.rows, self.commit.latest
        if self.commit.packed is not None:
            assert len(self.commit.packed) == 0
        self._begin()
        return rows, latest


class Request(NamedTuple):
    """A request, by the numbers of its types and texts of these, sources and payload sizes."""

    events: Sequence[tuple[int, int, int | None, int | None]]

    def message(self) -> bytes:
        return request(*(self._event(*i) for i in self.events))

    def _event(self, number: int, text: int, source: int | None, size: int | None) -> bytes:
        spaces = b" " * text
        payload: Any = ... if size is None else b'"' + b"x" * max(0, size - 2) + b'"'
        return event_text(b'[%b"%d"]' % (spaces, number), source, payload)


class Both:
    """The same requests, packed where they can be, and through Python.

    Attributes:
        n_packed: how many times requests were staged as they came.
        n_others: how many times they were not.
    """

    def __init__(self) -> None:
        self.types = Types()
        self.fast, self.plain = Staging(self.types), Staging(self.types)
        self.n_packed = self.n_others = 0
        self._session = 0

    def stage(
        self, requests: Sequence[Request], *, server: int = 1, time: int | None = None
    ) -> bool:
        messages = [i.message() for i in requests]
        moment = Timestamp(self._session if time is None else time, 5)
        first, self._session = self._session + 1, self._session + len(requests)
        self.plain.stage(messages, server, first, moment)
        before = self.fast.state()
        found = [self.types.packed(i) for i in messages]
        is_staged = self.fast.store.stage_packed(self.fast.commit, found, server, first, moment)
        if is_staged:
            self.n_packed += 1
            for number, i in enumerate(found):
                assert (i.server, i.session, i.s, i.us) == (server, first + number, moment.s, 5)
        else:
            self.n_others += 1
            assert self.fast.state() == before
            self.fast.stage(messages, server, first, moment)
        assert self.fast.order() == self.plain.order()
        assert self.fast.totals() == self.plain.totals()
        return is_staged

    def write(self) -> None:
        rows, latest = self.fast.write()
        expected, expected_latest = self.plain.write()
        assert latest == expected_latest
        assert len(rows) == len({(family, key) for key, _, family in rows})
        assert sorted(rows) == sorted(expected)


def one(*events: tuple[int, int, int | None, int | None]) -> list[Request]:
    return [Request(events)]


def of_sources(*sources: int | None) -> list[Request]:
    return one(*((0, 0, source, None) for source in sources))


LIMIT: Final = source_order.MAX_VALUE_BYTES - keys.SOURCED_HEAD_BYTES

SOURCES: Final = st.none() | st.integers(-3, 12)
EVENT: Final = st.tuples(
    st.sampled_from((0, 0, 0, 1, 2, 3)),
    st.sampled_from((0, 0, 1)),
    st.one_of(st.integers(0, 12), st.integers(0, 12), SOURCES),
    st.sampled_from((None, 2, 7, 100, LIMIT, LIMIT + 1, LIMIT + 12, LIMIT + 13)),
)
REQUESTS: Final = st.lists(st.builds(Request, st.lists(EVENT, min_size=1, max_size=4)), min_size=1)
STEP: Final = st.one_of(
    st.tuples(st.just("stage"), REQUESTS, st.just((1, None))),
    st.tuples(st.just("in order"), st.integers(1, 5), st.integers(1, 5)),
    st.tuples(
        st.just("stage"), REQUESTS, st.tuples(st.sampled_from((1, 2, -1)), st.integers(0, 9))
    ),
    st.tuples(st.just("write"), st.none(), st.none()),
    st.tuples(st.just("clear"), st.none(), st.none()),
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
        elif step == "in order":
            events = [(n % 3, n % 2, source + n // 2, n) for n in range(second)]
            both.stage([Request(events)] * first)
            source += second
        elif step == "write":
            both.write()
        else:
            both.types.table.clear()
    both.write()


def test_what_comes_in_order_is_staged() -> None:
    both = Both()
    for second in range(50):
        events = [(0, 0, second, 3), (1, 0, second, 5), (0, 0, second, None)]
        assert both.stage([Request(events)] * 3)
        if second % 7 == 0:
            both.write()
    both.write()


@pytest.mark.parametrize("source", [4, None])
def test_what_ends_an_order_is_for_python(source: int | None) -> None:
    both = Both()
    assert both.stage(of_sources(5))
    for _ in range(MAX_PASSED):
        assert both.stage(of_sources(source))
    assert not both.stage(of_sources(source))
    for _ in range(3):  # it has ended
        assert both.stage(of_sources(5, 3, None, 7))
    both.write()
    assert both.stage(of_sources(1))
    both.write()


def test_one_in_order_makes_up_for_one_that_was_not() -> None:
    both = Both()
    assert both.stage(of_sources(5))
    for source in range(6, 30):
        assert both.stage(of_sources(3))
        assert both.stage(of_sources(source, source, None))
    both.write()


def test_an_event_in_the_middle_that_is_not_in_order() -> None:
    both = Both()
    assert both.stage(of_sources(5))
    assert both.stage([*of_sources(6), *one((1, 0, 1, None)), *of_sources(7, 4, 8)])
    assert not both.stage([*of_sources(9), *of_sources(*[4] * (MAX_PASSED + 1))])
    assert both.stage(of_sources(9))
    both.write()


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 100_000])
def test_large_values(size: int) -> None:
    both = Both()
    assert both.stage(one((0, 0, 1, 2)))
    assert both.stage(one((0, 0, 2, size))) is (size <= LIMIT)
    assert both.stage(one((0, 0, 3, size), (0, 0, None, size), (0, 0, 2, 1)))
    both.write()


def test_a_type_that_is_not_loaded_is_for_python_once() -> None:
    both = Both()
    assert not both.stage(one((3, 0, 1, None)))
    assert both.stage(one((3, 0, 1, None), (3, 0, None, None)))
    both.write()


def test_two_texts_of_a_type_have_one_order() -> None:
    both = Both()
    assert both.stage(one((0, 0, 5, None), (0, 1, 6, None), (0, 2, 6, None), (0, 0, 7, None)))
    assert both.stage(one((0, 0, 9, None), (0, 1, 8, None)))
    assert both.stage([*one((0, 0, 11, None)), *one((0, 1, 12, None)), *one((0, 0, 11, None))])
    assert both.stage(one((0, 1, 14, None), (0, 0, 14, None)))
    both.write()


def test_a_type_that_was_learned_anew_has_the_same_order() -> None:
    """Who has a request from before the table was full registers it with others."""
    types = Types(2_000)
    staging = Staging(types)
    old = types.packed(request(event_text("0", 5)))
    for number in range(10):
        types.packed(request(event_text(b'[%b"0"]' % (b" " * number), 5)))
    new = types.packed(request(event_text("0", 3)))
    time = Timestamp(1, 0)
    assert staging.store.stage_packed(staging.commit, [old, new], 1, 1, time)
    assert len(staging.commit.sources) == 1
    source, _, n_passed = staging.order()[0][types.ids["0",]]
    assert (source, n_passed) == (keys.encode_timestamp(Timestamp(5, 0)), 1)


def test_events_of_two_servers_and_a_clock_that_goes_back() -> None:
    both = Both()
    assert both.stage(of_sources(1), server=2, time=5)
    assert both.stage(of_sources(2), server=3, time=5)
    assert not both.stage(of_sources(3), server=2, time=4)
    assert both.stage(of_sources(3), server=2, time=6)
    both.write()


@pytest.mark.parametrize("server", [0, INT64_MIN, INT64_MAX])
@pytest.mark.parametrize("time", [0, INT64_MIN, INT64_MAX])
def test_bounds_of_ids_and_timestamps(server: int, time: int) -> None:
    both = Both()
    both._session = INT64_MAX - 9
    both.stage(of_sources(1, 2), server=server, time=time)
    both.write()


@pytest.mark.parametrize("source", [(0, 0), (-1, 999_999), (10**18 - 1, 1), (1 - 10**18, 0)])
def test_bounds_of_source_timestamps(source: tuple[int, int]) -> None:
    types = Types()
    fast, plain = Staging(types), Staging(types)
    message = request(event_text("0", source))
    assert fast.store.stage_packed(fast.commit, [types.packed(message)], 1, 1, Timestamp(1, 0))
    plain.stage([message], 1, 1, Timestamp(1, 0))
    assert fast.order() == plain.order()
    assert sorted(fast.write()[0]) == sorted(plain.write()[0])


# --- Rows alone ---------------------------------------------------------------------------


def stage(
    rows: PackedRows, types: Types, *requests: Packed, first_session: int = 1
) -> packed.Staged | None:
    """Stage requests of types whose order has ended."""
    ends = dict.fromkeys(types.ids.values(), b"")
    return rows.stage([*requests], 1, first_session, 1, 0, {}, ends, True)


def _note(found: list[tuple[bytes, bytes]], family: Any, key: bytes, value: bytes, of: Any) -> None:
    assert of is family
    found.append((key, value))


def test_rows_are_put_in_their_order_and_begin_anew() -> None:
    types, rows = Types(), PackedRows(16, 4_096)
    messages = [request(*(event_text(i) for i in names)) for names in ("ba", "ab", "c", "ca")]
    requests = [types.packed(i) for i in messages]
    for _ in range(2):
        assert stage(rows, types, *requests) is not None
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
    types, rows = Types(), PackedRows(16, 4_096)
    assert stage(rows, types, types.packed(request(event_text("a"), event_text("b")))) is not None

    def fail(*_: object) -> None:
        raise OSError("full")

    family: Any = None
    with pytest.raises(OSError, match="full"):
        rows.put(fail, family)


def test_many_rows() -> None:
    types, rows = Types(), PackedRows(16, 4_096)
    messages = [
        request(*(event_text(str(n % 7), n, "x" * (n % 50)) for n in range(first, first + 100)))
        for first in range(0, 5_000, 100)
    ]
    requests = [types.packed(i) for i in messages]
    for some in (requests[:1], requests[1:4], requests[4:]):
        assert stage(rows, types, *some, first_session=requests.index(some[0])) is not None
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
    types, rows = Types(), PackedRows(16, 4_096)
    found = types.packed(request(event_text("a")))
    wrong: Any
    for wrong in ((found,), None, [b""], [[]], [found, None]):
        with pytest.raises(TypeError):
            rows.stage(wrong, 1, 1, 1, 0, {}, {}, True)
        with pytest.raises(TypeError):
            packed.encode_answers(wrong, b"", b"", b"")
        with pytest.raises(TypeError):
            packed.encode_sbs_answers(wrong[::-1] if wrong else wrong)
    with pytest.raises(OverflowError):
        rows.stage([found], INT64_MAX + 1, 1, 1, 0, {}, {}, True)
    for wrong in (None, []):
        with pytest.raises(TypeError):
            rows.stage([found], 1, 1, 1, 0, wrong, {}, True)
    assert len(rows) == 0
