"""Rows of the store as JSON are those that Python decodes and encodes."""

import random
from typing import Final

import pytest

from eventer_bridge import packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Timestamp,
)
from eventer_bridge.packed import StoredEvents
from mariner.wire import codec
from tests.eventer_bridge.packed.support import compiled

pytestmark = compiled

BOUNDS: Final = (0, 1, -1, 10**9, INT64_MAX, INT64_MIN)
NAMES: Final[dict[bytes, EventType]] = {
    keys.encode_type_id(n): (str(n), "\u010d\n") for n in (0, 1, 2, 1 << 31, (1 << 32) - 1)
}

Row = tuple[bytes, bytes]


def decode(rows: list[Row]) -> list[Event]:
    return keys.decode_events(rows, NAMES)


def stored_events(rows: list[Row]) -> StoredEvents | None:
    return packed.stored_events(rows, NAMES, packed.encode_type, keys.decode_events)


def row(event: Event, *, is_indexed: bool = False) -> Row:
    [type_id] = [i for i, name in NAMES.items() if name == event.type]
    key = type_id + keys.encode_timestamp(event.timestamp) + keys.encode_id(event.id)
    [value] = keys.encode_values([event], keys.encode_sources([event]))
    return key, keys.indexed(value) if is_indexed else value


def some_rows(seed: int, number: int) -> list[Row]:
    chance = random.Random(seed)

    def integer() -> int:
        return chance.choice((*BOUNDS, chance.randrange(INT64_MIN, INT64_MAX)))

    def timestamp() -> Timestamp:
        return Timestamp(integer(), chance.choice((0, 9, 999_999)))

    rows: list[Row] = []
    for _ in range(number):
        source = timestamp() if chance.random() < 0.6 else None
        value = chance.choice((None, 1, "\u010d" * chance.randrange(50), {"a": [1.5]}))
        payload = None if value is None else JsonPayload.of(value)
        event_type = chance.choice([*NAMES.values()])
        event_id = EventId(integer(), integer(), integer())
        event = Event(event_id, event_type, timestamp(), source, payload)
        rows.append(row(event, is_indexed=source is not None and chance.random() < 0.5))
    return rows


@pytest.mark.parametrize("seed", range(50))
def test_rows_become_what_python_makes_of_them(seed: int) -> None:
    rows = some_rows(seed, 2 * seed)
    found = stored_events(rows)
    assert found is not None
    expected = decode(rows)
    assert len(found) == len(expected)
    for before, behind in ((b"", b""), (b"x" * 99, b"y" * 99)):
        text = before + codec.encode_events(expected) + behind
        assert packed.encode_stored(found, before, behind) == text
    assert [*found] == expected
    same: object = expected
    assert found == same


def test_many_rows_of_the_largest_numbers() -> None:
    moment = Timestamp(INT64_MIN, 999_999)
    event_id = EventId(INT64_MIN, INT64_MIN, INT64_MIN)
    event = Event(event_id, next(iter(NAMES.values())), moment, moment, JsonPayload.of(0))
    rows = [row(event)] * 1_000
    found = stored_events(rows)
    assert found is not None
    assert packed.encode_stored(found, b"", b"") == codec.encode_events([event] * 1_000)


def test_rows_that_are_to_be_decoded() -> None:
    [right] = some_rows(7, 1)
    key, value = right
    event = Event(EventId(1, 2, 3), NAMES[key[:4]], Timestamp(1, 0), None, BinaryPayload("x", b"y"))
    wrong = [
        row(event),
        (key[:-1], value),
        (key + b"x", value),
        *((key, i) for i in (b"", b"\1", b"\4", b"\5", b"\2", b"\0x", b"\x10", b"\x81x")),
        *((key, b"\4" + b"x" * size) for size in (0, 11, 13)),
        *((key, b"\5" + b"x" * size) for size in (0, 11, 12)),
    ]
    for i in wrong:
        assert stored_events([i]) is None
        assert stored_events([right, i, right]) is None


def test_a_type_that_is_not_there_is_told() -> None:
    rows = [(b"none" + key[4:], value) for key, value in some_rows(1, 1)]
    with pytest.raises(KeyError):
        stored_events(rows)
