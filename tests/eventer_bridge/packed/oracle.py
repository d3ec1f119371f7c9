"""What the compiled module makes of any bytes is what Python makes of them; for fuzzing.

Each function takes an input, and raises if the two are not the same.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from eventer_bridge import packed
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.snapshot import _read_in_python
from eventer_bridge.backends.rocksdb.source_order import NOTHING
from eventer_bridge.eventer import codec as eventer_codec
from eventer_bridge.model import BinaryPayload, Event, RegisterEvent, Timestamp
from eventer_bridge.net.framing import encode_frames
from eventer_bridge.packed import Batch
from mariner.wire import codec
from tests.eventer_bridge.packed import test_reading, test_sbs
from tests.eventer_bridge.packed.messages import Writer
from tests.eventer_bridge.packed.support import (
    Staging,
    Types,
    decode_events,
    make_events,
    plain_batch,
)
from tests.eventer_bridge.packed.test_stored import NAMES, some_rows

SEPARATOR: Final = b"\xff\xfe\xff"
"""Between the parts of an input."""

SEEDS: Final = 60
"""Of each kind."""

FEW_TYPES_BYTES: Final = 1_500
"""Of a table that is full with two types."""

ENDLESS_S: Final = 60.0

BOUNDS: Final = store_limits.MAX_PASSED_EVENTS, store_limits.MAX_ORDERED_BYTES

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

    The first byte tells the wire, whether ids are forgotten in between, and how many types are in
    the table; the size of the first request, whether it is extended and staged in parts.
    """
    options = data[0] if data else 0
    is_sbs, is_forgetful = bool(options & 1), bool(options & 2)
    read = eventer_codec.read_whole_type if is_sbs else codec.read_type
    types = Types(FEW_TYPES_BYTES + 50 * (options >> 2), read)
    requests: list[Batch] = []
    events: list[Sequence[RegisterEvent]] = []
    for part in data[1:].split(SEPARATOR):
        found = test_sbs.pack(types, part) if is_sbs else types.read(part)
        if found is not None:
            requests.append(found)
            events.append(test_sbs.read(part) if is_sbs else decode_events(part))
        if is_forgetful and len(part) % 3 == 0:
            types.forget_ids()
    if not requests:
        return
    staging = Staging(types, dict.fromkeys(types.ids.values(), NOTHING), {}, bounds=BOUNDS)
    _stage(staging, requests, events, 1, 5)
    _stage(staging, requests[::-1], events[::-1], -9, 6)
    staging.put()
    made = [
        make_events(i.server, i.session, some, Timestamp(i.s, i.us))
        for i, some in zip(requests, events, strict=True)
    ]
    _check_answers(requests, made, is_sbs=is_sbs)
    _extend(staging, requests[0], events[0], types, len(data))


def _stage(
    staging: Staging,
    requests: list[Batch],
    events: Sequence[Sequence[RegisterEvent]],
    server: int,
    session: int,
) -> None:
    time = Timestamp(session, 999_999)
    packed.assign(requests, server, session, time.s, time.us)
    in_python = [plain_batch(some, (server, n, time)) for n, some in enumerate(events, session)]
    staging.stage(requests, in_python)


def _check_answers(requests: list[Batch], made: Sequence[Sequence[Event]], *, is_sbs: bool) -> None:
    for found, some in zip(requests, made, strict=True):
        if not found.is_encodable:
            continue
        assert packed.encode_events(found) == codec.encode_events(some)
        assert packed.encode_events(found, [*range(1, len(some))]) == codec.encode_events(some[1:])
        assert packed.encode_events(found, None, 1, 3) == codec.encode_events(some[1:3])
    if is_sbs:
        answers = eventer_codec.encode_register_successes(made)
        assert packed.encode_sbs_answers(requests) == answers
    else:
        frames = encode_frames(
            codec.encode_register_success(found.register_id, codec.encode_events(some))
            for found, some in zip(requests, made, strict=True)
        )
        assert codec.encode_batch_successes(requests) == frames


def _extend(
    staging: Staging, found: Batch, events: Sequence[RegisterEvent], types: Types, size: int
) -> None:
    """Extend a batch by events of its own, some of them binary, and stage it in parts."""
    added = [*events][size % 3 :: -1]
    if size % 5 == 0:
        payload = BinaryPayload("x", b"y" * (size % 7))
        added.append(RegisterEvent(events[0].type, None, payload))
    for some in (added[:1], added[1:]):
        packed.extend(found, some)
    whole = [*events, *added]
    packed.assign([found], 2, 3, 4, 5)
    in_python = plain_batch(whole, (2, 3, Timestamp(4, 5)))
    middle = size % (1 + len(whole))
    staging.stage([found], [in_python], 0, middle)
    staging.put()
    staging.stage([found], [in_python], middle)
    staging.put()
    assert found.requested == len(events)
    made = make_events(2, 3, whole, Timestamp(4, 5))
    assert packed.session_events(found) == made
    if found.is_encodable:
        assert packed.encode_events(found) == codec.encode_events(made)
        answer = codec.encode_register_success(
            found.register_id, codec.encode_events(made[: len(events)])
        )
        assert codec.encode_batch_successes([found]) == encode_frames([answer])
    else:
        assert isinstance(whole[-1].payload, BinaryPayload)
    by_objects = packed.batch_of(whole, types.table)
    packed.assign([by_objects], 2, 4, 4, 5)
    staging.stage([by_objects], [plain_batch(whole, (2, 4, Timestamp(4, 5)))])
    staging.put()


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
