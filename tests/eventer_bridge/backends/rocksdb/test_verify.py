"""Every kind of damage that raw rows can have is found, and said in a line."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import (
    CursorRow,
    ParkedRow,
    cursor_key,
    encode_id,
    encode_row,
    parked_prefix,
)
from eventer_bridge.backends.rocksdb import control, keys
from eventer_bridge.backends.rocksdb.contents import FAMILIES
from eventer_bridge.backends.rocksdb.info import ServerInfo, ext_info
from eventer_bridge.backends.rocksdb.keys import ENTRY_BYTES
from eventer_bridge.backends.rocksdb.verify import Counts, Finding, ext_verify
from eventer_bridge.model import BinaryPayload, EventId, JsonPayload, Timestamp
from tests.eventer_bridge.backends.contract_retention import (
    TestClock,
    hurry,  # noqa: F401
    rule,
    settled,
)
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered, request_key
from tests.eventer_bridge.backends.putting import put
from tests.eventer_bridge.backends.rocksdb.raw_rows import (
    BatchRows,
    findings,
    findings_after,
    raw_rows,
)

A, B, C = (keys.encode_type_id(i) for i in range(3))
"""Ids of the types a, b and c."""

SESSION: Final = keys.session_key(Timestamp(2, 0), 1, 2)
"""Session 2 of server 1: a with a source timestamp, b, c with a binary payload."""

FIRST, SECOND = map(keys.encode_int, (1, 2))
EVENT: Final = A + SESSION + FIRST
SOURCE: Final = A + keys.encode_timestamp(Timestamp(7, 0)) + SESSION + FIRST
LATER: Final = keys.session_key(Timestamp(3, 0), 1, 3)
SERVER: Final = SESSION[keys.TIMESTAMP_BYTES :]
OTHER_SOURCE: Final = keys.encode_timestamp(Timestamp(8, 0))


OWNER: Final = hashlib.blake2b(b"app", digest_size=16).digest()
KEYS: Final = b"o" + OWNER
REQUEST: Final = b"k" + OWNER + bytes(4) + b"k"
CURSOR: Final = cursor_key("app", "c")
PARKED: Final = parked_prefix("app", "c") + encode_id(EventId(1, 2, 1))
GAP: Final = b"t" + keys.encode_int(1) + A

now: Final = Timestamp(3, 0)


def seen(server: int, session: int) -> CursorRow:
    return CursorRow([EventId(server, session, 1)], now)


async def make_store(path: Path) -> None:
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a", "b"))
        await writer.session(
            draft("a", source=7, payload=JsonPayload.of("x")),
            draft("b"),
            draft("c", payload=BinaryPayload("t", b"123")),
        )
        await writer.session(*numbered("a", "c"))
        await writer.session(*numbered("b"), server=2)
        await backend.reserve(1, 3)
        key = request_key("k")
        await put(backend, writer.make(*numbered("a"), server=3), None, 1, key)
        await backend.keep_reader_rows(
            {CURSOR: encode_row(seen(1, 3)), PARKED: encode_row(ParkedRow("no idea", now))}
        )


async def test_a_store_that_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_store(tmp_path)
    monkeypatch.setattr(store_limits, "VERIFIED_ROWS", 2)
    progress: list[tuple[int, int]] = []
    found: list[Finding] = []
    with control.open_read_only(tmp_path) as store:
        counts = ext_verify(store, found.append, lambda *args: progress.append(args))
    assert found == []
    assert counts == Counts(events=9, sessions=5, servers=3, event_types=3)
    done = [i for i, _ in progress]
    assert done == sorted(done)
    assert done
    assert {total for _, total in progress} == {9 + 1 + 5 + 5 + 3 + 8 + 2 + 2}


async def test_an_empty_store(tmp_path: Path) -> None:
    await (await rocksdb.create(tmp_path)).async_close()
    assert findings(tmp_path) == []


def no_event(rows: BatchRows) -> None:
    del rows["event"][EVENT]


def no_source(rows: BatchRows) -> None:
    del rows["source"][SOURCE]


def extra_source(rows: BatchRows) -> None:
    rows["source"][A + OTHER_SOURCE + SESSION + FIRST] = b""


def source_of_nothing(rows: BatchRows) -> None:
    rows["source"][C + OTHER_SOURCE + SESSION + keys.encode_int(9)] = b""


def source_of_an_event_without(rows: BatchRows) -> None:
    rows["source"][B + OTHER_SOURCE + SESSION + keys.encode_int(2)] = b""


def source_with_a_value(rows: BatchRows) -> None:
    rows["source"][SOURCE] = b"x"


def no_session(rows: BatchRows) -> None:
    del rows["session"][SESSION]


def no_server(rows: BatchRows) -> None:
    del rows["server"][SERVER]


def server_without_session(rows: BatchRows) -> None:
    rows["server"][keys.encode_int(1) + keys.encode_int(9)] = keys.encode_timestamp(Timestamp(9, 0))


def other_timestamp(rows: BatchRows) -> None:
    rows["server"][SERVER] = keys.encode_timestamp(Timestamp(2, 1))


def entry_missing(rows: BatchRows) -> None:
    rows["session"][SESSION] = rows["session"][SESSION][ENTRY_BYTES:]


def entry_of_nothing(rows: BatchRows) -> None:
    rows["session"][SESSION] = rows["session"][SESSION] + SECOND + keys.encode_int(9) + B


def entry_for_entry(rows: BatchRows) -> None:
    """As many entries as events, but of another."""
    entries = rows["session"][SESSION]
    rows["session"][SESSION] = entries[:-ENTRY_BYTES] + SECOND + keys.encode_int(9) + C


def entry_of_another_type(rows: BatchRows) -> None:
    rows["session"][SESSION] = SECOND + FIRST + B + rows["session"][SESSION][ENTRY_BYTES:]


def entries_out_of_order(rows: BatchRows) -> None:
    entries = rows["session"][SESSION]
    rows["session"][SESSION] = entries[-ENTRY_BYTES:] + entries[:-ENTRY_BYTES]


def entries_cut_off(rows: BatchRows) -> None:
    rows["session"][SESSION] = rows["session"][SESSION][:-1]


def unknown_flags(rows: BatchRows) -> None:
    rows["event"][EVENT] = b"\x10"


def empty_value(rows: BatchRows) -> None:
    rows["event"][EVENT] = b""


def json_that_is_none(rows: BatchRows) -> None:
    rows["event"][EVENT] = rows["event"][EVENT] + b"}"


def text_that_is_none(rows: BatchRows) -> None:
    rows["event"][EVENT] = rows["event"][EVENT][:13] + b'"\xff"'


def binary_cut_off(rows: BatchRows) -> None:
    rows["event"][EVENT] = b"\x06" + rows["event"][EVENT][1:13] + b"\x00\x00\x00\x09x"


def payload_of_none(rows: BatchRows) -> None:
    rows["event"][EVENT] = b"\x04" + rows["event"][EVENT][1:]


def source_timestamp_cut_off(rows: BatchRows) -> None:
    rows["event"][EVENT] = b"\x04123"


def other_source_timestamp(rows: BatchRows) -> None:
    rows["event"][EVENT] = b"\x0c" + keys.encode_timestamp(Timestamp(8, 0))


def indexed_without_source_timestamp(rows: BatchRows) -> None:
    del rows["source"][SOURCE]
    rows["event"][EVENT] = b"\x09[]"


def in_order_behind_its_end(rows: BatchRows) -> None:
    del rows["source"][SOURCE]
    rows["event"][EVENT] = b"\x04" + keys.encode_timestamp(Timestamp(7, 0))


def not_in_order(rows: BatchRows) -> None:
    in_order_behind_its_end(rows)
    for session, source in ((1, 9), (3, 6)):
        key = A + keys.session_key(Timestamp(session, 0), 1, session) + FIRST
        rows["event"][key] = b"\x04" + keys.encode_timestamp(Timestamp(source, 0))
    rows["default"][keys.IN_ORDER_KEY + A] = LATER + FIRST


def end_of_order_cut_off(rows: BatchRows) -> None:
    rows["default"][keys.IN_ORDER_KEY + A] = LATER


def end_of_order_of_an_unknown_type(rows: BatchRows) -> None:
    rows["default"][keys.IN_ORDER_KEY + keys.encode_type_id(9)] = b""


def unknown_type(rows: BatchRows) -> None:
    del rows["type"][C]


def type_in_a_gap(rows: BatchRows) -> None:
    rows["type"][keys.encode_type_id(4)] = b'["e"]'


def type_twice(rows: BatchRows) -> None:
    rows["type"][keys.encode_type_id(3)] = b'["a"]'


def type_that_is_none(rows: BatchRows) -> None:
    rows["type"][keys.encode_type_id(3)] = b"[1]"


def clock_that_went_back(rows: BatchRows) -> None:
    key = keys.session_key(Timestamp(1, 0), 1, 4)
    rows["session"][key] = keys.encode_int(4) + FIRST + A
    rows["server"][key[keys.TIMESTAMP_BYTES :]] = key[: keys.TIMESTAMP_BYTES]
    rows["event"][A + key + FIRST] = b"\x00"


def mark_too_small(rows: BatchRows) -> None:
    rows["default"][keys.RESERVED_KEY + FIRST] = keys.encode_int(2)


def mark_cut_off(rows: BatchRows) -> None:
    rows["default"][keys.RESERVED_KEY + FIRST] = b"\x01"


def deleted_cut_off(rows: BatchRows) -> None:
    rows["default"][keys.DELETED_KEY + FIRST] = b"\x01"


def price_cut_off(rows: BatchRows) -> None:
    rows["default"][keys.encode_owner("client a")] = b"\x01"


def clock_cut_off(rows: BatchRows) -> None:
    rows["default"][keys.CLOCK_KEY] = rows["default"][keys.CLOCK_KEY][:-1]


def request_cut_off(rows: BatchRows) -> None:
    rows["request"][REQUEST] = rows["request"][REQUEST][:-1]


def request_of_nothing(rows: BatchRows) -> None:
    digest, place = rows["request"][REQUEST][:16], rows["request"][REQUEST][16:-8]
    rows["request"][REQUEST] = digest + place + keys.encode_int(9)


def request_of_another_moment(rows: BatchRows) -> None:
    value = rows["request"][REQUEST]
    rows["request"][REQUEST] = value[:16] + keys.encode_timestamp(Timestamp(9, 0)) + value[28:]


def request_without_client(rows: BatchRows) -> None:
    del rows["request"][KEYS]


def request_of_later_generation(rows: BatchRows) -> None:
    rows["request"][REQUEST[:17] + b"\x00\x00\x00\x01x"] = rows["request"][REQUEST]


def client_cut_off(rows: BatchRows) -> None:
    rows["request"][KEYS] = rows["request"][KEYS][:-1]


def strange_client(rows: BatchRows) -> None:
    rows["request"][b"o"] = rows["request"][KEYS]


def cursor_that_is_none(rows: BatchRows) -> None:
    rows["reader"][CURSOR] = b"[]"


def cursor_of_nobody(rows: BatchRows) -> None:
    rows["reader"][b"c[]"] = encode_row(seen(1, 3))


def cursor_ahead(rows: BatchRows) -> None:
    rows["reader"][CURSOR] = encode_row(seen(1, 4))


def cursor_of_an_unknown_server(rows: BatchRows) -> None:
    rows["reader"][CURSOR] = encode_row(seen(7, 1))


def parked_without_cursor(rows: BatchRows) -> None:
    del rows["reader"][CURSOR]


def parked_of_nothing(rows: BatchRows) -> None:
    key = parked_prefix("app", "c") + encode_id(EventId(1, 9, 1))
    rows["reader"][key] = rows["reader"][PARKED]


def parked_that_is_none(rows: BatchRows) -> None:
    rows["reader"][PARKED] = b"{}"


def parked_cut_off(rows: BatchRows) -> None:
    rows["reader"][PARKED[:-1]] = rows["reader"][PARKED]


def gap_cut_off(rows: BatchRows) -> None:
    rows["reader"][GAP] = b"x"


def gap_of_an_unknown_type(rows: BatchRows) -> None:
    rows["reader"][GAP[: -len(A)] + keys.encode_type_id(9)] = bytes(24)


def gap_of_no_server(rows: BatchRows) -> None:
    rows["reader"][GAP[:5]] = bytes(24)


def strange_keys(rows: BatchRows) -> None:
    for name in FAMILIES:
        rows[name][b"\xff\xff\xff"] = b""


def key_of(key: bytes) -> str:
    return f"key {key.hex()}"


def end_of_order(type_id: bytes) -> str:
    return key_of(keys.IN_ORDER_KEY + type_id)


DAMAGES: Final[dict[Callable[[BatchRows], None], list[str]]] = {
    no_event: [
        "event: 1/2/1: no row, but session has an entry",
        "event: 1/2/1: no row, but source has one",
    ],
    no_source: ["source: 1/2/1: no row, but event has one"],
    extra_source: ["source: 1/2/1: another source timestamp than in event"],
    source_of_an_event_without: ["source: 1/2/2: another source timestamp than in event"],
    source_of_nothing: ["event: 1/2/9: no row, but source has one"],
    source_with_a_value: [f"source: key {SOURCE.hex()}: not a row of this index"],
    no_session: [
        "session: 1/2: no row, but server has one",
        "session: 1/2/1: no entry, but event has a row",
        "session: 1/2/2: no entry, but event has a row",
        "session: 1/2/3: no entry, but event has a row",
        "reader: 1/2/1: parked by cursor 'c' of 'app', but not stored",
    ],
    no_server: [
        "server: 1/2: no row, but session has one",
        "reader: 1/2/1: parked by cursor 'c' of 'app', but not stored",
    ],
    server_without_session: [
        "session: 1/9: no row, but server has one",
        "default: server 1: session ids up to 3 are reserved, but 9 is stored",
    ],
    other_timestamp: [
        "server: 1/2: another timestamp than in session",
        "session: 1/2: no row, but server has one",
        "reader: 1/2/1: parked by cursor 'c' of 'app', but not stored",
    ],
    entry_missing: ["session: 1/2/1: no entry, but event has a row"],
    entry_of_nothing: ["event: 1/2/9: no row, but session has an entry"],
    entry_for_entry: [
        "session: 1/2/3: no entry, but event has a row",
        "event: 1/2/9: no row, but session has an entry",
    ],
    entry_of_another_type: [
        "session: 1/2/1: another event type than in event",
        "event: 1/2/1: no row, but session has an entry",
    ],
    entries_cut_off: [
        "session: 1/2: 59 bytes are no list of events",
        "session: 1/2/3: another event type than in event",
    ],
    unknown_flags: ["event: 1/2/1: cannot be decoded: unknown flags 10"],
    empty_value: ["event: 1/2/1: cannot be decoded: unknown flags none"],
    json_that_is_none: [
        "event: 1/2/1: cannot be decoded: payload: JSON is malformed: trailing characters (byte 4)"
    ],
    text_that_is_none: [
        "event: 1/2/1: cannot be decoded: 'utf-8' codec can't decode byte 0xff in position 1:"
        " invalid start byte"
    ],
    binary_cut_off: ["event: 1/2/1: cannot be decoded: payload: cut off"],
    payload_of_none: ["event: 1/2/1: cannot be decoded: no payload, but 3 bytes of one"],
    source_timestamp_cut_off: [
        "event: 1/2/1: cannot be decoded: no source timestamp, but a flag says so"
    ],
    other_source_timestamp: [
        "source: 1/2/1: no row, but event has one",
        "source: 1/2/1: another source timestamp than in event",
    ],
    indexed_without_source_timestamp: [
        "event: 1/2/1: cannot be decoded: no source timestamp,"
        " but a flag says that it is in an index"
    ],
    in_order_behind_its_end: ["event: 1/2/1: behind where the order of its type ends"],
    not_in_order: [
        "event: 1/2/1: source timestamp before that of 1/1/1, but not in source",
        "event: 1/3/1: source timestamp before that of 1/1/1, but not in source",
    ],
    end_of_order_cut_off: [f"default: {end_of_order(A)}: not where the order of a type ends"],
    end_of_order_of_an_unknown_type: [
        f"default: {end_of_order(keys.encode_type_id(9))}: not where the order of a type ends"
    ],
    unknown_type: [
        f"default: {end_of_order(C)}: not where the order of a type ends",
        "event: 1/2/3: unknown event type key 00000002",
        "event: 1/3/2: unknown event type key 00000002",
    ],
    type_in_a_gap: ["type: key 00000003: missing: ids have a gap"],
    type_twice: ["type: key 00000003: 'a' is key 00000000 already"],
    type_that_is_none: [
        "type: key 00000003: cannot be decoded: Expected `str`, got `int` - at `$[0]`"
    ],
    clock_that_went_back: [
        "server: 1/4: earlier than 1/3",
        "default: server 1: session ids up to 3 are reserved, but 4 is stored",
    ],
    mark_too_small: ["default: server 1: session ids up to 2 are reserved, but 3 is stored"],
    mark_cut_off: [
        f"default: key {(keys.RESERVED_KEY + FIRST).hex()}: not a reservation of session ids"
    ],
    deleted_cut_off: [
        f"default: key {(keys.DELETED_KEY + FIRST).hex()}: not a position of deleted sessions"
    ],
    price_cut_off: [
        f"default: key {keys.encode_owner('client a').hex()}: not what the types of a client cost"
    ],
    clock_cut_off: [f"default: key {keys.CLOCK_KEY.hex()}: not the time that passed"],
    request_cut_off: [f"request: {key_of(REQUEST)}: not a row of requests"],
    request_of_nothing: [f"request: {key_of(REQUEST)}: session 3/9 is not stored"],
    request_of_another_moment: [f"request: {key_of(REQUEST)}: session 3/1 is not stored"],
    request_without_client: [f"request: {key_of(REQUEST)}: its client has no row"],
    request_of_later_generation: [
        f"request: key 6b{OWNER.hex()}0000000178: of generation 1, but its client has 0"
    ],
    client_cut_off: [
        f"request: {key_of(KEYS)}: not a row of a client",
        f"request: {key_of(REQUEST)}: its client has no row",
    ],
    strange_client: ["request: key 6f: not a key of this index"],
    cursor_that_is_none: [
        f"reader: {key_of(CURSOR)}: cannot be decoded: Expected `object`, got `array`",
        "reader: 1/2/1: parked by cursor 'c' of 'app', which does not exist",
    ],
    cursor_of_nobody: ["reader: key 635b5d: cannot be decoded: Expected `array` of length 2"],
    cursor_ahead: [
        "reader: cursor 'c' of 'app': is at 1/4/1, but the last session of server 1 is 3"
    ],
    cursor_of_an_unknown_server: [
        "reader: cursor 'c' of 'app': is at 7/1/1, but the last session of server 7 is 0"
    ],
    parked_without_cursor: ["reader: 1/2/1: parked by cursor 'c' of 'app', which does not exist"],
    parked_of_nothing: ["reader: 1/9/1: parked by cursor 'c' of 'app', but not stored"],
    parked_that_is_none: [
        f"reader: {key_of(PARKED)}: cannot be decoded: Object missing required field `reason`"
    ],
    parked_cut_off: [f"reader: {key_of(PARKED[:-1])}: cannot be decoded: no id of an event"],
    gap_cut_off: [f"reader: {key_of(GAP)}: cannot be decoded: 1 bytes, expected 24"],
    gap_of_no_server: [f"reader: {key_of(GAP[:5])}: cannot be decoded: a key of 5 bytes"],
    gap_of_an_unknown_type: [
        f"reader: key {GAP[: -len(A)].hex()}00000009: unknown event type key 00000009"
    ],
    strange_keys: [
        "type: key ffffff: not a key of this index",
        "session: key ffffff: not a key of this index",
        "server: key ffffff: not a row of this index",
        "event: key ffffff: not a key of this index",
        "source: key ffffff: not a row of this index",
        "request: key ffffff: not a key of this index",
        "reader: key ffffff: not a key of this index",
    ],
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_damaged_rows(tmp_path: Path, damage: Callable[[BatchRows], None]) -> None:
    await make_store(tmp_path)
    assert findings_after(tmp_path, damage) == DAMAGES[damage]


async def test_a_row_in_source_of_an_event_in_order(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(draft("a", source=5))
        await writer.session(draft("a", source=7))

    def damage(rows: BatchRows) -> None:
        rows["source"][SOURCE] = b""

    assert findings_after(tmp_path, damage) == [
        "source: 1/2/1: has a row, but the event is in order"
    ]


@pytest.mark.usefixtures("hurry")
async def test_what_retention_deleted_is_no_finding(tmp_path: Path) -> None:
    clock = TestClock(1_000)
    rules = [rule("a", max_entries=0)]
    async with await rocksdb.create(tmp_path, retention=rules, clock=clock) as backend:
        writer = Writer(backend)
        for i in range(3):
            key = request_key(str(i))
            await put(backend, writer.make(draft("a"), time=i), None, 1, key)
        parked = {PARKED: encode_row(ParkedRow("no idea", now))}
        await backend.keep_reader_rows({CURSOR: encode_row(seen(1, 2)), **parked})
        assert len(await settled(backend, clock)) == 1
        assert None not in backend.find_requests("app", ["0", "1", "2"])
    assert findings(tmp_path) == []
    with raw_rows(tmp_path) as rows:  # what is behind that was not deleted
        rows["request"][REQUEST] = rows["request"][REQUEST[:-1] + b"2"][:-1] + b"\x09"
    assert findings(tmp_path) == [f"request: {key_of(REQUEST)}: session 1/9 is not stored"]


async def test_entries_out_of_order(tmp_path: Path) -> None:
    await make_store(tmp_path)
    with raw_rows(tmp_path) as rows:
        entries_out_of_order(rows)
    assert "session: 1/2: its events are not in order" in findings(tmp_path)


def garble_largest_file(path: Path) -> None:
    file = max(path.glob("*.sst"), key=lambda i: i.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


async def test_a_damaged_block(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*(draft(payload=JsonPayload.of("x" * 1000)) for _ in range(100)))
    garble_largest_file(tmp_path)
    found = findings(tmp_path)
    assert found[0].startswith("event: key ")
    assert " and behind: cannot be read: " in found[0]
    assert "block checksum mismatch" in found[0]


async def test_info(tmp_path: Path) -> None:
    await make_store(tmp_path)
    with control.open_read_only(tmp_path) as store:
        found = ext_info(store)
    assert (found.format, found.events, found.event_types) == (3, 9, 3)
    assert (found.first_timestamp, found.last_timestamp) == (Timestamp(1, 0), Timestamp(3, 0))
    assert found.servers == [
        ServerInfo(1, 1, 3, Timestamp(1, 0), Timestamp(3, 0), 3),
        ServerInfo(2, 1, 1, Timestamp(1, 0), Timestamp(1, 0), 1),
        ServerInfo(3, 1, 1, Timestamp(1, 0), Timestamp(1, 0), 1),
    ]
    assert found.index_bytes.keys() == {"default", *FAMILIES}
    assert found.disk_bytes > 0


async def test_info_of_an_empty_store(tmp_path: Path) -> None:
    await (await rocksdb.create(tmp_path)).async_close()
    with control.open_read_only(tmp_path) as store:
        found = ext_info(store)
    assert (found.events, found.first_timestamp, found.servers) == (0, None, [])
