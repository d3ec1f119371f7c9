"""Callbacks that change what is being read, and None for bytes: refused, or without effect.

Where there is a sanitizer build (``tests/torture/test_sanitized.py``), that notices the rest.
"""

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest

from eventer_bridge import packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    EventType,
    JsonPayload,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch, BatchRows, StoredEvents, TypeTable
from mariner.wire import codec
from tests.eventer_bridge.packed.support import (
    Types,
    compiled,
    decode_events,
    event_text,
    make_events,
    native,
    request,
)

pytestmark = compiled

NEW: Final = b"", b"", 0
"""The order of a type of which there is nothing."""
NAMES: Final[dict[bytes, EventType]] = {b"\0\0\0\1": ("a",)}
ROW: Final = b"\0\0\0\1" + b"\x80" * 36, b"\x01null"
MANY: Final = 10_000


class Place:
    """A place in an order that does something when it is looked at."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def __iter__(self) -> Iterator[object]:
        self._act()
        return iter(NEW)


class Index:
    """A number that does something when it is looked at."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._number, self._act = number, act

    def __index__(self) -> int:
        self._act()
        return self._number

    __int__ = __index__


def stage(rows: BatchRows, batches: list[Batch], last: Any, ids: Any = None) -> packed.Staged:
    return rows.stage(batches, ids or {}, last, {}, b"", True)


def put(rows: BatchRows, act: Callable[[], object] = lambda: None) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []

    def add(key: bytes, value: bytes, _: object) -> None:
        found.append((key, value))
        act()

    family: Any = None
    rows.put(add, family)
    return found


def encode_stored(events: StoredEvents | None) -> bytes:
    assert events is not None
    return packed.encode_stored(events, b"", b"")


def check(found: Batch, expected: Sequence[RegisterEvent]) -> None:
    """Hold a batch to its events."""
    assert len(found) == len(expected)
    assert [*found] == [*expected]
    assert found.instances == [*range(1, len(expected) + 1)]
    packed.assign([found], 1, 2, 3, 4)
    made = make_events(1, 2, expected, Timestamp(3, 4))
    assert packed.encode_events(found) == codec.encode_events(made)
    types = dict.fromkeys(found.types, b"type")
    for number, event_type in enumerate(types):
        types[event_type] = keys.encode_type_id(1_000 + number)
    rows = BatchRows(16, 4_096)
    rows.stage([found], types, {}, {}, b"", True)
    assert [keys.payload_of(value) for _, value in sorted(put(rows), key=lambda i: i[0][4:])] == [
        i.payload for i in expected
    ]


# --- rows that are staged and put ---------------------------------------------------------


def test_what_puts_rows_cannot_stage_or_put_them() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    few = [types.batch(request(event_text("a", 1), event_text("a", 2, "x" * 99)))]
    many = [types.batch(request(*[event_text("a", 3, "x" * 99)] * 99))] * 9
    last = dict.fromkeys(types.ids.values(), NEW)
    stage(rows, few, last)
    for act in (lambda: stage(rows, many, last), lambda: put(rows)):
        with pytest.raises(RuntimeError, match="these rows are being staged or put"):
            put(rows, act)
        assert len(rows) == 2
    assert len(put(rows)) == 2
    stage(rows, few, dict.fromkeys(types.ids.values(), NEW))


def test_what_is_called_while_rows_are_staged_cannot_stage_or_put_them() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    batches = [types.batch(request(event_text("a", 1), event_text("b", 2)))]
    first, second = types.ids.values()
    for act in (lambda: stage(rows, batches * 99, {}), lambda: put(rows)):
        with pytest.raises(RuntimeError, match="these rows are being staged or put"):
            stage(rows, batches, {first: NEW, second: Place(act)})
    assert put(rows) == []


def test_lists_of_batches_that_grow_while_they_are_staged() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    batches = [types.batch(request(event_text("a", 1, "x")))]
    large = types.batch(request(*[event_text("a", 1, "x" * 99)] * 999))
    [type_id] = types.ids.values()
    for grown in ([large] * 99, [None]):
        wanted: Any = [*batches]
        staged = stage(rows, wanted, {type_id: Place(partial(wanted.extend, grown))})
        assert len(wanted) > 1
        assert staged[4] == [(type_id, 1, 16)]
        assert len(put(rows)) == 1


