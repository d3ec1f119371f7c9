"""The table of known types: learned once, bounded, and never confused."""

import gc
import itertools
import random
import weakref
from collections.abc import Sequence
from typing import Any, Final

import pytest

from eventer_bridge import packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import MsgRegisterReq
from eventer_bridge.model import EventType, RegisterEvent
from eventer_bridge.packed import TypeTable
from mariner.wire.codec import read_type
from tests.eventer_bridge.packed.support import (
    MAX_BYTES,
    Types,
    check_events,
    check_json,
    compiled,
    decode_events,
    event_text,
    request,
)

pytestmark = compiled

OVERHEAD_BYTES: Final = 664
"""Of a known type of one segment, as it is counted at least."""


def of(*names: str | bytes) -> bytes:
    return request(*map(event_text, names))


def check(types: Types, *names: str | bytes) -> None:
    """What is packed of events of these types is theirs."""
    message = of(*names)
    check_json(types.batch(message), message, types)


def test_each_type_is_asked_for_once() -> None:
    types = Types()
    for _ in range(3):
        check(types, "a", "b", "a", "a", "c")
        check(types, "c", "b")
    assert types.asked == [b'["a"]', b'["b"]', b'["c"]']
    assert len(types.table) == 3


@pytest.mark.parametrize("is_sbs", [False, True])
def test_a_message_that_brings_too_many_is_left_to_others(is_sbs: bool) -> None:
    """One at a time takes 10 us: a large message of them is decoded in slices instead."""
    types = Types(read=codec.read_whole_type if is_sbs else read_type)
    read = packed.read_sbs if is_sbs else packed.read_json
    names = [str(i) for i in range(10)]
    events = [RegisterEvent((name,), None, None) for name in names]
    message = codec.encode(MsgRegisterReq(events))[1] if is_sbs else of(*names)
    for n_known in (3, 6, 9):
        assert read(message, types.table, 3) is None
        assert len(types.asked) == len(types.table) == n_known
    found = read(message, types.table, 3)
    assert found is not None
    assert [*found] == events
    assert read(message, types.table, 0) is not None


NAMES: Final[Sequence[str | bytes]] = (
    *("a", "b", "aa", "ab", "", "\u010d"),
    *(b'["a","b"]', b'[ "a"]', b'["a" ]', b"[]", b'["\\u0061"]'),
)


@pytest.mark.parametrize("seed", range(20))
def test_types_that_repeat_alternate_and_change(seed: int) -> None:
    """What follows a type is guessed; no guess may be wrong."""
    chance = random.Random(seed)
    types = Types()
    period = [chance.choice(NAMES) for _ in range(chance.randrange(1, 9))]
    stream = itertools.cycle(period)
    for _ in range(100):
        check(types, *itertools.islice(stream, chance.randrange(1, 6)))
        if chance.random() < 0.1:
            period[chance.randrange(len(period))] = chance.choice(NAMES)
            stream = itertools.cycle(period)
        if chance.random() < 0.02:
            types.forget_ids()
    assert len(types.table) <= len(NAMES)


def test_a_type_that_begins_like_the_one_that_is_guessed() -> None:
    types = Types()
    for _ in range(3):
        check(types, "ab")
        assert types.read(request(b'{"type":["ab"')) is None
        check(types, "abc")
        check(types, "a")
        check(types, b'["ab","c"]')
        for rest in (b"", b"]", b'"', b'"]', b'"]]', b'"] ]', b'"],"source_timestamp":null'):
            text = b'{"type":["ab' + rest + b',"source_timestamp":null,"payload":null}'
            message = request(text)
            found = types.read(message)
            if found is not None:
                check_json(found, message, types)


def test_two_texts_of_a_type_are_packed() -> None:
    types = Types()
    texts = b'["a"]', b'[ "a"]', b'["a" ]', b'[\t"a"\n]', b'["\\u0061"]'
    for _ in range(2):
        check(types, *texts)
        for text in texts:
            check(types, text, text)
    assert types.asked == [*texts]
    assert len(types.ids) == 1


def test_a_type_that_is_not_known_is_asked_for_again() -> None:
    types = Types()
    types.unknown.add(("b",))
    for _ in range(3):
        assert types.read(of("a", "b")) is None
    assert types.asked == [b'["a"]', *[b'["b"]'] * 3]
    types.unknown.clear()
    check(types, "a", "b")
    check(types, "a", "b")
    assert types.asked == [b'["a"]', *[b'["b"]'] * 4]


