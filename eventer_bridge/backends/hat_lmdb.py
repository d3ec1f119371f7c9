"""Reading the LMDB database of a hat-event server (format 0.9), without changing it.

The file has nine databases; keys are big-endian, so that their order is that of their values. Used
here are::

    SYSTEM_SETTINGS        0 (8)                                  → JSON: the format's version
    SYSTEM_LAST_EVENT_ID   server (8)                             → event id (24)
    REF                    event id (24)                          → references to the event:
                                                                    4 · key in LATEST_DATA
                                                                    6 · key in TIMESERIES_DATA
    LATEST_DATA            number (8)                             → event
    TIMESERIES_DATA        partition (8) · timestamp (12) · event id (24)  → event

An event is the SBS record ``HatEventer.Event`` (001). Every stored event is in REF; one in several
partitions, or in the latest events as well, is stored in each of them.

LMDB trusts its pages: on a damaged one it aborts, or reads invalid memory. So a subprocess reads
(``python -m eventer_bridge.backends.hat_lmdb PATH``), and its end is reported as damage. It writes
messages to its standard output: a length (8 bytes, big-endian), and as many bytes of MessagePack.
The first is an :class:`OpenedDatabase`, each later one a list of rows, and an empty one is the end.
A :class:`Failed` in place of any of them is the last one.

Runs on a thread that may block.
"""

import contextlib
import heapq
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Any, Final, NamedTuple

import lmdb
import msgspec

from eventer_bridge import limits, payloads
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.errors import StorageError, StoreDamagedError, StoreFormatError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Payload,
    Timestamp,
)

VERSION: Final = "0.9"
"""The supported format; hat-event writes it since 0.9."""

_DATABASES: Final = 9
_LATEST: Final = 4
_TIMESERIES: Final = 6
_REFERRED: Final = {_LATEST: ("LATEST_DATA", 8), _TIMESERIES: ("TIMESERIES_DATA", 44)}
_ID: Final = Struct(">QQQ")


_DAMAGED: Final = (
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
)

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Row(NamedTuple):
    """A stored event: its id, and its data for :func:`decode_event`, if there are any."""

    id: tuple[int, int, int]
    data: bytes | None


class Unreadable(NamedTuple):
    """An event that cannot be read, and why."""

    id: tuple[int, int, int]
    reason: str


@contextlib.contextmanager
def open_store(path: Path) -> Iterator["HatStore"]:
    """Open a database to read its current contents.

    A hat-event server may have it open, if its lock file exists and this process may write to it.
    Raises ``StoreFormatError`` (not supported), ``StoreDamagedError`` (damaged, or not a hat-event
    database) or ``StorageError``.
    """
    lock = path.with_name(f"{path.name}-lock")
    if path.is_dir():
        raise StorageError(f"{path}: a directory, expected the file of a hat-event database")
    with contextlib.ExitStack() as stack:
        with _errors(path):
            environment = stack.enter_context(
                lmdb.open(
                    str(path),
                    map_size=path.stat().st_size,
                    subdir=False,
                    readonly=True,
                    lock=os.access(lock, os.W_OK),  # else LMDB would create it
                    max_dbs=_DATABASES,
                )
            )
            used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if path.stat().st_size < used:  # reading after its end would kill the process
                raise StoreDamagedError(f"{path}: cut off: it should have {used} bytes")
            transaction = stack.enter_context(environment.begin())
            store = HatStore(path, environment, transaction)
        store.check_version()
        yield store