def test_a_batch_does_not_grow_while_it_is_staged() -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    batches = [types.batch(request(event_text("a", 1), event_text("b", 2, "x")))] * 2
    first, second = types.ids.values()
    more = decode_events(request(*[event_text("a", 5, "x" * 999)] * 99))
    grow = partial(packed.extend, batches[0], more)
    with pytest.raises(RuntimeError, match="this batch is being staged"):
        stage(rows, batches, {first: NEW, second: Place(grow)})
    assert put(rows) == []
    stage(rows, batches, {first: NEW, second: NEW})
    assert len(rows) == 4
    events = [*batches[0]]
    grow()
    check(batches[0], [*events, *more])


def test_a_type_that_is_staged_in_others_meanwhile() -> None:
    types, of_others, rows, others = Types(), Types(), BatchRows(16, 4_096), BatchRows(16, 4_096)
    of_others.ids = types.ids
    batches = [types.batch(request(*(event_text(i, 1) for i in ("a", "b", "a"))))]
    first, second = types.ids.values()

    def act() -> None:
        message = request(event_text("a", 1), event_text("b", 1))
        stage(others, [of_others.batch(message)], {first: NEW, second: NEW})
        stage(others, batches, {first: NEW, second: NEW})

    with pytest.raises(RuntimeError, match="staged in others"):
        stage(rows, batches, {first: NEW, second: Place(act)})
    assert put(rows) == []
    assert len(put(others)) == 5


@pytest.mark.parametrize("found", [b"", b"9999"])
def test_a_type_that_gets_another_id_while_it_is_staged(found: bytes) -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    batches = [types.batch(request(*(event_text(i, 1, "x") for i in "aba"))) for _ in range(2)]
    packed.assign(batches, 1, 1, 1, 0)
    first, second = types.ids.values()

    def act() -> None:
        types.ids = {("a",): found, ("b",): found}
        types.forget_ids()
        packed.unready(batches)

    last = {first: NEW, second: Place(act)}
    staged = stage(rows, batches, last, {("a",): first, ("b",): second})
    assert [i[0] for i in staged[4]] == [first, second]
    assert {*last} == {first, second}
    assert {key[:4] for key, _ in put(rows)} == {first, second}


@pytest.mark.parametrize("place", [(None, None, 0), (b"x" * 12, None, 0), (None, b"x" * 36, 0)])
def test_an_order_without_bytes(place: Any) -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    batches = [types.batch(request(event_text("a", 1)))]
    with pytest.raises(TypeError, match="xpected bytes, got NoneType"):
        stage(rows, batches, dict.fromkeys(types.ids.values(), place))
    assert put(rows) == []


@pytest.mark.parametrize(
    "place", [None, (), NEW[:2], (b"x", b"x" * 36, 0), (b"x" * 12, b"x", 0), (b"", b"", "x"), 1]
)
def test_a_wrong_order(place: Any) -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    batches = [types.batch(request(event_text("a", 1)))]
    if place is None:  # it is not known
        assert stage(rows, batches, dict.fromkeys(types.ids.values(), place))[5]
        return
    with pytest.raises((TypeError, ValueError)):
        stage(rows, batches, dict.fromkeys(types.ids.values(), place))
    assert put(rows) == []


@pytest.mark.parametrize("wrong", [None, "1234", b"", b"123", b"12345", bytearray(b"1234"), 1])
def test_ids_that_are_none(wrong: Any) -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    types.unready |= {("a",), ("b",)}
    batches = [types.batch(request(event_text("a", 1), event_text("b", 1)))]
    right = b"1234"
    for ids in ({("a",): wrong, ("b",): right}, {("a",): right, ("b",): wrong}):
        with pytest.raises((TypeError, ValueError), match=r"bytes|type_id"):
            stage(rows, batches, {}, ids)
    for ids in ({("a",): right}, {("b",): right}):
        with pytest.raises(KeyError):
            stage(rows, batches, {}, ids)
    assert put(rows) == []
    stage(rows, batches, {}, {("a",): right, ("b",): b"4321"})
    assert [key[:4] for key, _ in put(rows)] == [right, b"4321"]


# --- types --------------------------------------------------------------------------------