@pytest.mark.parametrize("max_bytes", [0, 1_000, 10_000, 100_000])
def test_it_is_bounded(max_bytes: int) -> None:
    types = Types(max_bytes)
    n_largest = 0
    for number in range(1_000):
        text = b'["%d%b"]' % (number % 500, b"x" * (number % 300))
        found = types.read(of(text))
        fits = OVERHEAD_BYTES + 2 * len(text) <= max_bytes
        assert (found is not None) is fits
        if found is not None:
            check_json(found, of(text), types)
        n_largest = max(n_largest, len(types.table))
    assert n_largest <= max_bytes // OVERHEAD_BYTES
    assert n_largest >= max_bytes // (OVERHEAD_BYTES + 2 * 310)


def test_types_of_objects_that_are_too_large_are_not_kept() -> None:
    """They are refused later, with what is wrong with them."""
    types = Types(10_000)
    names: list[EventType] = [("a",) * 200, ("x" * 20_000,), ("b",)]
    events = [RegisterEvent(name, None, None) for name in names]
    for _ in range(3):
        found = packed.batch_of(events, types.table)
        check_events(found, events, types)
        assert len(types.table) == 1
    types.unready |= {*names}
    types.forget_ids()
    assert packed.unready([found]) == [*enumerate(names)]
    assert found.object_bytes > 200 * 64


def test_spaces_count() -> None:
    types = Types(10_000)
    n_largest = 0
    for number in range(1, 100):
        check(types, b'[%b"a"]' % (b" " * (300 + number)))
        n_largest = max(n_largest, len(types.table))
    assert n_largest == 10_000 // (OVERHEAD_BYTES + 330)
    check(types, "a")


def test_what_a_type_is_as_json_counts() -> None:
    """It may be longer than what came."""
    types = Types(10_000, read=codec.read_whole_type)
    n_largest = 0
    for number in range(100):
        name = b"%d" % number + b"\0" * 500
        event = b"\x81" + bytes((len(name) >> 7, len(name) & 0x7F | 0x80)) + name
        assert packed.read_sbs(b"\x81" + event + b"\x80\x80", types.table) is not None
        n_largest = max(n_largest, len(types.table))
    assert n_largest == 10_000 // (OVERHEAD_BYTES + 7 * 500)


def test_what_was_packed_keeps_its_types_when_the_table_is_full() -> None:
    types = Types(5_000)
    read_before = [(of(name, "x"), types.batch(of(name, "x"))) for name in "abcdefghijkl"]
    for number in range(100):
        check(types, f"more {number}")
    types.forget_ids()
    gc.collect()
    for message, found in read_before:
        check_json(found, message, types)


def test_the_table_is_full_in_the_middle_of_a_request() -> None:
    types = Types(3_000)
    names = [str(number) for number in range(50)]
    for _ in range(3):
        check(types, *names)
        check(types, *names, *reversed(names))


def test_forgetting_ids_begins_another_epoch() -> None:
    types = Types()
    found, epoch = types.batch(of("a", "b", "a")), types.table.epoch
    assert packed.unready([found]) == []
    types.forget_ids()
    assert types.table.epoch != epoch
    assert len(types.table) == 2
    assert packed.unready([found]) == []
    assert types.looked_up == [("a",), ("b",)] * 2
    assert packed.unready([found, types.batch(of("b"))]) == []
    assert len(types.looked_up) == 4
    assert types.asked == [b'["a"]', b'["b"]']


def test_types_that_are_not_ready_are_asked_for_until_they_are() -> None:
    types = Types()
    types.unready.add(("b",))
    found, other = types.batch(of("a", "b", "c", "b")), types.batch(of("b"))
    for _ in range(2):
        assert packed.unready([found, other]) == [(1, ("b",))]  # once of each
        assert packed.unready([found], 2) == [(3, ("b",))]
        assert packed.unready([found], 1, 3) == [(1, ("b",))]
        assert packed.unready([found], 9) == packed.unready([found], 2, 1) == []
    types.unready.clear()
    n_looked_up = len(types.looked_up)
    assert packed.unready([found, other]) == []
    assert types.looked_up[n_looked_up:] == [("b",)]
    types.unready |= {("a",), ("c",)}
    assert packed.unready([found, other]) == []  # until ids are forgotten
    types.forget_ids()
    assert packed.unready([found, other]) == [(0, ("a",)), (2, ("c",))]
    assert found.object_bytes > other.object_bytes


def test_ids_are_asked_for_again() -> None:
    types = Types()
    old = types.batch(of("a", "b"))
    types.ids = {("b",): b"\0\0\0\7"}
    types.forget_ids()
    new = types.batch(of("b", "a"))
    assert packed.unready([old, new]) == []
    assert types.ids["a",] != b"\0\0\0\0"
    for found, message in ((new, of("b", "a")), (old, of("a", "b"))):
        check_json(found, message, types)


