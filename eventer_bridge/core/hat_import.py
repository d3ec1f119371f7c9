"""Importing the LMDB database of a hat-event server into a new store.

Events keep their ids, timestamps, source timestamps and payloads. Runs on a thread that
may block; memory does not depend on the size of the database.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends import hat_lmdb
from eventer_bridge.backends.base import find_type
from eventer_bridge.backends.hat_lmdb import HatDatabase, Unreadable
from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.contents import FORMAT, IMPORTING
from eventer_bridge.backends.rocksdb.keys import FORMAT_KEY, TypeId
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.core.validation import check_payload, check_type
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import INT64_MAX, Event, Timestamp
from eventer_bridge.packed import TypeTable, stored_batch
from eventer_bridge.slices import at_once


class ImportRefusal(NamedTuple):
    """An event (server, session, instance) that could not be imported, and why."""

    id: tuple[int, int, int]
    reason: str

    @override
    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.id))}: {self.reason}"


class Imported(NamedTuple):
    """What an import did: numbers of events, sessions and types, and of events left out."""

    events: int
    sessions: int
    event_types: int
    refused: int


def import_database(
    hat_path: Path,
    store_path: Path,
    on_refusal: Callable[[ImportRefusal], None],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Imported:
    """Import a database, which is not changed, to where nothing is yet, or an empty directory.

    ``on_refusal`` is called for each event that cannot be stored, ``on_progress`` now and then,
    with the number of events that were read, and of all. ``StorageError``: the database cannot be
    read, or the store not be written; nothing is left of it then.
    """
    with hat_lmdb.open_database(hat_path) as hat, directories.new_directory(store_path) as path:
        store = Store(path)
        try:
            return _Import(hat, store, on_refusal, on_progress).run()
        finally:
            store.ext_close()


class _Import:
    def __init__(
        self,
        hat: HatDatabase,
        store: Store,
        on_refusal: Callable[[ImportRefusal], None],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._hat = hat
        self._store = store
        self._on_refusal = on_refusal
        self._on_progress = on_progress
        self._types = TypeRegistry(())
        self._new_types: list[tuple[TypeId, bytes]] = []
        find = partial(find_type, lambda text: None)
        self._table = TypeTable(find, limits.CACHE_BYTES, self._types.ids, self._types.ids)
        self._commit = Commit()
        self._commit_bytes = 0
        self._marks = {
            server: session
            for server, session in hat.last_sessions.items()
            if server <= INT64_MAX and session <= INT64_MAX
        }
        self._n_events = self._n_sessions = self._n_refused = 0

    def run(self) -> Imported:
        self._commit.batch.put(FORMAT_KEY, IMPORTING)
        self._write()
        self._store.ext_sync()  # killed from now on, it is no store
        last = (0, Timestamp(0, 0))  # server, timestamp
        for (server, session), events in groupby(self._read(), _session_of):
            earliest = last[1] if last[0] == server else None
            stored = self._stage(events, earliest)
            if stored is not None:
                last = (server, stored)
                self._marks[server] = max(session, self._marks.get(server, 0))
        for server, mark in self._marks.items():
            self._store.stage_reservation(self._commit, server, mark)
        self._commit.batch.put(FORMAT_KEY, str(FORMAT).encode())
        self._write()
        self._store.ext_sync()
        return Imported(self._n_events, self._n_sessions, len(self._types), self._n_refused)

    def _read(self) -> Iterator[Event]:
        """The events that can be stored, in order."""
        n_total = self._hat.n_events
        for n_read, event in enumerate(self._hat.events(), 1):
            if n_read % limits.MAX_GROUP_EVENTS == 0:
                self._on_progress(n_read, max(n_read, n_total))
            if isinstance(event, Unreadable):
                self._refuse(ImportRefusal(*event))
                continue
            try:
                check_type(event.type)
                check_payload(event.payload)
                at_once(self._types.intern([(0, event.type)], self._new_types))
            except EventerBridgeError as e:
                self._refuse(_refusal(event, str(e)))
                continue
            yield event

    def _stage(self, events: Iterator[Event], earliest: Timestamp | None) -> Timestamp | None:
        """Add the events of a session; what the next ones may not precede, if any is added."""
        session: list[Event] = []
        for event in events:
            if earliest is not None and event.timestamp < earliest:
                self._refuse(_refusal(event, "its timestamp is before that of an earlier session"))
            elif session and event.timestamp != session[0].timestamp:
                self._refuse(_refusal(event, "its timestamp is not that of its session"))
            else:
                session.append(event)
                self._commit_bytes += 0 if event.payload is None else len(event.payload.data)
        if not session:
            return None
        self._n_events += len(session)
        self._n_sessions += 1
        self._store.stage_types(self._commit, self._new_types)
        self._store.stage(self._commit, [stored_batch(session, self._table)], self._types.ids)
        self._new_types.clear()
        is_large = self._commit_bytes > limits.IMPORT_COMMIT_BYTES
        if is_large or self._commit.n_events > limits.MAX_GROUP_EVENTS:
            self._write()
        return session[0].timestamp

    def _write(self) -> None:
        self._store.write(self._commit)
        self._commit = Commit()
        self._commit_bytes = 0

    def _refuse(self, refusal: ImportRefusal) -> None:
        self._n_refused += 1
        self._on_refusal(refusal)


def _session_of(event: Event) -> tuple[int, int]:
    return event.id.server, event.id.session


def _refusal(event: Event, reason: str) -> ImportRefusal:
    return ImportRefusal((event.id.server, event.id.session, event.id.instance), reason)
