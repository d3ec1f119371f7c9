"""What the compiled module makes of any bytes is what Python makes of them; for fuzzing.

Each function takes an input, and raises if the two are not the same.
"""

import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from eventer_bridge import packed
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.snapshot import _read_in_python
from eventer_bridge.backends.rocksdb.source_order import NOTHING, SourceOrder
from eventer_bridge.core.session import make_events
from eventer_bridge.eventer import codec as eventer_codec
from eventer_bridge.model import Event, RegisterEvent, Timestamp
from eventer_bridge.net.framing import encode_frames
from eventer_bridge.packed import Packed
from mariner.wire import codec
from tests.eventer_bridge.packed import test_reading, test_sbs
from tests.eventer_bridge.packed.messages import Writer
from tests.eventer_bridge.packed.support import Types, decode_events
from tests.eventer_bridge.packed.test_stored import NAMES, some_rows

SEPARATOR: Final = b"\xff\xfe\xff"
"""Between the parts of an input."""

SEEDS: Final = 60
"""Of each kind."""

FEW_TYPES_BYTES: Final = 1_500
"""Of a table that is full with two types."""

ENDLESS_S: Final = 60.0

Row = tuple[bytes, bytes]


def json_request(data: bytes) -> None:
    """A ``register_req`` of Mariner, of types that are looked up, then expected."""
    types = Types()
    for _ in range(2):
        test_reading.check(data, types)


def sbs_request(data: bytes) -> None:
    """A ``MsgRegisterReq`` of Eventer, likewise."""
    types = test_sbs.new_types()
    for _ in range(2):
        test_sbs.check(data, types)


def several_requests(data: bytes) -> None:
    """Requests of one wire, staged, put and answered together, twice.

    The first byte tells the wire, whether the table of types is emptied in between, and how many
    types are in it.
    """
    options = data[0] if data else 0
    is_sbs, is_emptied = bool(options & 1), bool(options & 2)
    read = eventer_codec.read_known_type if is_sbs else codec.read_type
    types = Types(FEW_TYPES_BYTES + 50 * (options >> 2), read)
    requests: list[Packed] = []
    events: list[Sequence[RegisterEvent]] = []
    for part in data[1:].split(SEPARATOR):
        found = test_sbs.pack(types, part) if is_sbs else types.pack(part)
        if found is not None:
            requests.append(found)
            events.append(test_sbs.read(part) if is_sbs else decode_events(part))
        if is_emptied and len(part) % 3 == 0:
            types.table.clear()
    if not requests:
        return
    staging = _Staging(types)
    staging.stage(requests, events, 1, 5)
    staging.stage(requests[::-1], events[::-1], -9, 6)
    staging.check_rows()
    made = [
        make_events(i.server, i.session, some, Timestamp(i.s, i.us))
        for i, some in zip(requests, events, strict=True)
    ]
    for found, some in zip(requests, made, strict=True):
        assert packed.encode_events(found) == codec.encode_events(some)
        assert packed.encode_events(found, [*range(1, len(some))]) == codec.encode_events(some[1:])
    if is_sbs:
        answers = eventer_codec.encode_register_successes(made)
        assert packed.encode_sbs_answers(requests) == answers
    else:
        frames = encode_frames(
            codec.encode_register_success(found.register_id, codec.encode_events(some))
            for found, some in zip(requests, made, strict=True)
        )
        assert codec.encode_packed_successes(requests) == frames


class _Order(NamedTuple):
    """The order of source timestamps, and what it is kept in."""

    order: SourceOrder
    ends: dict[bytes, bytes]
    last: dict[bytes, Any]


class _NoBatch:
    """Of the ends of orders, of which ``ends`` tells as much."""

    def put(self, *_: object) -> None:
        pass