def test_ids_that_are_not_ready_are_looked_up() -> None:
    """A type may be new, or its id may have been another one."""
    types = Types()
    types.unready.add(("b",))
    message = of("a", "b", "a")
    found = types.batch(message)
    types.ids = {("b",): b"\0\0\0\0", ("a",): b"\0\0\0\1"}
    types.forget_ids()
    check_json(found, message, types)


def test_being_full_begins_no_epoch() -> None:
    types = Types(1_000)
    first, epoch = types.batch(of("a")), types.table.epoch
    for number in range(10):
        types.batch(of(str(number)))
    assert types.table.epoch == epoch
    n_looked_up = len(types.looked_up)
    assert packed.unready([first]) == []
    assert len(types.looked_up) == n_looked_up


def test_types_of_objects_are_known_by_themselves() -> None:
    types = Types()
    by_text = types.batch(of("a", "b"))
    by_objects = [packed.batch_of(by_text, types.table) for _ in range(2)]
    assert types.asked == [b'["a"]', b'["b"]', ("a",), ("b",)]
    for found in by_objects:
        check_events(found, by_text, types)
    types.unknown.add(("c",))
    events = decode_events(of("a", "c"))
    with pytest.raises(ValueError, match="a type that cannot be stored"):
        packed.batch_of(events, types.table)
    with pytest.raises(InvalidEventError, match="is not Unicode text"):
        packed.batch_of([RegisterEvent(("\ud800",), None, None)], types.table)


class FindError(Exception):
    """Raised by what finds types."""


def test_what_find_raises_is_told() -> None:
    is_failing = True

    def find(text: Any) -> tuple[EventType, bytes]:
        if is_failing and text == b'["b"]':
            raise FindError
        return keys.decode_type(text), text

    table = TypeTable(find, MAX_BYTES, {}, {})
    for _ in range(3):
        with pytest.raises(FindError):
            packed.read_json(of("a", "b", "a"), table)
    assert len(table) == 1
    is_failing = False
    assert packed.read_json(of("a", "b", "a"), table) is not None


@pytest.mark.parametrize(
    "wrong",
    [(("a",), b"1234", b'["a"]'), (("a",),), (("a",), '["a"]'), 1],
)
def test_what_find_may_not_return(wrong: Any) -> None:
    table = TypeTable(lambda _: wrong, MAX_BYTES, {}, {})
    for _ in range(2):
        with pytest.raises((ValueError, TypeError)):
            packed.read_json(of("a"), table)
    assert len(table) == 0


@pytest.mark.parametrize("wrong", [b"123", b"12345", "1234"])
def test_what_is_no_id(wrong: Any) -> None:
    ids: Any = {("a",): wrong}
    table = TypeTable(lambda _: (("a",), b'["a"]'), MAX_BYTES, ids, ids)
    for _ in range(2):
        with pytest.raises((ValueError, TypeError)):
            packed.read_json(of("a"), table)
    assert len(table) == 0


def test_find_may_use_the_table() -> None:
    """It does not; but whatever it does, nothing is confused."""
    types = Types(20_000)
    find, depth, packed_within = types.find, 0, []

    def find_and_more(text: Any) -> tuple[EventType, bytes] | None:
        nonlocal depth
        if depth < 3:
            depth += 1
            number = len(types.asked)
            message = of(str(number), "a", str(number % 3))
            if number % 7 == 0:
                types.forget_ids()
            packed_within.append((message, types.read(message)))
            depth -= 1
        return find(text)

    types.table = types.make_table(find_and_more, 20_000)
    for number in range(100):
        message = of("a", str(number), "b", str(number % 5))
        check_json(types.batch(message), message, types)
    assert len(packed_within) > 100
    for message, found in packed_within:
        assert found is not None
        check_json(found, message, types)


# --- what it holds on to ------------------------------------------------------------------


class Name(str):
    """A segment that tells when it is gone."""

    __slots__ = ("__weakref__",)


def test_nothing_is_kept_that_is_not_needed() -> None:
    gone: list[Any] = []

    def find(text: Any) -> tuple[EventType, bytes]:
        name = Name(keys.decode_type(text)[0])
        gone.append(weakref.ref(name))
        return (name,), text

    table = TypeTable(find, 3_000, {}, {})
    found = packed.read_json(of("first", "a", "b", "a"), table)
    assert found is not None
    for number in range(100):
        assert packed.read_json(of(str(number), "a"), table) is not None
        assert packed.read_json(of(str(number), "a")[:-1], table) is None
        assert packed.read_json(of(str(number), "a") + b"x", table) is None
    gc.collect()
    alive = [i for i in gone if i() is not None]
    assert len(alive) == 3 + len(table)
    del found, table
    gc.collect()
    assert [i for i in gone if i() is not None] == []