NONSENSE: Final = (
    (("a",), None),
    (1, 2),
    (("a",), "[]"),
    (),
    1,
    (("a",), b"0001", b"[]"),
    (1, b"[]"),
)

NO_IDS: Final = (b"01", b"00011", "0001", 1, (), [b"0001"])


@pytest.mark.parametrize("found", NONSENSE)
def test_a_type_that_is_nonsense(found: Any) -> None:
    table = Types().make_table(lambda _: found)
    with pytest.raises((TypeError, ValueError)):
        packed.read_json(request(event_text("a")), table)
    with pytest.raises((TypeError, ValueError)):
        packed.batch_of(decode_events(request(event_text("a"))), table)
    assert len(table) == 0


@pytest.mark.parametrize("nonsense", NO_IDS)
def test_an_id_that_is_nonsense_when_it_is_asked_for_again(nonsense: Any) -> None:
    types, rows = Types(), BatchRows(16, 4_096)
    message = request(event_text("a", 1, "x"), event_text("b", 2))
    found = types.batch(message)
    right = types.ids
    types.table.use(dict.fromkeys(right, nonsense))
    for _ in range(2):
        if nonsense:
            with pytest.raises((TypeError, ValueError)):
                packed.unready([found])
        else:
            assert len(packed.unready([found])) == 2
    with pytest.raises(KeyError):
        stage(rows, [found], {})
    stage(rows, [found], {}, right)
    assert len(put(rows)) == 2
    types.table.use(right)
    assert packed.unready([found]) == []
    check(found, decode_events(message))


@pytest.mark.parametrize("wrong", [b"", b"1", b"12345"])
def test_a_type_that_is_found_within_its_finding(wrong: bytes) -> None:
    """The outer one is wrong, or not ready: it does not stay ready with that id."""
    types, rows = Types(), BatchRows(16, 4_096)
    found = types.batch(request(event_text("a", 1)))

    class Ids(dict[EventType, bytes]):
        depth = 0

        def get(self, key: Any, _: Any = None) -> Any:
            self.depth += 1
            if self.depth > 1:
                return types.ids[key]
            assert packed.unready([found]) == []
            return wrong

    types.table.use(Ids())
    if wrong:
        with pytest.raises(ValueError, match="type_id"):
            packed.unready([found])
    else:
        assert packed.unready([found]) == [(0, ("a",))]
    stage(rows, [found], {}, types.ids)
    assert [key[:4] for key, _ in put(rows)] == [*types.ids.values()]


def test_a_table_that_is_emptied_or_used_while_it_is_asked() -> None:
    types = Types()
    message = request(*(event_text(str(i)) for i in range(20)))

    def find(text: Any) -> Any:
        if text == b'["7"]':
            types.forget_ids()
        elif text == b'["9"]':
            within = request(*(event_text(str(i)) for i in range(20, 40)))
            assert packed.read_json(within, table)
        return types.find(text)

    for max_bytes in (1 << 20, 1_500, 5_000):
        table = types.table = types.make_table(find, max_bytes)
        for _ in range(3):
            found = packed.read_json(message, table)
            assert found is not None
            assert found.event_types == [(str(i),) for i in range(20)]
            assert packed.unready([found]) == []
            types.forget_ids()
            assert packed.unready([found]) == []


class Odd(tuple[str, ...]):
    """A type that does something when it is compared."""

    act: Callable[[], object]
    is_equal = False

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        self.act()
        return self.is_equal and tuple.__eq__(self, other)


@pytest.mark.parametrize("is_equal", [False, True])
@pytest.mark.parametrize("max_bytes", [1_400, 1 << 20])
def test_types_that_empty_the_table_while_they_are_compared(max_bytes: int, is_equal: bool) -> None:
    types = Types(max_bytes)
    number = 0

    def act() -> None:
        nonlocal number
        if number < MANY:
            number += 1
            types.forget_ids()
            types.read(request(event_text(str(number))))

    def odd(name: str) -> Any:
        found = Odd((name,))
        found.act, found.is_equal = act, is_equal
        return found

    for _ in range(20):
        events = [RegisterEvent(odd(name), None, JsonPayload.of(name)) for name in "abcab"]
        found = packed.batch_of(events, types.table)
        assert [i[0] for i in found.event_types] == [*"abcab"]
        packed.unready([found])
        assert packed.encode_events(found).count(b'"id"') == 5
    assert number > 20


