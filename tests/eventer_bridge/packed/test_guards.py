"""Callbacks that change what is being read, and None for bytes: refused, or without effect.

Where there is a sanitizer build (``tests/torture/test_sanitized.py``), that notices the rest.
"""

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest

from eventer_bridge import packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.core.session import make_events
from eventer_bridge.model import EventType, Timestamp
from eventer_bridge.packed import KnownTypes, Packed, PackedRows, StoredEvents
from mariner.wire import codec
from tests.eventer_bridge.packed.support import Types, compiled, event_text, request

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


def stage(rows: PackedRows, requests: list[Packed], last: Any) -> packed.Staged | None:
    return rows.stage(requests, 1, 1, 1, 0, last, {}, True)


def put(rows: PackedRows, act: Callable[[], object] = lambda: None) -> list[tuple[bytes, bytes]]:
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


# --- rows that are staged and put ---------------------------------------------------------


def test_what_puts_rows_cannot_stage_or_put_them() -> None:
    types, rows = Types(), PackedRows(16, 4_096)
    few = [types.packed(request(event_text("a", 1), event_text("a", 2, "x" * 99)))]
    many = [types.packed(request(*[event_text("a", 3, "x" * 99)] * 99))] * 9
    last = dict.fromkeys(types.ids.values(), NEW)
    assert stage(rows, few, last) is not None
    for act in (lambda: stage(rows, many, last), lambda: put(rows)):
        with pytest.raises(RuntimeError, match="these rows are being staged or put"):
            put(rows, act)
        assert len(rows) == 2
    assert len(put(rows)) == 2
    assert stage(rows, few, dict.fromkeys(types.ids.values(), NEW)) is not None


def test_what_is_called_while_rows_are_staged_cannot_stage_or_put_them() -> None:
    types, rows = Types(), PackedRows(16, 4_096)
    requests = [types.packed(request(event_text("a", 1), event_text("b", 2)))]
    first, second = types.ids.values()
    for act in (lambda: stage(rows, requests * 99, {}), lambda: put(rows)):
        with pytest.raises(RuntimeError, match="these rows are being staged or put"):
            stage(rows, requests, {first: NEW, second: Place(act)})
    assert put(rows) == []


def test_requests_that_grow_while_they_are_staged() -> None:
    types, rows = Types(), PackedRows(16, 4_096)
    requests = [types.packed(request(event_text("a", 1, "x")))]
    large = types.packed(request(*[event_text("a", 1, "x" * 99)] * 999))
    [type_id] = types.ids.values()
    for grown in ([large] * 99, [None]):
        wanted: Any = [*requests]
        staged = stage(rows, wanted, {type_id: Place(partial(wanted.extend, grown))})
        assert len(wanted) > 1
        assert staged is not None
        assert staged[-1] == [(type_id, 1, 16)]
        assert len(put(rows)) == 1


def test_a_type_that_is_staged_in_others_meanwhile() -> None:
    types, rows, others = Types(), PackedRows(16, 4_096), PackedRows(16, 4_096)
    requests = [types.packed(request(*(event_text(i, 1) for i in ("a", "b", "a"))))]
    first, second = types.ids.values()

    def act() -> None:
        types.table.clear()
        message = request(event_text("a", 1), event_text("b", 1))
        assert stage(others, [types.packed(message)], {first: NEW, second: NEW}) is not None
        assert stage(others, requests, {first: NEW, second: NEW}) is not None

    with pytest.raises(RuntimeError, match="staged in others"):
        stage(rows, requests, {first: NEW, second: Place(act)})
    assert put(rows) == []
    assert len(put(others)) == 5


@pytest.mark.parametrize("place", [(None, None, 0), (b"x" * 12, None, 0), (None, b"x" * 36, 0)])
def test_an_order_without_bytes(place: Any) -> None:
    types, rows = Types(), PackedRows(16, 4_096)
    requests = [types.packed(request(event_text("a", 1)))]
    with pytest.raises(TypeError, match="xpected bytes, got NoneType"):
        stage(rows, requests, dict.fromkeys(types.ids.values(), place))
    assert put(rows) == []