class _Staging:
    """Rows that are made, and those that Python makes of the same events."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._order = self._new_order({}, dict.fromkeys(types.ids.values(), NOTHING))
        self._rows = self._order.order.new_rows()
        self._expected: dict[bytes, bytes] = {}

    @staticmethod
    def _new_order(ends: dict[bytes, bytes], last: dict[bytes, Any]) -> _Order:
        return _Order(SourceOrder(ends, last), ends, last)

    def stage(
        self,
        requests: list[Packed],
        events: Sequence[Sequence[RegisterEvent]],
        server: int,
        first_session: int,
    ) -> None:
        """Stage requests, and hold what is returned to what Python makes of their events."""
        time = Timestamp(first_session, 999_999)
        plain = self._new_order(copy.copy(self._order.ends), copy.copy(self._order.last))
        made: list[Event] = []
        for session, some in enumerate(events, first_session):
            made += make_events(server, session, some, time)
        expected = self._add(plain.order, made)
        before = copy.copy(self._order.last)
        staged = self._order.order.stage(
            self._rows, requests, server, first_session, time, is_counted=True
        )
        if staged is None:
            assert plain.ends != self._order.ends
            assert self._order.last == before
            self._order = plain
            return
        assert (self._order.ends, self._order.last) == (plain.ends, plain.last)
        entries, sessions, sources, n_bytes, counts = staged
        event_keys, values = zip(*expected, strict=True)
        local_ids = [key[-2 * keys.INT_BYTES :] + key[: keys.TYPE_BYTES] for key in event_keys]
        assert entries == b"".join(local_ids)
        last_session = first_session + len(requests)
        assert sessions == [
            keys.session_key(time, server, i) for i in range(first_session, last_session)
        ]
        assert sources == [
            keys.source_key(key, value) for key, value in expected if value[0] & keys.INDEXED_FLAG
        ]
        assert n_bytes == sum(map(len, values))
        assert sum(n for _, n, _ in counts) == len(made)
        assert sum(n for _, _, n in counts) == n_bytes
        self._expected.update(expected)

    def _add(self, order: SourceOrder, events: Sequence[Event]) -> list[Row]:
        type_ids = [self._types.ids[i.type] for i in events]
        sources = keys.encode_sources(events)
        values = keys.encode_values(events, sources)
        positions = [keys.encode_timestamp(i.timestamp) + keys.encode_id(i.id) for i in events]
        batch: Any = _NoBatch()
        for i in order.add(batch, type_ids, sources, positions, values):
            values[i] = keys.indexed(values[i])
        event_keys = [i + position for i, position in zip(type_ids, positions, strict=True)]
        return [*zip(event_keys, values, strict=True)]

    def check_rows(self) -> None:
        """Put all rows, and compare them."""
        put: list[Row] = []
        family: Any = None
        latest = self._rows.put(lambda key, value, _: put.append((key, value)), family)
        assert put == sorted(self._expected.items())
        assert latest == [*{key[: keys.TYPE_BYTES]: (key, value) for key, value in put}.items()]


def stored_rows(data: bytes) -> None:
    """Rows of a store, which may be damaged, read and written as JSON.

    The first byte tells how they are read, the next ones from where to where.
    """
    head, *parts = data.split(SEPARATOR)
    rows = [*zip(parts[::2], parts[1::2], strict=False)]
    span: dict[str, Any] = {
        "start": head[1:5],
        "stop": head[5:9] or keys.KEY_MAX,
        "descending": bool(head) and bool(head[0] & 1),
        "max_rows": head[0] >> 4 if head else 9,
        "max_bytes": (head[0] & 0xE) * 40 if head else 999,
        "seconds": ENDLESS_S,
    }
    assert packed.read_rows(_iterator(rows), **span) == _read_in_python(_iterator(rows), **span)
    try:
        is_plain = _are_plain(rows)
    except KeyError:
        with pytest.raises(KeyError):
            packed.stored_events(rows, NAMES, msgspec.json.encode, keys.decode_events)
        return
    found = packed.stored_events(rows, NAMES, msgspec.json.encode, keys.decode_events)
    assert (found is not None) is is_plain
    if found is not None:
        events = keys.decode_events(rows, NAMES)
        assert packed.encode_stored(found, b"<", b">") == b"<%b>" % codec.encode_events(events)
        same: object = events
        assert found == same


def _are_plain(rows: Sequence[Row]) -> bool:
    """Whether all have a JSON payload or none, and the size that their flags tell.

    Raises:
        KeyError: one that has is of no type.
    """
    for key, value in rows:
        kind = value[0] if value else keys.BINARY_FLAG
        if kind & ~(keys.JSON_FLAG | keys.SOURCE_FLAG | keys.INDEXED_FLAG):
            return False
        n_head = keys.SOURCED_HEAD_BYTES if kind & keys.SOURCE_FLAG else keys.VALUE_HEAD_BYTES
        is_whole = len(value) > n_head if kind & keys.JSON_FLAG else len(value) == n_head
        if not is_whole or len(key) != keys.EVENT_KEY_BYTES:
            return False
        NAMES[key[: keys.TYPE_BYTES]]
    return True


class _Iterator:
    """As one of RocksDB."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = iter(rows)
        self.next()

    def next(self) -> None:
        self._row = next(self._rows, (None, None))

    def prev(self) -> None:
        self.next()

    def key(self) -> bytes | None:
        return self._row[0]

    def value(self) -> bytes | None:
        return self._row[1]


def _iterator(rows: Sequence[Row]) -> Any:
    return _Iterator(rows)


# --- inputs to begin with -----------------------------------------------------------------


def json_seeds() -> Iterator[bytes]:
    """Messages of which most are right."""
    writer = Writer(1)
    for number in range(2 * SEEDS):
        yield writer.right() if number % 2 else writer.message()


def sbs_seeds() -> Iterator[bytes]:
    """The same of the other wire."""
    yield test_sbs.REQUEST
    chance = random.Random(1)
    for _ in range(SEEDS):
        yield test_sbs.sbs_request(*_sbs_events(chance))


def several_seeds() -> Iterator[bytes]:
    """Some of either, of few types."""
    chance = random.Random(2)
    writer = Writer(2, (b'["a"]', b'["b"]', b'["a","b"]', b'[ "a"]'))
    for number in range(2 * SEEDS):
        few = range(chance.randrange(1, 5))
        if number % 2:
            parts = [test_sbs.sbs_request(*_sbs_events(chance)) for _ in few]
        else:
            parts = [writer.right() for _ in few]
        yield bytes((number,)) + SEPARATOR.join(parts)


def _sbs_events(chance: random.Random) -> Iterable[bytes]:
    for _ in range(chance.randrange(1, 5)):
        source = chance.choice((None, (chance.randrange(9), 5), (-(1 << 61), 999_999)))
        names = [[b"a"], [b"b"], [b"a", "\u010d".encode()]]
        data = chance.choice((None, *test_sbs.JSON))
        yield test_sbs.sbs_event(chance.choice(names), source, data)


def stored_seeds() -> Iterator[bytes]:
    """Rows that are right, and some that are not."""
    wrong = b"", b"\1", b"\2\0\0\0\1ax", b"\0x", b"\4" + b"x" * 11, b"\5" + b"x" * 12, b"\x0d"
    chance = random.Random(3)
    for number in range(SEEDS):
        rows = some_rows(number, number % 9)
        if rows and number % 4 == 0:
            rows[chance.randrange(len(rows))] = rows[0][0], chance.choice(wrong)
        head = chance.choice((b"", b"\xff", chance.randbytes(9), b"\xf0\0\0\0\0\0\0\0\2"))
        yield SEPARATOR.join([head, *(part for row in rows for part in row)])