# --- batches of objects -------------------------------------------------------------------


class Payloads:
    """Takes the payload of an event, but of the last one returns or does something else."""

    def __init__(self, last: Any, act: Callable[[], object] = lambda: None) -> None:
        self._last, self._act, self._number = last, act, 0

    def __call__(self, payload: Any) -> Any:
        self._number += 1
        if self._number < 3:
            return packed._payload(payload)
        self._act()
        return self._last


EVENTS: Final = decode_events(request(*(event_text("a", n, "x" * n) for n in range(3))))
MORE: Final = decode_events(request(*(event_text("b", n, "y" * 999) for n in range(99))))


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 1, (), (1, b"1"), (1, b"1", 1, 1), (None, b"1", 1), (1, None, 1), (1, b"1", None)),
        *((1, "1", 1), (1, bytearray(b"1"), 1), ("1", b"1", 1), (-1, b"", 0), (3, b"1", 1)),
        *((256, b"1", 1), (1 << 70, b"1", 1), (1, b"1", 1 << 70), (1, memoryview(b""), 0)),
    ],
)
def test_payloads_that_are_none(wrong: Any) -> None:
    types = Types()
    found = packed.batch_of(EVENTS, types.table)
    read = types.batch(request(event_text("a", 1, "x")))
    events = [*read]
    for _ in range(3):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            native.make_batch(EVENTS, types.table, Payloads(wrong))
        for batch in (found, read):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                native.extend_batch(batch, EVENTS, Payloads(wrong))
    check(found, EVENTS)
    check(read, events)


@pytest.mark.parametrize("size", [-(1 << 40), -1, 0, 1, MANY])
def test_payloads_of_another_size(size: int) -> None:
    types = Types()

    def payload(of: Any) -> tuple[int, bytes, int]:
        return *packed._payload(of)[:2], size

    found = native.make_batch(MORE, types.table, payload)
    native.extend_batch(found, MORE, payload)
    check(found, [*MORE, *MORE])
    assert packed.content(found) == codec._encode([*MORE, *MORE])
    [events] = [make_events(1, 2, MORE, Timestamp(3, 4))]
    [answer] = codec.encode_register_successes([0], [events])
    assert codec.encode_batch_successes([found])[-len(answer) :] == answer


class WrongError(Exception):
    """Raised by an event."""


class Event:
    """An event of which one property does something.

    Args:
        name: of the property.
        act: what it does.
    """

    def __init__(self, name: str, act: Callable[[], object], source: Any = None) -> None:
        self._name, self._act = name, act
        self._source = source or Timestamp(5, 6)

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._act()
        if name == "source_timestamp":
            parts = {"s": self._source.s, "us": self._source.us}
            if self._name in parts:
                parts[self._name] = Index(parts[self._name], self._act)
            return SimpleNamespace(**parts)
        return {"type": ("odd",), "payload": JsonPayload.of("odd")}[name]

    @property
    def registered(self) -> RegisterEvent:
        return RegisterEvent(("odd",), self._source, JsonPayload.of("odd"))


PROPERTIES: Final = "payload", "type", "source_timestamp", "s", "us"


@pytest.mark.parametrize("name", PROPERTIES)
def test_events_that_raise(name: str) -> None:
    types = Types()

    def fail() -> None:
        raise WrongError

    wrong: Any = [*MORE, Event(name, fail), *MORE]
    found, read = packed.batch_of(EVENTS, types.table), types.batch(request(event_text("a", 1)))
    events = [*read]
    for _ in range(3):
        with pytest.raises(WrongError):
            packed.batch_of(wrong, types.table)
        for batch in (found, read):
            with pytest.raises(WrongError):
                packed.extend(batch, wrong)
    check(found, EVENTS)
    check(read, events)
    packed.extend(found, MORE)
    check(found, [*EVENTS, *MORE])


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("is_read", [False, True])
def test_events_that_extend_the_batch_that_they_extend(name: str, is_read: bool) -> None:
    types, n_acts = Types(), 0
    message = request(*(event_text("a", n, "x" * n) for n in range(3)))
    found = types.batch(message) if is_read else packed.batch_of(EVENTS, types.table)
    packed.assign([found], 1, 2, 3, 4)

    def act() -> None:
        nonlocal n_acts
        if n_acts < 5:
            n_acts += 1
            packed.extend(found, MORE)
            packed.encode_events(found)
            stage(BatchRows(16, 4_096), [found], {}, dict.fromkeys(found.types, b"1234"))

    event: Any = Event(name, act)
    packed.extend(found, [*EVENTS, event, *EVENTS])
    assert n_acts > 0
    added = [*found]
    assert added.count(event.registered) == 1
    packed.encode_events(found)
    assert found.instances == [*range(1, len(added) + 1)]
    events = make_events(1, 2, added, Timestamp(3, 4))
    assert packed.encode_events(found) == codec.encode_events(events)