# --- types --------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [(("a",), None, b""), (("a",), b"0001", None), (1, 2, 3)])
def test_a_type_without_bytes(found: Any) -> None:
    table = KnownTypes(lambda _: found, 1 << 20)
    with pytest.raises(TypeError, match="xpected bytes, got"):
        packed.pack(request(event_text("a")), table, lambda _: ())
    assert len(table) == 0


def test_a_table_that_is_emptied_or_used_while_it_is_asked() -> None:
    types = Types()
    message = request(*(event_text(str(i)) for i in range(20)))

    def find(text: bytes) -> Any:
        if text == b'["7"]':
            table.clear()
        elif text == b'["9"]':
            assert packed.pack(request(event_text("1"), event_text("2")), table, lambda _: ())
        return types.find(text)

    table = KnownTypes(find, 1 << 20)
    for _ in range(3):
        found = packed.pack(message, table, lambda _: ())
        assert found is not None
        assert found.event_types == [(str(i),) for i in range(20)]


# --- answers ------------------------------------------------------------------------------


class Index:
    """A number that does something when it is looked at."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._number, self._act = number, act

    def __index__(self) -> int:
        self._act()
        return self._number


def test_indices_that_shrink_or_grow_while_they_are_read() -> None:
    types = Types()
    message = request(*(event_text("a", i) for i in range(5)))
    found = types.packed(message)
    assert stage(PackedRows(16, 4_096), [found], {types.ids["a",]: NEW}) is not None
    made = make_events(1, 1, found.events, Timestamp(1, 0))
    shrinking: Any = [*range(1, 5)]
    shrinking[0] = Index(1, shrinking.clear)
    growing: Any = [*range(1, 5)]
    growing[0] = Index(1, lambda: growing.extend(range(5, MANY)))
    for indices in (shrinking, growing):
        assert packed.encode_events(found, indices) == codec.encode_events(made[1:])
        assert len(indices) in (0, MANY - 1)


# --- rows that were read ------------------------------------------------------------------


def test_rows_that_grow_or_change() -> None:
    wanted = codec.encode_events(keys.decode_events([ROW] * 3, NAMES))

    def encode_type(event_type: EventType) -> bytes:
        change()
        return keys.encode_type(event_type)

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
        packed.stored_events([ROW, row], NAMES, keys.encode_type, keys.decode_events)


def test_a_type_without_json() -> None:
    encode_type: Any = lambda _: None  # noqa: E731
    with pytest.raises(TypeError, match="xpected bytes, got NoneType"):
        packed.stored_events([ROW], NAMES, encode_type, keys.decode_events)


# --- objects that nobody made -------------------------------------------------------------


def test_what_was_not_made_by_the_module_is_empty() -> None:
    found = Packed.__new__(Packed)
    assert len(found) == 0
    assert not found.is_valid
    assert found.event_types == []
    assert packed.encode_events(found) == b""
    assert stage(PackedRows(16, 4_096), [found], {}) is not None
    events = StoredEvents.__new__(StoredEvents)
    with pytest.raises(TypeError):
        encode_stored(events)
    table = KnownTypes.__new__(KnownTypes)
    with pytest.raises(TypeError):
        packed.pack(request(event_text("a")), table, lambda _: ())
    with pytest.raises(TypeError):
        len(table)


def test_nothing_is_pickled_or_copied() -> None:
    """Else a pickle tells what is in there."""
    types = Types()
    events = packed.stored_events([ROW], NAMES, keys.encode_type, keys.decode_events)
    found = types.packed(request(event_text("a")))
    for made in (found, PackedRows(16, 4_096), types.table, events):
        assert not hasattr(made, "__setstate_cython__")
        for act in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="pickle"):
                act(made)
