"""One moment of the store: queries and the steps of retention read from it.

A commit is atomic over all column families. A snapshot takes all families at the same moment, so
that the rows to which its keys lead exist in it, whatever is written or deleted meanwhile. Sessions
that are not durable, or not known to be, at that moment are hidden (``Database.undecided``), and so
is an unfinished one (``contents``). As every use of the database it happens inside
``Store.in_use``.

It takes about 5 us; while it is kept, RocksDB cannot reclaim what was deleted after it. It may be
used from any thread.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

from rocksdict import Rdict, RdictIter, ReadOptions

from eventer_bridge import packed
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.readers import Pacer
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.database import StorageErrors, explain
from eventer_bridge.backends.rocksdb.keys import ORIGIN_BYTES, SessionBlock, TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.lifecycle import Database
from eventer_bridge.errors import StorageError, StoreDamagedError
from eventer_bridge.model import EventId

READ_FAMILIES: Final = ("event", "source", "session", "server")
"""Column families that queries read."""

RowsRead: TypeAlias = tuple[list[Row], int]
"""Rows of ``event`` that were read in a step, and the bytes of their values."""

Condition: TypeAlias = Callable[[bytes], bool]
"""Whether an event is wanted, by its value."""

_PASS_FEW: Final = ReadOptions()
_PASS_FEW.set_max_skippable_internal_keys(store_limits.MAX_PASSED_ROWS)

_NOT_FOUND: Final = "key not found"
"""All that rocksdict says where there is no such key."""

_TOO_MUCH_DELETED: Final = "Result incomplete"
"""What RocksDB says where it would pass over more than it may."""


def _read_in_python(
    iterator: RdictIter,
    start: bytes,
    stop: bytes,
    *,
    descending: bool,
    max_rows: int,
    max_bytes: int,
    seconds: float,
) -> tuple[list[Row], int, bool]:
    """As ``packed.read_rows``."""
    get_key, get_value = iterator.key, iterator.value
    move = iterator.prev if descending else iterator.next
    rows: list[Row] = []
    n_bytes = 0
    end_s = time.perf_counter() + seconds
    while len(rows) < max_rows and n_bytes <= max_bytes:
        if rows and time.perf_counter() >= end_s:
            break
        key: bytes | None = get_key()
        if key is None or not start <= key < stop:
            return rows, n_bytes, True
        value: bytes = get_value()
        rows.append((key, value))
        n_bytes += len(value)
        move()
    return rows, n_bytes, False


_read_rows: Final = packed.read_rows if packed.IS_COMPILED else _read_in_python


class Snapshot:
    """See the module. Created by ``Store.snapshot``. ``hidden`` are keys of hidden sessions.

    Args:
        database, db, families: whose moment, and as RocksDB has them.
        pause: to be called in long reads, between steps of some 0.1 ms; raises to end them. None:
            it yields, as long as the store can be used.
        is_all_seen: include undecided sessions.
        read: families of :data:`READ_FAMILIES` to read. If it is one, values found by :meth:`value`
            may be newer.
    """

    __slots__ = (
        "_database",
        "_db",
        "_event",
        "_families",
        "_finder",
        "_iterators",
        "hidden",
        "pause",
    )

    def __init__(
        self,
        database: Database,
        db: Rdict,
        families: dict[str, Rdict],
        pause: Callable[[], None] | None = None,
        *,
        is_all_seen: bool = False,
        read: Sequence[str] = READ_FAMILIES,
    ) -> None:
        self._database = database
        self.pause = Pacer(database.check_usable).pause if pause is None else pause
        with database.errors():
            while True:
                moment = db.latest_sequence_number()
                # an iterator of one family is of one moment, too
                self._families: Mapping[str, Any] = families
                if len(read) > 1:
                    self._families = {name: families[name].snapshot() for name in read}
                # rocksdict's iterators see the moment when they are made, not the snapshot's
                self._iterators = {name: self._families[name].iter() for name in read}
                if "server" in read:
                    self._finder = self._families["server"].iter(_PASS_FEW)
                unfinished: bytes | None = db.get(keys.UNFINISHED_KEY)
                if db.latest_sequence_number() == moment:
                    break
        # after the moment: what became durable since then may be seen
        self.hidden: AbstractSet[bytes] = frozenset() if is_all_seen else database.undecided
        if unfinished is not None:
            self.hidden = self.hidden | {unfinished[: keys.SESSION_KEY_BYTES]}
        self._event: Any = self._families["event"]

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self._database.path

    def errors(self) -> StorageErrors:
        """Turn what RocksDB raises (bare exceptions) into ``StorageError``."""
        return self._database.errors()

    def iterator(self, family: str) -> RdictIter:
        """The shared iterator of one of :data:`READ_FAMILIES`."""
        return self._iterators[family]

    def in_order_until(self, type_id: TypeId) -> bytes:
        """Position of the last event of a type that may be in order; empty where none is.

        The current position is right for the moment: later rows are not seen.
        """
        return self._database.in_order_ends.get(type_id, keys.KEY_MAX)

    def hides(self, key: bytes) -> bool:
        """Whether a row of ``event`` or ``source`` is not to be seen, by its key."""
        return bool(self.hidden) and keys.session_of(key) in self.hidden

    def event_rows(
        self,
        start: bytes,
        stop: bytes,
        *,
        descending: bool,
        limit: int,
        conditions: Sequence[Condition] = (),
    ) -> Iterator[RowsRead]:
        """Rows of ``event`` from ``start`` up to, but without ``stop``, in order.

        A few at a time, key and value in one pass, which spares a seek for each value. The iterator
        of ``event`` must not be moved meanwhile. Rows are left out unless all ``conditions`` hold
        of their values; then a few more than ``limit`` may come. Raises ``StorageError``, and
        ``ClosedError`` if the store is about to close.
        """
        iterator = self._iterators["event"]
        if descending:
            iterator.seek_for_prev(stop)
            if iterator.key() == stop:
                iterator.prev()
        else:
            iterator.seek(start)
        is_filtered = bool(self.hidden or conditions)
        is_end = False
        while limit > 0 and not is_end:
            self.pause()
            rows, n_bytes, is_end = _read_rows(
                iterator,
                start,
                stop,
                descending=descending,
                max_rows=store_limits.STEP_ROWS if is_filtered else limit,
                max_bytes=store_limits.STEP_BYTES,
                seconds=store_limits.STEP_S,
            )
            if is_end and not iterator.valid():
                with self.errors():
                    iterator.status()  # raises if it is not the end, but a failure
            if is_filtered:
                if self.hidden:
                    rows = [row for row in rows if not self.hides(row[0])]
                for condition in conditions:
                    rows = [row for row in rows if condition(row[1])]
                n_bytes = sum(len(value) for _, value in rows)
            limit -= len(rows)
            yield rows, n_bytes

    def rows_of(
        self, event_keys: Iterable[bytes], value_of: Callable[[bytes], bytes] | None = None
    ) -> Iterator[RowsRead]:
        """Rows of ``event`` with these keys, a few at a time; raises as :meth:`event_rows`.

        ``value_of`` returns the value of the key that was taken last; None: :meth:`value`.
        """
        value_of = value_of or self.value
        rows: list[Row] = []
        n_bytes = 0
        self.pause()
        for key in event_keys:
            value = value_of(key)
            rows.append((key, value))
            n_bytes += len(value)
            del value
            if len(rows) == store_limits.STEP_ROWS or n_bytes > store_limits.STEP_BYTES:
                yield rows, n_bytes
                self.pause()
                rows, n_bytes = [], 0
        yield rows, n_bytes

    def rows_at(self, event_keys: Sequence[bytes]) -> Iterator[RowsRead]:
        """As :meth:`rows_of`, in half the time if many keys are of the same types."""
        ahead: dict[bytes, bytes] = {}

        def value_of(key: bytes) -> bytes:
            return ahead.pop(key, None) or self.value(key)

        for begin in range(0, len(event_keys), store_limits.AHEAD_ROWS):
            some = event_keys[begin : begin + store_limits.AHEAD_ROWS]
            ahead = self._read_ahead(some)
            yield from self.rows_of(some, value_of)

    def _read_ahead(self, event_keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Values of events that lie side by side in the store."""
        iterator = self._iterators["event"]
        get_key, get_value, move = iterator.key, iterator.value, iterator.next
        values: dict[bytes, bytes] = {}
        n_bytes = 0
        for _, of_type in groupby(sorted(event_keys), itemgetter(slice(keys.TYPE_BYTES))):
            run = list(of_type)
            if len(run) < store_limits.RUN_ROWS:
                continue
            self.pause()
            iterator.seek(run[0])
            for number, key in enumerate(run, 1):
                # else others lie between, or it failed, which a look-up will say
                if get_key() != key or n_bytes > store_limits.AHEAD_BYTES:
                    break
                values[key] = value = get_value()
                n_bytes += len(value)
                if number < len(run):  # behind the last there may be much that is deleted
                    move()
                if number % store_limits.STEP_ROWS == 0:
                    self.pause()
        return values

    def value(self, key: bytes) -> bytes:
        """Value of an event that exists, by its key; ``StoreDamagedError``: it is missing."""
        try:  # not errors(): this is called for every row
            value: bytes = self._event[key]
        except Exception as e:
            raise self._explain(e, key) from None
        return value

    def block(self, key: bytes) -> SessionBlock:
        """A block of sessions that exists, by its key; raises as :meth:`value`."""
        return SessionBlock(key, self._row("session", key))

    def known_block(self, server_key: bytes) -> SessionBlock:
        """A block that ``server`` has; empty where a damaged store lacks its row."""
        key = self.timestamp(server_key) + server_key
        try:
            return self.block(key)
        except StoreDamagedError:
            return SessionBlock(key, b"")

    def last_block(self, server: bytes) -> SessionBlock | None:
        """As :meth:`known_block`, the last one of a server; None: it has none."""
        last = self.seek_last(self.iterator("server"), server)
        return None if last is None else self.known_block(last)

    def timestamp(self, server_key: bytes) -> bytes:
        """Timestamp of a block that exists; raises as :meth:`value`."""
        return self._row("server", server_key)

    def _row(self, family: str, key: bytes) -> bytes:
        try:
            value: bytes = self._families[family][key]
        except Exception as e:
            raise self._explain(e, key) from None
        return value

    def find(self, event_id: EventId) -> bytes | None:
        """Key in ``event`` of the event with this id; None where there is none."""
        return next(self.find_all((event_id,)), None)

    def find_all(self, event_ids: Iterable[EventId]) -> Iterator[bytes]:
        """Keys in ``event`` of the events with these ids, if there are any; in no order.

        Looks up and reads each block once, whatever the order of the ids.
        """
        encoded: set[bytes] = set()
        for event_id in event_ids:
            self.pause()
            encoded.add(keys.encode_id(event_id))
        begin, block = keys.KEY_MAX, SessionBlock(b"", b"")
        for server_and_local_id in sorted(encoded, reverse=True):  # 1 ms for as many as are allowed
            self.pause()
            server_key = server_and_local_id[: keys.SERVER_KEY_BYTES]
            local_id = server_and_local_id[keys.INT_BYTES :]
            if server_key < begin:
                begin, block = self._look_up(server_key)
            if (type_id := block.find(local_id)) is not None:
                yield type_id + block.origin + local_id

    def _look_up(self, server_key: bytes) -> tuple[bytes, SessionBlock]:
        """Where the block begins that may have a session, and the block; without hidden entries."""
        key = self.find_block(server_key)
        if key is None:
            return server_key, SessionBlock(b"", b"")
        block = SessionBlock(key, b"") if key in self.hidden else self.block(key)
        return block.server_key, block

    def find_session(self, server: int, session: int) -> bytes | None:
        """Key of a session; None: nothing of it is stored."""
        encoded = keys.encode_int(session)
        block_key = self.find_block(keys.encode_int(server) + encoded)
        if block_key is None or not self.block(block_key).has_session(encoded):
            return None
        return block_key[:ORIGIN_BYTES] + encoded

    def find_block(self, server_key: bytes) -> bytes | None:
        """Key of the block that has a session (server and session, encoded), if it is stored.

        That is the last block of the server that does not begin behind the session; None where so
        much lies in between that was deleted that it cannot have the session.
        """
        iterator = self._finder
        iterator.seek_for_prev(server_key)
        key: bytes | None = iterator.key()
        if key is None:
            try:
                iterator.status()
            except Exception as e:
                if not str(e).startswith(_TOO_MUCH_DELETED):
                    raise self._explain(e, server_key) from None
            return None
        if key[: keys.INT_BYTES] != server_key[: keys.INT_BYTES]:
            return None
        timestamp: bytes = iterator.value()
        return timestamp + key

    def seek_last(self, iterator: RdictIter, prefix: bytes) -> bytes | None:
        """Move to the last key that begins with ``prefix``, and return it if there is one."""
        before = prefix + keys.KEY_MAX
        while True:
            iterator.seek_for_prev(before)
            if not iterator.valid():
                with self.errors():
                    iterator.status()
                return None
            key: bytes = iterator.key()
            if not key.startswith(prefix):
                return None
            if not self.hides(key):
                return key
            self.pause()
            before = key[: -keys.INT_BYTES]  # in ``event``, those of a session follow each other

    def next_value(self, iterator: RdictIter, key: bytes) -> bytes:
        """Value of a row that exists, in ascending order of keys; moves to the row after it.

        A row that the iterator is at already costs a tenth of a look-up. Raises as :meth:`value`.
        """
        if not (iterator.valid() and iterator.key() == key):
            iterator.seek(key)
            if not (iterator.valid() and iterator.key() == key):
                with self.errors():
                    iterator.status()
                raise self.damaged(key)
        value: bytes = iterator.value()
        iterator.next()
        return value

    def rows(self, family: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows of a family whose keys begin with ``prefix``, in order."""
        iterator = self.iterator(family)
        iterator.seek(prefix)
        while iterator.valid() and (key := iterator.key()).startswith(prefix):
            if not self.hides(key):
                yield key, iterator.value()
            iterator.next()
        with self.errors():
            iterator.status()

    def _explain(self, error: Exception, key: bytes) -> StorageError:
        if str(error) == _NOT_FOUND:
            return self.damaged(key)
        return explain(self.path, "read failed", error)

    def damaged(self, key: bytes) -> StorageError:
        """The error for a missing row."""
        return StoreDamagedError(
            f"{self.path}: the event store is damaged: no row {key.hex()}, but an index has it"
        )