def test_lists_of_events_that_change_while_they_are_read() -> None:
    types = Types()
    for more in (None, [None] * MANY):
        events: list[Any] = []
        odd: Any = Event("type", events.clear if more is None else partial(events.extend, more))
        events += [*EVENTS, odd, *EVENTS]
        found = packed.batch_of(EVENTS, types.table)
        packed.extend(found, events)
        assert len(found) == 10
        assert packed.encode_events(found).count(b'"type":["odd"]') == 1


@pytest.mark.parametrize(
    "source",
    [(1 << 63, 0), (INT64_MIN - 1, 0), (0, -1), (0, 1 << 32), (0, 1 << 70), ("1", 0), (0, None)],
)
def test_source_timestamps_that_are_too_large(source: Any) -> None:
    types = Types()
    found = packed.batch_of(EVENTS, types.table)
    wrong: Any = [Event("", lambda: None, SimpleNamespace(s=source[0], us=source[1]))]
    for _ in range(2):
        with pytest.raises((OverflowError, TypeError)):
            packed.batch_of(wrong, types.table)
        with pytest.raises((OverflowError, TypeError)):
            packed.extend(found, wrong)
    check(found, EVENTS)


def test_types_that_are_none() -> None:
    types = Types()
    found = packed.batch_of(EVENTS, types.table)
    wrong: Any
    for wrong in ([], {}, None, 1):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            packed.extend(found, [*EVENTS, RegisterEvent(wrong, None, None)])
    for wrong in (None, 1, [None]):
        with pytest.raises((TypeError, AttributeError)):
            packed.extend(found, wrong)
        with pytest.raises((TypeError, AttributeError)):
            packed.batch_of(wrong, types.table)
    check(found, EVENTS)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            [],
            [1],
            [1, 2],
            [1, 2, 3, 4],
            [1, 2, None],
            [1, 2, "3"],
            [1, 2, INT64_MAX + 1],
            (1, 2, 3),
        ),
        [1, 2, 1 << 70],
    ],
)
def test_wrong_instances(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        native.make_batch(EVENTS, Types().table, packed._payload, 0, None, None, wrong)


def test_instances_that_shrink_while_they_are_read() -> None:
    instances: Any = [3, 5, INT64_MAX]
    instances[0] = Index(3, instances.clear)
    found = native.make_batch(EVENTS, Types().table, packed._payload, 0, None, None, instances)
    assert instances == []
    assert found.instances == [3, 5, INT64_MAX]
    assert found.last_instance == INT64_MAX


# --- answers ------------------------------------------------------------------------------


def test_indices_that_shrink_or_grow_while_they_are_read() -> None:
    types = Types()
    message = request(*(event_text("a", i) for i in range(5)))
    found = types.batch(message)
    packed.assign([found], 1, 1, 1, 0)
    made = make_events(1, 1, found[:], Timestamp(1, 0))
    shrinking: Any = [*range(1, 5)]
    shrinking[0] = Index(1, shrinking.clear)
    growing: Any = [*range(1, 5)]
    growing[0] = Index(1, lambda: growing.extend(range(5, MANY)))
    for indices in (shrinking, growing):
        assert packed.encode_events(found, indices) == codec.encode_events(made[1:])
        assert len(indices) in (0, MANY - 1)


def test_a_batch_that_grows_while_indices_are_read() -> None:
    types = Types()
    found = packed.batch_of(EVENTS, types.table)
    packed.assign([found], 1, 1, 1, 0)
    indices: Any = [0, 1, *range(2, 3 + len(MORE))]
    indices[1] = Index(1, lambda: packed.extend(found, MORE))
    made = make_events(1, 1, [*EVENTS, *MORE], Timestamp(1, 0))
    assert packed.encode_events(found, indices) == codec.encode_events(made)


def test_wrong_numbers_of_requested_events() -> None:
    types = Types()
    found = types.batch(request(event_text("a", 1)))
    for number in (-(1 << 62), -1, 0, 2, 1 << 62):
        found.requested = number
        packed.encode_answers([found], b"", b"", b"")
    sbs = Types(read=lambda _: ("a",))
    by_sbs = packed.read_sbs(b"\x81\x81\x81a\x80\x80", sbs.table)
    assert by_sbs is not None
    for number in (-(1 << 62), -1, 0):
        by_sbs.requested = number
        assert packed.encode_sbs_answers([by_sbs]) == [b"\x80\x80"]
    with pytest.raises(OverflowError):
        found.requested = 1 << 63
    nothing: Any = None
    with pytest.raises(TypeError):
        found.answer_with(nothing)


# --- rows that were read ------------------------------------------------------------------


def test_rows_that_grow_or_change() -> None:
    wanted = codec.encode_events(keys.decode_events([ROW] * 3, NAMES))

    def encode_type(event_type: EventType) -> bytes:
        change()
        return packed.encode_type(event_type)

    def decode(given: Any, names: Any) -> Any:
        events = keys.decode_events(given, names)
        given += [(b"", b"")] * MANY
        return events

    def change() -> None:
        wrong: Any = [(b"", b""), None, (None, None)]
        rows[:] = wrong * MANY

    rows = [ROW] * 3
    events = packed.stored_events(rows, NAMES, encode_type, decode)
    for _ in range(2):
        assert encode_stored(events) == wanted
        same: object = keys.decode_events([ROW] * 3, NAMES)
        assert events == same
        change()


@pytest.mark.parametrize(
    "row",
    [None, (None, None), (ROW[0], None), (None, ROW[1]), [*ROW], (), ROW[:1], (*ROW, b""), "ab"],
)
def test_wrong_rows(row: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"xpected (bytes|tuple)|key and a value"):
        packed.stored_events([ROW, row], NAMES, packed.encode_type, keys.decode_events)


def test_a_type_without_json() -> None:
    encode_type: Any = lambda _: None  # noqa: E731
    with pytest.raises(TypeError, match="xpected bytes, got NoneType"):
        packed.stored_events([ROW], NAMES, encode_type, keys.decode_events)


# --- objects that nobody made -------------------------------------------------------------


def test_what_was_not_made_by_the_module_is_empty() -> None:
    found = Batch.__new__(Batch)
    assert len(found) == 0
    empty: list[Any] = [found.event_types, found.instances, packed.unready([found])]
    assert empty == [[], [], []]
    assert found.last_instance == found.object_bytes == 0
    assert found.parts(1, 1) == []
    packed.assign([found], 1, 2, 3, 4)
    assert packed.encode_events(found) == b""
    assert packed.encode_answers([found], b"", b"", b"") == b"\x01\x010"
    stage(BatchRows(16, 4_096), [found], {})
    for events in (EVENTS, []):
        with pytest.raises(TypeError):
            packed.extend(found, events)
    with pytest.raises(ValueError, match="another wire"):
        packed.encode_sbs_answers([found])
    assert [*found] == []
    stored = StoredEvents.__new__(StoredEvents)
    with pytest.raises(TypeError):
        encode_stored(stored)
    table = TypeTable.__new__(TypeTable)
    with pytest.raises((TypeError, AttributeError)):
        packed.read_json(request(event_text("a")), table)
    with pytest.raises((TypeError, AttributeError)):
        packed.batch_of(EVENTS, table)
    with pytest.raises(TypeError):
        len(table)


def test_nothing_is_pickled_or_copied() -> None:
    """Else a pickle tells what is in there."""
    types = Types()
    events = packed.stored_events([ROW], NAMES, packed.encode_type, keys.decode_events)
    found = types.batch(request(event_text("a")))
    for made in (found, BatchRows(16, 4_096), types.table, events):
        assert not hasattr(made, "__setstate_cython__")
        for act in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="pickle"):
                act(made)