class HatStore:
    """A database, read in this process. Created by :func:`open_store`."""

    def __init__(self, path: Path, environment: Any, transaction: Any) -> None:
        self.path = path
        self._transaction = transaction
        self._databases = {
            name: environment.open_db(name.encode(), txn=transaction, create=False)
            for name in (
                "SYSTEM_SETTINGS",
                "SYSTEM_LAST_EVENT_ID",
                "REF",
                "LATEST_DATA",
                "TIMESERIES_DATA",
            )
        }

    def check_version(self) -> None:
        """Refuse unsupported formats, by ``StoreFormatError``."""
        settings = dict(self._rows("SYSTEM_SETTINGS"))
        version = settings.get(bytes(8), b"none").decode(errors="replace").strip('"')
        if version != VERSION:
            raise StoreFormatError(
                f"{self.path}: a hat-event database of format {version},"
                f" this version supports only format {VERSION}"
            )

    def last_sessions(self) -> dict[int, int]:
        """The greatest allocated session id by server; its events may be deleted."""
        found: dict[int, int] = {}
        for _, value in self._rows("SYSTEM_LAST_EVENT_ID"):
            if len(value) == _ID.size:
                server, session, _ = _ID.unpack(value)
                found[server] = session
        return found

    def n_events(self) -> int:
        """Number of events in REF."""
        n_events: int = self._transaction.stat(self._databases["REF"])["entries"]
        return n_events

    def rows(self) -> Iterator[Row]:
        """Every stored event once, ordered by server, session and instance."""
        lost = sorted(self._without_ref().items())
        for key, refs in heapq.merge(self._rows("REF"), lost):
            if len(key) != _ID.size:
                raise StoreDamagedError(f"{self.path}: {key.hex()} is not an event id")
            yield Row(_ID.unpack(key), self._resolve(refs))

    def _resolve(self, refs: bytes) -> bytes | None:
        """The event at the first valid reference; None: there is none."""
        while refs and refs[0] in _REFERRED:
            name, size = _REFERRED[refs[0]]
            data = self._get(name, refs[1 : 1 + size])
            if data is not None:
                return data
            refs = refs[1 + size :]
        return None

    def _without_ref(self) -> dict[bytes, bytes]:
        """References to stored events that are not in REF, by id."""
        found: dict[bytes, bytes] = {}
        for kind, (name, _) in _REFERRED.items():
            for key, data in self._rows(name):
                event_id = _read_id(data) if kind == _LATEST else key[-_ID.size :]
                if event_id and event_id not in found and self._get("REF", event_id) is None:
                    found[event_id] = bytes((kind,)) + key
                    if len(found) > limits.MAX_HAT_UNREFERENCED:
                        raise StoreDamagedError(
                            f"{self.path}: more than {limits.MAX_HAT_UNREFERENCED} events are"
                            " not in the database's own list of events"
                        )
        return found

    def _get(self, name: str, key: bytes) -> bytes | None:
        with _errors(self.path):
            data: bytes | None = self._transaction.get(key, db=self._databases[name])
        return data

    def _rows(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        with _errors(self.path), self._transaction.cursor(self._databases[name]) as cursor:
            yield from cursor


def decode_row(row: Row) -> Event | Unreadable:
    """The event of a row."""
    event_id, data = row
    if data is None:
        return Unreadable(event_id, "only its id is there")
    try:
        event = decode_event(data)
    except ValueError as e:
        return Unreadable(event_id, str(e))
    if (event.id.server, event.id.session, event.id.instance) == event_id:
        return event
    return Unreadable(event_id, "another event is in its place")


def decode_event(data: bytes) -> Event:
    """An event, from the record ``HatEventer.Event`` (001); ``ValueError`` says what is wrong."""
    reader = _Reader(data)
    try:
        event_id = EventId(reader.int64(), reader.int64(), reader.int64())
        event_type = tuple([reader.text() for _ in range(reader.size())])
        timestamp = reader.timestamp()
        source_timestamp = reader.timestamp() if reader.choice(2) else None
        payload = reader.payload() if reader.choice(2) else None
    except IndexError:
        raise ValueError("its row is cut off") from None
    if reader.n_left:
        raise ValueError("its row continues after the event")
    return Event(event_id, event_type, timestamp, source_timestamp, payload)


class _Reader:
    """Reads successive values of SBS.

    An integer is in base 128, most significant digit first; bit 7 marks the last byte, bit 6 of the
    first one is the sign. Texts, bytes and arrays begin with their size, choices and optional
    values with an index.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def n_left(self) -> int:
        return len(self._data) - self._position

    def int64(self) -> int:
        first = self._data[self._position]
        value = -1 if first & 0x40 else 0
        is_last = False
        while not is_last:
            byte = self._data[self._position]
            self._position += 1
            is_last = bool(byte & 0x80)
            value = value << 7 | byte & 0x7F
            if not INT64_MIN <= value <= INT64_MAX:
                raise ValueError("one of its integers has more than 64 bits")
        return value

    def size(self) -> int:
        value = self.int64()
        if not 0 <= value <= self.n_left:
            raise IndexError
        return value

    def choice(self, n_choices: int) -> int:
        value = self.int64()
        if not 0 <= value < n_choices:
            raise ValueError("its row is not an event")
        return value

    def data(self) -> bytes:
        n_bytes = self.size()
        begin = self._position
        self._position += n_bytes
        return self._data[begin : self._position]

    def text(self) -> str:
        return self.data().decode()

    def timestamp(self) -> Timestamp:
        return Timestamp.checked(self.int64(), self.int64())

    def payload(self) -> Payload:
        if self.choice(2) == 0:
            return BinaryPayload(self.text(), self.data())
        data = self.data()
        data.decode()
        if payloads.is_too_deep(data):
            raise ValueError("its payload is nested too deeply")
        try:
            _check_json(data)
        except msgspec.DecodeError as e:
            raise ValueError(f"its payload is not readable JSON: {e}") from e
        return JsonPayload(msgspec.Raw(data))


def _read_id(data: bytes) -> bytes | None:
    """Id of an event, encoded as in REF; None: it cannot be read."""
    try:
        event_id = decode_event(data).id
        return _ID.pack(event_id.server, event_id.session, event_id.instance)
    except (ValueError, StructError):
        return None


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Convert exceptions of LMDB to ``StorageError``."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{path}: cannot be opened: {e.strerror}") from e
    except _DAMAGED as e:
        raise StoreDamagedError(f"{path}: damaged, or not a hat-event database: {e}") from e
    except lmdb.Error as e:
        raise StorageError(f"{path}: cannot be read: {e}") from e


LENGTH_BYTES: Final = 8  # of the length before a message


class OpenedDatabase(msgspec.Struct, tag=True):
    """The database was opened; see :class:`HatStore` for its attributes."""

    n_events: int
    last_sessions: dict[int, int]


class Failed(msgspec.Struct, tag=True):
    """The database cannot be read: name of the error, a :class:`StorageError`, and its text."""

    kind: str
    text: str


def main() -> None:
    """Read the database."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # LMDB may abort: no core dump
    try:
        with open_store(Path(sys.argv[1])) as store:
            _write(OpenedDatabase(store.n_events(), store.last_sessions()))
            for rows in _batches(store):
                _write(rows)
            _write(None)
    except StorageError as e:
        _write(Failed(type(e).__name__, str(e)))


def _batches(store: HatStore) -> Iterator[list[Row]]:
    batch: list[Row] = []
    n_bytes = 0
    for row in store.rows():
        batch.append(row)
        n_bytes += len(row.data or b"")
        if len(batch) == store_limits.SENT_ROWS or n_bytes > store_limits.SENT_BYTES:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


def _write(message: Any) -> None:
    data = b"" if message is None else msgspec.msgpack.encode(message)
    sys.stdout.buffer.write(len(data).to_bytes(LENGTH_BYTES) + data)
    sys.stdout.buffer.flush()


_MODULE: Final = "eventer_bridge.backends.hat_lmdb"

_ERRORS: Final = {i.__name__: i for i in (StorageError, StoreDamagedError, StoreFormatError)}

_decode_opening: Final = msgspec.msgpack.Decoder(OpenedDatabase | Failed).decode
_decode_rows: Final = msgspec.msgpack.Decoder(list[Row] | Failed).decode


@contextlib.contextmanager
def open_database(path: Path) -> Iterator["HatDatabase"]:
    """Open a database through a subprocess; raises as :func:`open_store`."""
    # the same modules can be imported as here, and none from the current directory
    modules = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    with subprocess.Popen(  # noqa: S603 (the operator's own path is all that is part of it)
        [sys.executable, "-m", _MODULE, str(path.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": modules},
    ) as process:
        try:
            yield HatDatabase(path, process)
        finally:
            process.kill()


class HatDatabase:
    """A database, read through a subprocess. Created by :func:`open_database`."""

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self._path = path
        self._process = process
        opened = _decode_opening(self._receive())
        if isinstance(opened, Failed):
            raise _ERRORS[opened.kind](opened.text)
        self.n_events = opened.n_events
        self.last_sessions = opened.last_sessions

    def events(self) -> Iterator[Event | Unreadable]:
        """Every event once, ordered by server, session and instance; may raise ``StorageError``."""
        last: tuple[int, ...] = ()
        while message := self._receive():
            rows = _decode_rows(message)
            if isinstance(rows, Failed):
                raise _ERRORS[rows.kind](rows.text)
            for row in rows:
                if row.id <= last:  # damaged pages can form a cycle
                    raise StoreDamagedError(f"{self._path}: damaged: events are not in order")
                last = row.id
                yield decode_row(row)

    def _receive(self) -> bytes:
        """The next message; empty at the end."""
        head = self._read(LENGTH_BYTES)
        return self._read(int.from_bytes(head))

    def _read(self, n_bytes: int) -> bytes:
        pipe: Any = self._process.stdout
        data: bytes = pipe.read(n_bytes)
        if len(data) < n_bytes:
            code = self._process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            raise StoreDamagedError(
                f"{self._path}: damaged, or not a hat-event database: the process that read it"
                f" was ended {how}"
            )
        return data


if __name__ == "__main__":
    main()
