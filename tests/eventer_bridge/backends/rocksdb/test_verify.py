"""Every kind of damage that raw rows can have is found, and said in a line."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from rocksdict import Options, Rdict

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control, keys, verify
from eventer_bridge.backends.rocksdb.clean_shutdown import MARKER
from eventer_bridge.backends.rocksdb.contents import ALL_FAMILIES, FAMILIES
from eventer_bridge.backends.rocksdb.info import ServerInfo, ext_info
from eventer_bridge.backends.rocksdb.verify import Counts, Finding, ext_verify
from eventer_bridge.model import BinaryPayload, JsonPayload, Timestamp
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered

Rows = dict[str, Any]

A, B, C = (keys.encode_type_id(i) for i in range(3))
"""Ids of the types a, b and c."""

SESSION: Final = keys.session_key(Timestamp(2, 0), 1, 2)
"""Session 2 of server 1: a with a source timestamp, b, c with a binary payload."""

FIRST: Final = keys.encode_int(1)
EVENT: Final = A + SESSION + FIRST
SOURCE: Final = A + b"\x00" + keys.encode_timestamp(Timestamp(7, 0)) + SESSION + FIRST
SERVER: Final = SESSION[keys.TIMESTAMP_BYTES :]
NO_SOURCE: Final = b"\x01" + bytes(12)


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


@contextlib.contextmanager
def raw_rows(path: Path) -> Iterator[Rows]:
    (path / MARKER).unlink(missing_ok=True)
    families = {name: Options(raw_mode=True) for name in ("default", *ALL_FAMILIES)}
    db = Rdict(str(path), Options(raw_mode=True), families)
    rows: Rows = {name: db.get_column_family(name) for name in families}
    yield rows
    for family in (*rows.values(), db):
        family.close()


def findings(path: Path) -> list[str]:
    found: list[str] = []
    with control.open_read_only(path) as store:
        ext_verify(store, lambda finding: found.append(str(finding)))
    return found


async def test_a_store_that_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_store(tmp_path)
    monkeypatch.setattr(verify, "ROWS_AT_A_TIME", 2)
    progress: list[tuple[int, int]] = []
    found: list[Finding] = []
    with control.open_read_only(tmp_path) as store:
        counts = ext_verify(store, found.append, lambda *args: progress.append(args))
    assert found == []
    assert counts == Counts(events=8, sessions=4, servers=2, event_types=3)
    done = [i for i, _ in progress]
    assert done == sorted(done)
    assert done
    assert {total for _, total in progress} == {8 + 8 + 4 + 4 + 3 + 4}


async def test_an_empty_store(tmp_path: Path) -> None:
    await (await rocksdb.create(tmp_path)).async_close()
    assert findings(tmp_path) == []


def no_event(rows: Rows) -> None:
    del rows["event"][EVENT]


def no_source(rows: Rows) -> None:
    del rows["source"][SOURCE]


def extra_source(rows: Rows) -> None:
    rows["source"][A + NO_SOURCE + SESSION + FIRST] = b""


def source_of_nothing(rows: Rows) -> None:
    rows["source"][C + NO_SOURCE + SESSION + keys.encode_int(9)] = b""


def source_with_a_value(rows: Rows) -> None:
    rows["source"][SOURCE] = b"x"


def no_session(rows: Rows) -> None:
    del rows["session"][SESSION]


def no_server(rows: Rows) -> None:
    del rows["server"][SERVER]


def server_without_session(rows: Rows) -> None:
    rows["server"][keys.encode_int(1) + keys.encode_int(9)] = keys.encode_timestamp(Timestamp(9, 0))


def other_timestamp(rows: Rows) -> None:
    rows["server"][SERVER] = keys.encode_timestamp(Timestamp(2, 1))


def entry_missing(rows: Rows) -> None:
    rows["session"][SESSION] = rows["session"][SESSION][keys.ENTRY_BYTES :]


def entry_of_nothing(rows: Rows) -> None:
    rows["session"][SESSION] = rows["session"][SESSION] + keys.encode_int(9) + B


def entry_for_entry(rows: Rows) -> None:
    """As many entries as events, but of another."""
    entries = rows["session"][SESSION]
    rows["session"][SESSION] = entries[: -keys.ENTRY_BYTES] + keys.encode_int(9) + C


def entry_of_another_type(rows: Rows) -> None:
    rows["session"][SESSION] = FIRST + B + rows["session"][SESSION][keys.ENTRY_BYTES :]


def entries_out_of_order(rows: Rows) -> None:
    entries = rows["session"][SESSION]
    rows["session"][SESSION] = entries[-keys.ENTRY_BYTES :] + entries[: -keys.ENTRY_BYTES]


def entries_cut_off(rows: Rows) -> None:
    rows["session"][SESSION] = rows["session"][SESSION][:-1]


def unknown_flags(rows: Rows) -> None:
    rows["event"][EVENT] = b"\x08"


def empty_value(rows: Rows) -> None:
    rows["event"][EVENT] = b""


def json_that_is_none(rows: Rows) -> None:
    rows["event"][EVENT] = rows["event"][EVENT] + b"}"


def text_that_is_none(rows: Rows) -> None:
    rows["event"][EVENT] = rows["event"][EVENT][:13] + b'"\xff"'


def binary_cut_off(rows: Rows) -> None:
    rows["event"][EVENT] = b"\x06" + rows["event"][EVENT][1:13] + b"\x00\x00\x00\x09x"


def payload_of_none(rows: Rows) -> None:
    rows["event"][EVENT] = b"\x04" + rows["event"][EVENT][1:]


def source_timestamp_cut_off(rows: Rows) -> None:
    rows["event"][EVENT] = b"\x04123"


def other_source_timestamp(rows: Rows) -> None:
    rows["event"][EVENT] = b"\x04" + keys.encode_timestamp(Timestamp(8, 0))


def unknown_type(rows: Rows) -> None:
    del rows["type"][C]


def type_in_a_gap(rows: Rows) -> None:
    rows["type"][keys.encode_type_id(4)] = b'["e"]'


def type_twice(rows: Rows) -> None:
    rows["type"][keys.encode_type_id(3)] = b'["a"]'


def type_that_is_none(rows: Rows) -> None:
    rows["type"][keys.encode_type_id(3)] = b"[1]"


def clock_that_went_back(rows: Rows) -> None:
    key = keys.session_key(Timestamp(1, 0), 1, 4)
    rows["session"][key] = FIRST + A
    rows["server"][key[keys.TIMESTAMP_BYTES :]] = key[: keys.TIMESTAMP_BYTES]
    rows["event"][A + key + FIRST] = b"\x00"
    rows["source"][A + NO_SOURCE + key + FIRST] = b""


def mark_too_small(rows: Rows) -> None:
    rows["default"][keys.RESERVED_KEY + FIRST] = keys.encode_int(2)


def mark_cut_off(rows: Rows) -> None:
    rows["default"][keys.RESERVED_KEY + FIRST] = b"\x01"


def deleted_cut_off(rows: Rows) -> None:
    rows["default"][keys.DELETED_KEY + FIRST] = b"\x01"


def price_cut_off(rows: Rows) -> None:
    rows["default"][keys.encode_owner("client a")] = b"\x01"


def strange_keys(rows: Rows) -> None:
    for name in FAMILIES:
        rows[name][b"\xff\xff\xff"] = b""


DAMAGES: Final[dict[Callable[[Rows], None], list[str]]] = {
    no_event: [
        "event: 1/2/1: no row, but session has an entry",
        "event: 1/2/1: no row, but source has one",
    ],
    no_source: ["source: 1/2/1: no row, but event has one"],
    extra_source: ["source: 1/2/1: another source timestamp than in event"],
    source_of_nothing: ["event: 1/2/9: no row, but source has one"],
    source_with_a_value: [f"source: key {SOURCE.hex()}: not a row of this index"],
    no_session: [
        "session: 1/2: no row, but server has one",
        "session: 1/2/1: no entry, but event has a row",
        "session: 1/2/2: no entry, but event has a row",
        "session: 1/2/3: no entry, but event has a row",
    ],
    no_server: ["server: 1/2: no row, but session has one"],
    server_without_session: [
        "session: 1/9: no row, but server has one",
        "default: server 1: session ids up to 3 are reserved, but 9 is stored",
    ],
    other_timestamp: [
        "server: 1/2: another timestamp than in session",
        "session: 1/2: no row, but server has one",
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
        "session: 1/2: 35 bytes are no list of events",
        "session: 1/2/3: another event type than in event",
    ],
    unknown_flags: ["event: 1/2/1: cannot be decoded: unknown flags 08"],
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
    unknown_type: [
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
    strange_keys: [
        "type: key ffffff: not a key of this index",
        "session: key ffffff: not a key of this index",
        "server: key ffffff: not a row of this index",
        "event: key ffffff: not a key of this index",
        "source: key ffffff: not a row of this index",
    ],
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_damaged_rows(tmp_path: Path, damage: Callable[[Rows], None]) -> None:
    await make_store(tmp_path)
    with raw_rows(tmp_path) as rows:
        damage(rows)
    assert findings(tmp_path) == DAMAGES[damage]


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
    assert (found.format, found.events, found.event_types) == (1, 8, 3)
    assert (found.first_timestamp, found.last_timestamp) == (Timestamp(1, 0), Timestamp(3, 0))
    assert found.servers == [
        ServerInfo(1, 1, 3, Timestamp(1, 0), Timestamp(3, 0), 3),
        ServerInfo(2, 1, 1, Timestamp(1, 0), Timestamp(1, 0), 1),
    ]
    assert found.index_bytes.keys() == {"default", *FAMILIES}
    assert found.disk_bytes > 0


async def test_info_of_an_empty_store(tmp_path: Path) -> None:
    await (await rocksdb.create(tmp_path)).async_close()
    with control.open_read_only(tmp_path) as store:
        found = ext_info(store)
    assert (found.events, found.first_timestamp, found.servers) == (0, None, [])
