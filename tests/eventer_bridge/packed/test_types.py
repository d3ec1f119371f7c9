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
from eventer_bridge.eventer import codec
from eventer_bridge.model import EventType
from eventer_bridge.packed import KnownTypes
from tests.eventer_bridge.packed.support import (
    MAX_BYTES,
    Types,
    check_json,
    compiled,
    decode_events,
    event_text,
    request,
)

pytestmark = compiled

OVERHEAD_BYTES: Final = 600
"""Of a known type, as it is counted at least."""


def of(*names: str | bytes) -> bytes:
    return request(*map(event_text, names))


def check(types: Types, *names: str | bytes) -> None:
    """What is packed of events of these types is theirs."""
    message = of(*names)
    check_json(types.packed(message), message, types)


def test_each_type_is_asked_for_once() -> None:
    types = Types()
    for _ in range(3):
        check(types, "a", "b", "a", "a", "c")
        check(types, "c", "b")
    assert types.asked == [b'["a"]', b'["b"]', b'["c"]']
    assert len(types.table) == 3


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
            types.table.clear()
    assert len(types.table) <= len(NAMES)


def test_a_type_that_begins_like_the_one_that_is_guessed() -> None:
    types = Types()
    for _ in range(3):
        check(types, "ab")
        assert types.pack(request(b'{"type":["ab"')) is None
        check(types, "abc")
        check(types, "a")
        check(types, b'["ab","c"]')
        for rest in (b"", b"]", b'"', b'"]', b'"]]', b'"] ]', b'"],"source_timestamp":null'):
            text = b'{"type":["ab' + rest + b',"source_timestamp":null,"payload":null}'
            message = request(text)
            found = types.pack(message)
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
        assert types.pack(of("a", "b")) is None
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
        found = types.pack(of(text))
        fits = OVERHEAD_BYTES + 2 * len(text) <= max_bytes
        assert (found is not None) is fits
        if found is not None:
            check_json(found, of(text), types)
        n_largest = max(n_largest, len(types.table))
    assert n_largest <= max_bytes // OVERHEAD_BYTES
    assert n_largest >= max_bytes // (OVERHEAD_BYTES + 2 * 310)


def test_spaces_count() -> None:
    types = Types(10_000)
    n_largest = 0
    for number in range(1, 100):
        check(types, b'[%b"a"]' % (b" " * (300 + number)))
        n_largest = max(n_largest, len(types.table))
    assert n_largest == 10_000 // (OVERHEAD_BYTES + 350)
    check(types, "a")


def test_what_a_type_is_as_json_counts() -> None:
    """It may be longer than what came."""
    types = Types(10_000, read=codec.read_known_type)
    n_largest = 0
    for number in range(100):
        name = b"%d" % number + b"\0" * 500
        event = b"\x81" + bytes((len(name) >> 7, len(name) & 0x7F | 0x80)) + name
        assert (
            packed.pack_sbs(b"\x81" + event + b"\x80\x80", types.table, decode_events) is not None
        )
        n_largest = max(n_largest, len(types.table))
    assert n_largest == 10_000 // (OVERHEAD_BYTES + 7 * 500)


def test_what_was_packed_keeps_its_types_when_the_table_is_full() -> None:
    types = Types(5_000)
    packed_before = [(of(name, "x"), types.packed(of(name, "x"))) for name in "abcdefghijkl"]
    for number in range(100):
        check(types, f"more {number}")
    types.table.clear()
    gc.collect()
    for message, found in packed_before:
        check_json(found, message, types)


def test_the_table_is_full_in_the_middle_of_a_request() -> None:
    types = Types(3_000)
    names = [str(number) for number in range(50)]
    for _ in range(3):
        check(types, *names)
        check(types, *names, *reversed(names))


def test_clear_begins_another_epoch() -> None:
    types = Types()
    found, epoch = types.packed(of("a")), types.table.epoch
    validity = [found.is_valid]
    types.table.clear()
    assert types.table.epoch != epoch
    assert len(types.table) == 0
    again = types.packed(of("a"))
    validity += [found.is_valid, again.is_valid]
    assert validity == [True, False, True]
    assert types.asked == [b'["a"]'] * 2


def test_ids_are_asked_for_again_after_clear() -> None:
    types = Types()
    old = types.packed(of("a", "b"))
    types.ids.clear()
    types.table.clear()
    new = types.packed(of("b", "a"))
    for found, message in ((new, of("b", "a")), (types.packed(of("a", "b")), of("a", "b"))):
        check_json(found, message, types)
    assert new.is_valid
    assert not old.is_valid


def test_being_full_begins_no_epoch() -> None:
    types = Types(1_000)
    first, epoch = types.packed(of("a")), types.table.epoch
    for number in range(10):
        types.packed(of(str(number)))
    assert types.table.epoch == epoch
    assert first.is_valid


class FindError(Exception):
    """Raised by what finds types."""


def test_what_find_raises_is_told() -> None:
    is_failing = True

    def find(text: bytes) -> tuple[EventType, bytes, bytes]:
        if is_failing and text == b'["b"]':
            raise FindError
        return keys.decode_type(text), b"type", text

    table = KnownTypes(find, MAX_BYTES)
    for _ in range(3):
        with pytest.raises(FindError):
            packed.pack(of("a", "b", "a"), table, decode_events)
    assert len(table) == 1
    is_failing = False
    assert packed.pack(of("a", "b", "a"), table, decode_events) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        (("a",), b"123", b'["a"]'),
        (("a",), b"12345", b'["a"]'),
        (("a",), "1234", b'["a"]'),
        (("a",), b"1234"),
        (("a",), b"1234", '["a"]'),
        1,
    ],
)
def test_what_find_may_not_return(wrong: Any) -> None:
    table = KnownTypes(lambda _: wrong, MAX_BYTES)
    for _ in range(2):
        with pytest.raises((ValueError, TypeError)):
            packed.pack(of("a"), table, decode_events)
    assert len(table) == 0


def test_find_may_use_the_table() -> None:
    """It does not; but whatever it does, nothing is confused."""
    types = Types(20_000)
    find, depth, packed_within = types.find, 0, []

    def find_and_more(text: bytes) -> tuple[EventType, bytes, bytes] | None:
        nonlocal depth
        if depth < 3:
            depth += 1
            number = len(types.asked)
            message = of(str(number), "a", str(number % 3))
            if number % 7 == 0:
                types.table.clear()
            packed_within.append((message, types.pack(message)))
            depth -= 1
        return find(text)

    types.table = KnownTypes(find_and_more, 20_000)
    for number in range(100):
        message = of("a", str(number), "b", str(number % 5))
        check_json(types.packed(message), message, types)
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

    def find(text: bytes) -> tuple[EventType, bytes, bytes]:
        name = Name(keys.decode_type(text)[0])
        gone.append(weakref.ref(name))
        return (name,), b"type", text

    table = KnownTypes(find, 3_000)
    found = packed.pack(of("first", "a", "b", "a"), table, decode_events)
    assert found is not None
    for number in range(100):
        assert packed.pack(of(str(number), "a"), table, decode_events) is not None
        assert packed.pack(of(str(number), "a")[:-1], table, decode_events) is None
        assert packed.pack(of(str(number), "a") + b"x", table, decode_events) is None
    gc.collect()
    alive = [i for i in gone if i() is not None]
    assert len(alive) == 3 + len(table)
    del found
    table.clear()
    gc.collect()
    assert [i for i in gone if i() is not None] == []
