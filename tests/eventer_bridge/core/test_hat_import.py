"""Stores of real hat-event servers, and such that are damaged or strange, are imported."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import pytest
from hat.drivers import net
from hat.event import common as hat
from hat.event import eventer
from hat.event.backends.lmdb import common as hat_db

from eventer_bridge import limits
from eventer_bridge.backends import hat_lmdb, rocksdb
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.core import hat_import
from eventer_bridge.core.hat_import import Imported
from eventer_bridge.errors import StorageError, StoreDamagedError, StoreFormatError
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from tests.support.hat_peers import hat_event_server

SESSIONS: Final = 60
PAGE: Final = 4096
ROWS_OF: Final = hat_db.DbType


def same(event: Event) -> hat.Event:
    """Our event as hat-event would have it, so that the two can be compared."""
    payload: Any = None
    if isinstance(event.payload, BinaryPayload):
        payload = hat.EventPayloadBinary(event.payload.data_type, event.payload.data)
    elif event.payload is not None:
        payload = hat.EventPayloadJson(event.payload.value())

    def timestamp(value: Timestamp | None) -> Any:
        return None if value is None else hat.Timestamp(value.s, value.us)

    return hat.Event(
        hat.EventId(event.id.server, event.id.session, event.id.instance),
        event.type,
        timestamp(event.timestamp),
        timestamp(event.source_timestamp),
        payload,
    )


def register_events(n: int) -> list[hat.RegisterEvent]:
    """The events of a session: every kind of payload, with and without source timestamp."""
    return [
        hat.RegisterEvent(("count", str(n % 7)), hat.Timestamp(n, n), hat.EventPayloadJson(n)),
        hat.RegisterEvent(("nothing",), None, None),
        hat.RegisterEvent((), hat.Timestamp(-n - 1, 999_999), hat.EventPayloadJson(None)),
        hat.RegisterEvent(
            ("ž/x", "", "🙂"), None, hat.EventPayloadJson({"a": [n, 1.5, "ž", {}], "b": False})
        ),
        hat.RegisterEvent(
            ("binary",), hat.Timestamp(5, 0), hat.EventPayloadBinary("dža", bytes(range(n)))
        ),
        hat.RegisterEvent(("large",), None, hat.EventPayloadBinary("", os.urandom(20_000))),
    ]


async def import_store(source: Path, target: Path) -> tuple[Imported, list[str]]:
    refused: list[str] = []
    result = hat_import.import_database(
        source, target, lambda refusal: refused.append(str(refusal))
    )
    findings: list[Finding] = []
    with control.open_read_only(target) as store:
        counts = ext_verify(store, findings.append)
    assert findings == []
    assert (counts.events, counts.sessions) == (result.events, result.sessions)
    assert result.refused == len(refused)
    return result, refused


async def all_events(backend: Backend, params: QueryParams) -> list[hat.Event]:
    result = await backend.query(params)
    assert not result.more_follows
    return [same(event) for event in result.events]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_the_store_of_a_real_server(tmp_path: Path) -> None:
    answered: list[hat.Event] = []
    async with hat_event_server(tmp_path, server_id=3) as server:
        client = await eventer.connect(net.TcpAddress(server.host, server.port), "importer")
        for n in range(SESSIONS):
            events = await client.register(register_events(n), with_response=True)
            assert events is not None
            answered.extend(events)
        by_server = await client.query(hat.QueryServerParams(3))
        by_source = await client.query(
            hat.QueryTimeseriesParams(order_by=hat.OrderBy.SOURCE_TIMESTAMP)
        )
        await client.async_close()
    assert not by_server.more_follows
    stored = list(by_server.events)
    assert [event for event in stored if event.type[:1] != ("event",)] == answered

    before = digest(tmp_path / "events.db")
    store = tmp_path / "store"
    result, refused = await import_store(tmp_path / "events.db", store)
    assert digest(tmp_path / "events.db") == before
    assert refused == []

    async with await rocksdb.create(store) as backend:
        imported = await all_events(backend, QueryServerParams(3))
        # then come what the server registered when the client left and it stopped itself
        assert imported[: len(stored)] == stored
        extra = imported[len(stored) :]
        assert {event.type[0] for event in extra} == {"event"}
        assert extra[-1].type == ("event", "3", "engine")
        assert result.events == len(imported)
        assert backend.high_water_mark(3).session == imported[-1].id.session
        newest = Timestamp(*imported[-1].timestamp)
        assert backend.high_water_mark(3).timestamp == newest
        upwards = QueryTimeseriesParams(order=Order.ASCENDING)
        assert await all_events(backend, upwards) == imported
        with_source = QueryTimeseriesParams(
            order_by=OrderBy.SOURCE_TIMESTAMP, max_results=len(by_source.events)
        )
        result_by_source = await backend.query(with_source)
        assert [same(event) for event in result_by_source.events] == list(by_source.events)
        latest = {event.type: event for event in imported}
        found = await all_events(backend, QueryLatestParams())
        assert {event.type: event for event in found} == latest


# databases as the code of hat-event writes them, row by row


class HatRows:
    """A database that is written row by row."""

    def __init__(self, path: Path) -> None:
        self._environment = hat_db.ext_create_env(path, max_size=16 << 20)
        self._databases = {
            i: hat_db.ext_open_db(self._environment, i, create=True) for i in ROWS_OF
        }

    def put(self, database: hat_db.DbType, key: Any, value: Any) -> None:
        definition = hat_db.db_defs[database]
        data = value if isinstance(value, bytes) else bytes(definition.encode_value(value))
        with self._environment.begin(write=True) as transaction:
            transaction.put(bytes(definition.encode_key(key)), data, db=self._databases[database])

    def event(
        self,
        server: int,
        session: int,
        instance: int,
        *segments: str,
        time: int | None = None,
        row: bytes | None = None,
        has_ref: bool = True,
        has_row: bool = True,
        is_latest: bool = False,
    ) -> None:
        """Add an event, its timestamp in seconds (None: its session's id)."""
        event_id = hat.EventId(server, session, instance)
        timestamp = hat.Timestamp(session if time is None else time, 0)
        event = hat.Event(event_id, segments, timestamp, None, None)
        key = (1, timestamp, event_id)
        ref: Any = hat_db.TimeseriesEventRef(key)
        if is_latest:
            ref = hat_db.LatestEventRef(instance)
            self.put(ROWS_OF.LATEST_DATA, instance, event)
        elif has_row:
            self.put(ROWS_OF.TIMESERIES_DATA, key, row or event)
        if has_ref:
            self.put(ROWS_OF.REF, event_id, {ref})

    def close(self) -> None:
        self._environment.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def rows(source: Path) -> Iterator[HatRows]:
    made = HatRows(source)
    made.put(ROWS_OF.SYSTEM_SETTINGS, hat_db.SettingsId.VERSION, "0.9")
    yield made
    made.close()


def event_with_nan() -> bytes:
    event = hat.Event(
        hat.EventId(1, 3, 1), ("c",), hat.Timestamp(3, 0), None, hat.EventPayloadJson("NaN")
    )
    data = bytes(hat_db.db_defs[ROWS_OF.LATEST_DATA].encode_value(event))
    return data.replace(b'"NaN"', b"NaN  ")


async def test_events_that_cannot_be_stored_are_told_and_left_out(
    rows: HatRows, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_EVENT_TYPES", 4)
    rows.event(1, 1, 1, "a", "?")
    rows.event(1, 1, 2, "*")
    rows.event(1, 1, 3, "a")
    rows.event(1, 1, 4, "b", time=2)
    rows.event(1, 2, 1, "b", time=0)
    rows.event(1, 3, 1, "c", row=event_with_nan())
    rows.event(1, 4, 1, *["x"] * 65)
    rows.event(1, 5, 1, "c", has_row=False)
    rows.event(1, 6, 1, "c", row=b"\x81")
    rows.event(1, 6, 2, "c", row=b"\x81\x86\x82")
    rows.event(1, 6, 3, "c", row=b"\x81\x86\x83" + b"\x80" * 20)
    rows.event(1, 7, 1, "c", "d")
    rows.event(1, 7, 2, "e")
    rows.event(1, 7, 3, "f")
    rows.event(1 << 63, 1, 1, "a", row=b"\x01" + bytes(8) + b"\x80")
    result, refused = await import_store(source, tmp_path / "store")
    assert refused == [
        "1/1/1: event type 'a/?': '?' and '*' are for queries only, expected plain segments",
        "1/1/2: event type '*': '?' and '*' are for queries only, expected plain segments",
        "1/1/4: its timestamp is not that of its session",
        "1/2/1: its timestamp is before that of an earlier session",
        "1/3/1: its payload is not readable JSON: JSON is malformed: invalid character (byte 0)",
        "1/4/1: event type has 65 segments, at most 64 are allowed",
        "1/5/1: only its id is there",
        "1/6/1: its row is cut off",
        "1/6/2: its row is cut off",
        "1/6/3: its row continues after the event",
        "1/7/3: 1 new event types, but 0 more are allowed (4 in total); a long one counts as"
        " several",
        "9223372036854775808/1/1: one of its integers has more than 64 bits",
    ]
    assert result == Imported(events=3, sessions=2, event_types=4, refused=12)
    async with await rocksdb.create(tmp_path / "store") as backend:
        found = await all_events(backend, QueryServerParams(1))
        assert [tuple(event.id) for event in found] == [(1, 1, 3), (1, 7, 1), (1, 7, 2)]


async def test_payloads_that_break_clients_are_left_out(
    rows: HatRows, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PAYLOAD_BYTES", 1_500)
    nested: Any = 1
    for _ in range(129):
        nested = [nested]
    payloads = [
        hat.EventPayloadJson(nested),
        hat.EventPayloadJson(10**1_000),
        hat.EventPayloadBinary("x", bytes(1_500)),
        hat.EventPayloadBinary("x", bytes(1_499)),
    ]
    for instance, payload in enumerate(payloads, 1):
        event = hat.Event(hat.EventId(1, 1, instance), ("a",), hat.Timestamp(1, 0), None, payload)
        row = bytes(hat_db.db_defs[ROWS_OF.TIMESERIES_DATA].encode_value(event))
        rows.event(1, 1, instance, "a", row=row)
    result, refused = await import_store(source, tmp_path / "store")
    assert refused == [
        "1/1/1: payload: nested deeper than 128 levels",
        "1/1/2: payload: a number of more than 1000 digits in a row",
        "1/1/3: payload has 1501 bytes, at most 1500 are allowed",
    ]
    assert result == Imported(events=1, sessions=1, event_types=1, refused=3)


async def test_payloads_stay_as_they_are(rows: HatRows, source: Path, tmp_path: Path) -> None:
    payload = hat.EventPayloadJson("TEXT")
    event = hat.Event(hat.EventId(1, 1, 1), ("a",), hat.Timestamp(1, 0), None, payload)
    row = bytes(hat_db.db_defs[ROWS_OF.TIMESERIES_DATA].encode_value(event))
    rows.event(1, 1, 1, "a", row=row.replace(b'"TEXT"', b"\t[1]\r\n"))
    await import_store(source, tmp_path / "store")
    backend = await rocksdb.create(tmp_path / "store")
    try:
        [imported] = (await backend.query(QueryTimeseriesParams())).events
    finally:
        await backend.async_close()
    assert imported.payload == JsonPayload(msgspec.Raw(b"\t[1]\r\n"))


async def test_events_of_several_servers_from_all_places_once(
    rows: HatRows, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_EVENTS", 2)
    rows.event(2, 1, 1, "a", time=5)
    rows.event(1, 9, 1, "a", is_latest=True)
    rows.event(1, 9, 2, "b")
    rows.event(1, 9, 2, "b")
    # not in the list of events, and only in that of the latest
    rows.event(1, 8, 1, "c", has_ref=False)
    rows.event(1, 8, 3, "d", has_ref=False, is_latest=True)
    # its events are gone, but were given ids
    rows.put(ROWS_OF.SYSTEM_LAST_EVENT_ID, 4, hat.EventId(4, 77, 1))
    rows.put(ROWS_OF.SYSTEM_LAST_EVENT_ID, 1, hat.EventId(1, 12, 1))
    progress: list[tuple[int, int]] = []
    hat_import.import_database(source, tmp_path / "one", print, lambda *i: progress.append(i))
    assert progress == [(2, 3), (4, 4)]
    _, refused = await import_store(source, tmp_path / "store")
    assert refused == []
    async with await rocksdb.create(tmp_path / "store") as backend:
        found = await all_events(backend, QueryTimeseriesParams(order=Order.ASCENDING))
        assert [tuple(event.id) for event in found] == [
            (2, 1, 1), (1, 8, 1), (1, 8, 3), (1, 9, 1), (1, 9, 2)
        ]  # fmt: skip
        assert backend.high_water_mark(1) == HighWaterMark(12, Timestamp(9, 0))
        assert backend.high_water_mark(2) == HighWaterMark(1, Timestamp(5, 0))
        assert backend.high_water_mark(4) == HighWaterMark(77, None)


async def test_an_empty_database(rows: HatRows, source: Path, tmp_path: Path) -> None:
    result, _ = await import_store(source, tmp_path / "deep" / "store")
    assert result == Imported(0, 0, 0, 0)


async def test_too_many_events_that_are_not_listed(
    rows: HatRows, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_HAT_UNREFERENCED", 1)
    for instance in 1, 2:
        rows.event(1, 1, instance, "a", has_ref=False)
    rows.close()
    with (
        hat_lmdb.open_store(source) as store,
        pytest.raises(StoreDamagedError, match="more than 1 events are not in the database's own"),
    ):
        list(store.rows())


def test_another_format(rows: HatRows, source: Path, tmp_path: Path) -> None:
    rows.put(ROWS_OF.SYSTEM_SETTINGS, hat_db.SettingsId.VERSION, "0.10")
    with pytest.raises(StoreFormatError) as caught:
        hat_import.import_database(source, tmp_path / "store", print)
    assert str(caught.value) == (
        f"{source}: a hat-event database of format 0.10, this version supports only format 0.9"
    )


def nothing(path: Path) -> None:
    pass


def text(path: Path) -> None:
    path.write_text("something else " * 1000)


def another_database(path: Path) -> None:
    with (
        lmdb.open(str(path), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"a", b"b")


def cut_off(path: Path) -> None:
    made = HatRows(path)
    made.put(ROWS_OF.SYSTEM_SETTINGS, hat_db.SettingsId.VERSION, "0.9")
    for n in range(1, 100):
        made.event(1, n, 1, "a" * 500)
    made.close()
    os.truncate(path, path.stat().st_size // 4096 // 2 * 4096)


def directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (nothing, "cannot be opened: No such file or directory"),
        (directory, "a directory, expected the file of a hat-event database"),
        (text, "damaged, or not a hat-event database: "),
        (another_database, "damaged, or not a hat-event database: "),
        (cut_off, "cut off: it should have "),
    ],
)
def test_what_is_no_database(
    source: Path, tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(source)
    with pytest.raises(StorageError) as caught:
        hat_import.import_database(source, tmp_path / "store", print)
    assert str(caught.value).startswith(f"{source}: {reason}")
    assert not (tmp_path / "store").exists()


def test_a_store_that_is_there_already(rows: HatRows, source: Path, tmp_path: Path) -> None:
    rows.event(1, 1, 1, "a")
    store = tmp_path / "store"
    store.mkdir()
    hat_import.import_database(source, store, print)
    with pytest.raises(StorageError) as caught:
        hat_import.import_database(source, store, print)
    assert str(caught.value) == f"{store}: exists already, and is not empty"


async def test_an_import_that_was_killed_is_no_store(
    rows: HatRows, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_EVENTS", 1)
    for session in range(1, 6):
        rows.event(1, session, 1, "a")
    store = tmp_path / "store"

    def look(n_read: int, _: int) -> None:
        shutil.copytree(tmp_path / "store.partial", tmp_path / f"killed{n_read}")

    hat_import.import_database(source, store, print, look)
    assert (tmp_path / "killed5").exists()
    for killed in tmp_path.glob("killed*"):  # noqa: ASYNC240
        text = f"{killed}: an import into this event store was interrupted: "
        with pytest.raises(StoreDamagedError, match=re.escape(text)):
            await rocksdb.create(killed)
        with (
            pytest.raises(StoreDamagedError, match=re.escape(text)),
            control.open_read_only(killed),
        ):
            pass
    async with await rocksdb.create(store) as backend:
        assert len(await all_events(backend, QueryTimeseriesParams())) == 5


def test_a_place_within_a_store(rows: HatRows, source: Path, tmp_path: Path) -> None:
    rows.event(1, 1, 1, "a")
    store = tmp_path / "store"
    hat_import.import_database(source, store, print)
    with pytest.raises(StorageError, match="x: is in the event store"):
        hat_import.import_database(source, store / "x", print)


def page_ends(whole: bytes) -> dict[int, int]:
    """Where the list of entries of each page ends that it begins with, by the page's offset."""
    begins = range(0, len(whole), PAGE)
    return {i: int.from_bytes(whole[i + 12 : i + 14], "little") for i in begins}


def fill(rows: HatRows, source: Path) -> bytes:
    for session in range(1, 121):
        rows.event(1, session, 1, "a")
    rows.close()
    return source.read_bytes()


def test_a_page_of_zeros_is_told_as_what_it_is(rows: HatRows, source: Path, tmp_path: Path) -> None:
    """LMDB ends the process that meets one in some places, and says so in others."""
    whole = fill(rows, source)
    ends = page_ends(whole)
    fullest = sorted(ends, key=lambda i: ends[i])[-3:]  # lists of events, read page by page
    said: list[str] = []
    for begin in fullest:
        source.write_bytes(whole[:begin] + bytes(PAGE) + whole[begin + PAGE :])
        try:
            hat_import.import_database(source, tmp_path / f"store{begin}", print)
        except StoreDamagedError as e:
            said.append(str(e))
            assert not list(tmp_path.glob(f"store{begin}*"))
    assert all(i.startswith(f"{source}: damaged, or not a hat-event database: ") for i in said)
    assert any(i.endswith("the process that read it was ended by SIGABRT") for i in said), said


def test_a_page_that_comes_twice(rows: HatRows, source: Path, tmp_path: Path) -> None:
    whole = fill(rows, source)
    first, second = (begin for begin, end in page_ends(whole).items() if end == 16 + 2 * 50)
    page = whole[second : second + PAGE]
    source.write_bytes(whole[:first] + page + whole[first + PAGE :])
    with pytest.raises(StoreDamagedError, match="damaged: events are not in order"):
        hat_import.import_database(source, tmp_path / "store", print)
    assert not list(tmp_path.glob("store*"))
