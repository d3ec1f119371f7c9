"""Damage to the rows of blocks of sessions is found, and said in a line."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.reader_rows import (
    CursorRow,
    ParkedRow,
    cursor_key,
    encode_id,
    encode_row,
    parked_prefix,
)
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.rocksdb import control, keys
from eventer_bridge.backends.rocksdb.info import ServerInfo, ext_info
from eventer_bridge.backends.rocksdb.keys import ENTRY_BYTES
from eventer_bridge.backends.rocksdb.verify import Counts, ext_verify
from eventer_bridge.model import EventId, Timestamp
from tests.eventer_bridge.backends.oracle import Writer, draft
from tests.eventer_bridge.backends.putting import put_all
from tests.eventer_bridge.backends.rocksdb.raw_rows import (
    BatchRows,
    findings,
    findings_after,
    raw_rows,
)

A: Final = keys.encode_type_id(0)
FIRST: Final = keys.encode_int(1)
CURSOR: Final = cursor_key("app", "c")
OWNER: Final = hashlib.blake2b(b"app", digest_size=16).digest()
REQUEST: Final = f"request: key 6b{OWNER.hex()}00000000"

now: Final = Timestamp(3, 0)

BLOCK: Final = keys.session_key(Timestamp(2, 0), 1, 2)
"""Sessions 2 to 4 of server 1, with an event of type a each; before it session 1, behind it 5."""

SESSIONS: Final = [*map(keys.encode_int, range(7))]


def block_missing(rows: BatchRows) -> None:
    del rows["session"][BLOCK]


def block_of_no_server(rows: BatchRows) -> None:
    del rows["server"][BLOCK[12:]]


def block_twice(rows: BatchRows) -> None:
    """Its last session once more, as a block of its own."""
    entries = rows["session"][BLOCK]
    key = BLOCK[:20] + SESSIONS[4]
    rows["session"][key] = entries[-ENTRY_BYTES:]
    rows["server"][key[12:]] = BLOCK[:12]


def block_into_the_next(rows: BatchRows) -> None:
    rows["session"][BLOCK] += SESSIONS[5] + FIRST + A
    key = A + BLOCK[:20] + SESSIONS[5] + FIRST
    rows["event"][key] = b"\x00"


def session_missing(rows: BatchRows) -> None:
    entries = rows["session"][BLOCK]
    rows["session"][BLOCK] = entries[:ENTRY_BYTES] + entries[2 * ENTRY_BYTES :]


def last_session_missing(rows: BatchRows) -> None:
    rows["session"][BLOCK] = rows["session"][BLOCK][:-ENTRY_BYTES]


def sessions_out_of_order(rows: BatchRows) -> None:
    entries = rows["session"][BLOCK]
    rows["session"][BLOCK] = (
        entries[:ENTRY_BYTES] + entries[2 * ENTRY_BYTES :] + entries[ENTRY_BYTES : 2 * ENTRY_BYTES]
    )


def sessions_before_it(rows: BatchRows) -> None:
    rows["session"][BLOCK] = SESSIONS[1] + FIRST + A + rows["session"][BLOCK]


def session_of_nothing(rows: BatchRows) -> None:
    """A server's last block, which says more than there is."""
    rows["session"][keys.session_key(Timestamp(5, 0), 1, 5)] += SESSIONS[6] + FIRST + A


DAMAGES: Final[dict[Callable[[BatchRows], None], list[str]]] = {
    block_missing: [
        "session: 1/2: no row, but server has one",
        "session: 1/2/1: no entry, but event has a row",
        "session: 1/3/1: no entry, but event has a row",
        "session: 1/4/1: no entry, but event has a row",
        f"{REQUEST}69: session 1/4 is not stored",
        f"{REQUEST}6a: session 1/2 is not stored",
        f"{REQUEST}6b: session 1/3 is not stored",
        "reader: 1/4/1: parked by cursor 'c' of 'app', but not stored",
    ],
    block_of_no_server: [
        "server: 1/2: no row, but session has one",
        "reader: 1/4/1: parked by cursor 'c' of 'app', but not stored",
    ],
    block_twice: ["session: 1/4: overlaps 1/2, which goes up to session 4"],
    block_into_the_next: ["session: 1/5: overlaps 1/2, which goes up to session 5"],
    session_missing: [
        "session: 1/3/1: no entry, but event has a row",
        f"{REQUEST}6b: session 1/3 is not stored",
    ],
    last_session_missing: [
        "session: 1/4/1: no entry, but event has a row",
        f"{REQUEST}69: session 1/4 is not stored",
        "reader: 1/4/1: parked by cursor 'c' of 'app', but not stored",
    ],
    sessions_before_it: [
        "session: 1/2: has events of session 1",
        "event: 1/1/1: no row, but session has an entry",
    ],
    session_of_nothing: [
        "default: server 1: session ids up to 5 are reserved, but 6 is stored",
        "event: 1/6/1: no row, but session has an entry",
    ],
}


async def make_blocks(path: Path) -> None:
    async with await rocksdb.create(path) as backend:
        writer = Writer(backend)
        await writer.session(draft("a"))
        requests = [RequestKey("app", name, bytes(16)) for name in ("j", "k", "i")]
        sessions = [writer.make(draft("a"), time=2) for _ in requests]
        put_all(backend, sessions, requests)
        await writer.session(draft("a"))
        await backend.reserve(1, 5)
        parked = parked_prefix("app", "c") + encode_id(EventId(1, 4, 1))
        row = encode_row(ParkedRow("no idea", now))
        await backend.keep_reader_rows(
            {CURSOR: encode_row(CursorRow([EventId(1, 4, 1)], now)), parked: row}
        )


async def test_blocks_that_are_well(tmp_path: Path) -> None:
    await make_blocks(tmp_path)
    assert findings(tmp_path) == []
    with control.open_read_only(tmp_path) as store:
        assert ext_verify(store, lambda _: None) == Counts(5, 5, 1, 1)
        assert store.n_rows("session") == 3
        [server] = ext_info(store).servers
    assert server == ServerInfo(1, 1, 5, Timestamp(1, 0), Timestamp(5, 0), 5)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_damaged_blocks(tmp_path: Path, damage: Callable[[BatchRows], None]) -> None:
    await make_blocks(tmp_path)
    assert findings_after(tmp_path, damage) == DAMAGES[damage]


async def test_sessions_out_of_order(tmp_path: Path) -> None:
    await make_blocks(tmp_path)
    with raw_rows(tmp_path) as rows:
        sessions_out_of_order(rows)
    assert "session: 1/2: its events are not in order" in findings(tmp_path)
