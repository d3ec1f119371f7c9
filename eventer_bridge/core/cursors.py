"""Cursors: how far clients acknowledged what they were sent, kept by the server.

A cursor belongs to a client name and has a name of its own. A client that connects with it goes on
behind what it acknowledged. One connection has it at a time: the newest takes it over. Of those
that one process made, that is the last one that it made, whichever comes last.

Its positions are of the histories that the events of each server had (``history``).

Events that a client cannot deal with are parked: the cursor goes on, and people look at them, and
have them redelivered or dropped.

Everything is kept in rows of the backend (``backends.reader_rows``), which are written with other
commits, some ``limits.CURSOR_PERIOD_S`` later: after a crash, events that were acknowledged last
are sent again.
A cursor itself is kept in memory, an event that is parked is not. In a group, the server tells the
others of what changed (:meth:`Cursors.to_tell`), and takes over what they tell. How often a cursor
was reset or deleted says what is newer, so the number of one that was deleted is kept.

Runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Final, NamedTuple, Protocol, TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.history import Departure, History
from eventer_bridge.backends.reader_rows import (
    CURSOR_PREFIX,
    PARKED_PREFIX,
    CursorRow,
    ParkedRow,
    cursor_key,
    decode_cursor,
    decode_id,
    decode_parked,
    encode_id,
    encode_row,
    parked_prefix,
)
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.group_events import ToldCursor, ToldParked
from eventer_bridge.errors import (
    ControlError,
    EventerBridgeError,
    InitError,
    LimitError,
    RemoteProtocolError,
    StoreDamagedError,
)
from eventer_bridge.model import INT64_MAX, INT64_MIN, EventId, QueryServerParams, Timestamp
from eventer_bridge.subscription import EVERYTHING, Subscription

mlog = logging.getLogger(__name__)

_FEW_IDS: Final = 64
"""Rows that are looked up one by one, in some 20 us each; all of a cursor take 5 ms at most."""


_Names: TypeAlias = tuple[str, str]
"""Of a client, and of a cursor of it."""


class CursorCore(Protocol):
    """See ``EventCore``."""

    @property
    def histories(self) -> Mapping[int, History]:
        """Of the servers whose events are stored."""

    def departure(self, seen: EventId, followed: str | None) -> Departure | None:
        """Where what was seen departs from what is stored."""


class Attempt(NamedTuple):
    """A connection of a process.

    Attributes:
        reader: name of the process.
        number: later connections of it have greater ones.
    """

    reader: str
    number: int


class CursorHolder(Protocol):
    """The connection that has a cursor, ``Replay``."""

    def on_cursor_lost(self, reason: str) -> None:
        """It has it no more."""

    def redeliver(self) -> None:
        """There are events to be redelivered."""


class Cursor:
    """One cursor.

    Attributes:
        client: name of the client.
        name: of the cursor.
        row: as it is kept.
        seen: the last event that was acknowledged, by server.
        holder: the connection that has it.
        n_parked: events of it that are parked.
        lag_events: events behind, at most ``limits.MAX_LAG_EVENTS``.
        lag_s: age of the oldest of them, in seconds.
        oldest: timestamp from which on events may be behind; None: it is not known.
        told: ``seen`` as other servers were told; None: they were not.
        checking: held while the store is asked for events that are to be parked.
    """

    def __init__(self, client: str, name: str, row: CursorRow) -> None:
        self.client = client
        self.name = name
        self.row = row
        self.seen = {i.server: i for i in row.seen}
        self.holder: CursorHolder | None = None
        self.n_parked = 0
        self.lag_events = 0
        self.lag_s = 0.0
        self.oldest: Timestamp | None = None
        self.told: dict[int, EventId] | None = None
        self.checking = asyncio.Lock()
        self._attempts: dict[str, int] = {}  # the newest of each process that had it last

    @property
    def names(self) -> _Names:
        """Name of the client, and its own."""
        return self.client, self.name

    @property
    def parked_prefix(self) -> bytes:
        """Beginning of the keys of its parked events."""
        return parked_prefix(self.client, self.name)

    def check_newest(self, attempt: Attempt) -> None:
        """Check that no newer connection of the same process had it.

        Raises:
            InitError: one had.
        """
        if attempt.number < self._attempts.get(attempt.reader, attempt.number):
            raise InitError(f"cursor {self.name!r}: a newer connection of this process took it")

    def note_newest(self, attempt: Attempt) -> None:
        """The connection that has it now is this one."""
        self._attempts.pop(attempt.reader, None)
        self._attempts[attempt.reader] = attempt.number
        for reader in [*self._attempts][: -limits.MAX_CURSOR_READERS]:
            del self._attempts[reader]


class Cursors:
    """See the module.

    Args:
        backend: keeps them.
        hold_s: how long at most retention keeps what is behind a cursor; 0: it does not care.
        is_in_group: whether other servers are to be told.
        core: knows of which histories the stored events are; None: nobody does.
    """

    def __init__(
        self,
        backend: Backend,
        hold_s: float = 0.0,
        *,
        is_in_group: bool = False,
        core: CursorCore | None = None,
    ) -> None:
        self._backend = backend
        self._core = core
        self._is_in_group = is_in_group
        self._untold: dict[bytes, _Names] = {}  # of what changed, by key
        self._hold_s = hold_s
        if hold_s:
            backend.hold_retention(self._held_since)
        self._cursors: dict[_Names, Cursor] = {}
        self._deleted: dict[_Names, CursorRow] = {}
        self._changed: dict[bytes, bytes | None] = {}
        self._saving: dict[bytes, bytes | None] = {}
        self._is_changed = asyncio.Event()
        self._lock = asyncio.Lock()
        for key, value in backend.reader_rows(CURSOR_PREFIX).items():
            try:
                client, name, row = decode_cursor(key, value)
            except ValueError as e:
                raise StoreDamagedError(f"the event store is damaged: a cursor: {e}") from None
            parked = backend.reader_rows(parked_prefix(client, name))
            if row.is_deleted:
                self._deleted[client, name] = row
            else:
                self._cursors[client, name] = Cursor(client, name, row)
                self._cursors[client, name].n_parked = len(parked)
            if is_in_group:  # they may not know it: this one may have been killed
                self._untold.update(dict.fromkeys((*parked, key), (client, name)))

    def __iter__(self) -> Iterator[Cursor]:
        return iter(tuple(self._cursors.values()))

    # --- of clients -----------------------------------------------------------------------

    def look_up(self, client: str, name: str) -> Cursor | None:
        """The cursor that a client wants to take; None: it is to be made.

        Raises:
            LimitError: there are too many.
        """
        cursor = self._cursors.get((client, name))
        if cursor is not None:
            return cursor
        n_of_client = sum(i.client == client for i in self._cursors.values())
        if len(self._cursors) >= limits.MAX_CURSORS or n_of_client >= limits.MAX_CLIENT_CURSORS:
            raise LimitError(f"cursor {name!r}: there are too many cursors")
        return None

    def take(
        self,
        client: str,
        name: str,
        holder: CursorHolder,
        start: Mapping[int, EventId],
        wanted: tuple[Subscription, int | None],
    ) -> Cursor:
        """Have a connection have a cursor, from now on; another one that has it loses it.

        Args:
            client: name of the client.
            name: of the cursor, which is made if it is new.
            holder: the connection.
            start: where it begins if it is new.
            wanted: what the connection wants, and whose events.
        """
        cursor = self._cursors.get((client, name))
        if cursor is None:
            # of other servers, more may have been seen than is here; a cursor is at what is
            known = (start[i] for i in self._backend.servers() if i in start)
            stored = [last for i in known if (last := self._stored(i)) is not None]
            cursor = self._make(client, name)
            self._move(cursor, stored)
        before, cursor.holder = cursor.holder, holder
        if before is not None:
            before.on_cursor_lost("another connection has the cursor now")
        measured = cursor.row.types, cursor.row.server_id
        subscription, cursor.row.server_id = wanted
        types = () if subscription.is_everything else subscription.query_types
        is_kept = 0 < len(types) <= limits.MAX_CURSOR_TYPES
        cursor.row.types = [*types] if is_kept else None
        if measured != (cursor.row.types, cursor.row.server_id):
            cursor.oldest = None  # of others it is not known
        self._keep(cursor)
        return cursor

    def leave(self, cursor: Cursor, holder: CursorHolder) -> None:
        """A connection that has a cursor, or had it, is gone."""
        if cursor.holder is holder:
            cursor.holder = None

    def acknowledge(self, cursor: Cursor, ids: Sequence[EventId]) -> None:
        """A cursor goes on; never back."""
        self._move(cursor, [i for i in ids if self._is_behind(cursor, i)])
        cursor.row.acked = Timestamp.now()
        self._keep(cursor)

    def parked_of(self, cursor: Cursor, ids: Collection[EventId]) -> set[EventId]:
        """Those of some events that are parked."""
        if not cursor.n_parked:
            return set()
        prefix = cursor.parked_prefix
        if len(ids) < _FEW_IDS:
            return {i for i in ids if self._has_row(prefix + encode_id(i))}
        rows = self._rows(prefix)
        return {i for i in ids if prefix + encode_id(i) in rows}

    def check_room(self, cursor: Cursor, n_more: int) -> None:
        """Check that so many more events may be parked.

        Raises:
            RemoteProtocolError: that would be too many.
        """
        if cursor.n_parked + n_more > limits.MAX_PARKED:
            raise RemoteProtocolError(f"more than {limits.MAX_PARKED} events are parked")

    def may_be_deleted(self, event_id: EventId) -> bool:
        """See ``Backend``; raises as that."""
        return self._backend.may_be_deleted(event_id)

    def is_at(self, cursor: Cursor, n_resets: int) -> bool:
        """Whether a cursor was neither deleted nor reset since it had been reset so often."""
        is_there = self._cursors.get((cursor.client, cursor.name)) is cursor
        return is_there and cursor.row.n_resets == n_resets

    def park(self, cursor: Cursor, events: Mapping[EventId, str]) -> None:
        """Leave events to people, each for a reason.

        Raises:
            RemoteProtocolError: too many are parked.
        """
        n_new = len(events) - len(self.parked_of(cursor, events.keys()))
        self.check_room(cursor, n_new)
        cursor.n_parked += n_new
        now = Timestamp.now()
        for event_id, reason in events.items():
            key = cursor.parked_prefix + encode_id(event_id)
            self._put(key, encode_row(ParkedRow(reason, now)), cursor.names)

    def done(self, cursor: Cursor, ids: Sequence[EventId]) -> None:
        """Events that were redelivered are dealt with, or dropped."""
        for event_id in ids:
            key = cursor.parked_prefix + encode_id(event_id)
            if self._has_row(key):
                cursor.n_parked -= 1
                self._put(key, None, cursor.names)

    def parked(self, cursor: Cursor) -> dict[EventId, ParkedRow]:
        """Events that are parked, in the order of their ids.

        Raises:
            StoreDamagedError: a row cannot be decoded.
        """
        rows = self._rows(cursor.parked_prefix).items()
        try:
            return {event_id: row for _, _, event_id, row in starmap(decode_parked, rows)}
        except ValueError as e:
            raise StoreDamagedError(f"the event store is damaged: a parked event: {e}") from None

    # --- of operators ---------------------------------------------------------------------

    def find(self, client: str, name: str) -> Cursor:
        """A cursor; raises ControlError where there is none."""
        cursor = self._cursors.get((client, name))
        if cursor is None:
            raise ControlError(f"client {client!r} has no cursor {name!r}")
        return cursor

    def reset(self, cursor: Cursor, seen: Mapping[int, EventId]) -> None:
        """Have a cursor go on somewhere else, also back; a connection that has it loses it."""
        self._set(cursor, seen.values())
        cursor.row.n_resets += 1
        cursor.told = None
        self._keep(cursor)
        self._take_away(cursor, "the cursor was reset")

    def delete(self, cursor: Cursor) -> None:
        """Forget a cursor and what it parked; a connection that has it loses it."""
        for key, value in self._forget(cursor.names, cursor.row.n_resets + 1).items():
            self._put(key, value, cursor.names)

    def redeliver(self, cursor: Cursor, ids: Sequence[EventId]) -> None:
        """Send parked events again: now, or when the client comes."""
        parked = self.parked(cursor)
        for event_id in ids:
            row = parked[event_id]
            row.is_due = True
            key = cursor.parked_prefix + encode_id(event_id)
            self._put(key, encode_row(row), cursor.names)
        if cursor.holder is not None:
            cursor.holder.redeliver()

    def _take_away(self, cursor: Cursor, reason: str) -> None:
        holder, cursor.holder = cursor.holder, None
        if holder is not None:
            holder.on_cursor_lost(reason)

    # --- of a group -----------------------------------------------------------------------

    def to_tell(self, is_ours: Callable[[EventId, EventId], bool]) -> list[ToldCursor | ToldParked]:
        """What other servers are to be told, ``limits.TOLD_CURSORS`` at most; empty: nothing.

        Args:
            is_ours: whether, between two events of this server, there are only events that tell
                of cursors. Who reads these has its cursor go on, of which nobody is told: it
                would never end.

        Raises:
            StorageError: what is parked cannot be read; nothing was taken.
        """
        told: list[ToldCursor | ToldParked] = []
        try:
            while self._untold and len(told) < limits.TOLD_CURSORS:
                key, names = next(iter(self._untold.items()))
                found = self._to_tell(key, names, is_ours)
                del self._untold[key]
                if found is not None:
                    told.append(found)
        except BaseException:
            self.tell_again(told)
            raise
        return told

    def _to_tell(
        self, key: bytes, names: _Names, is_ours: Callable[[EventId, EventId], bool]
    ) -> ToldCursor | ToldParked | None:
        """What is to be told of something that changed; None: nothing, any more."""
        cursor, deleted = self._cursors.get(names), self._deleted.get(names)
        is_parked = key.startswith(PARKED_PREFIX)
        if cursor is None:
            if is_parked or deleted is None:
                return None
            return ToldCursor(*names, None, deleted.n_resets)
        if is_parked:
            return self._parked_to_tell(decode_id(key), cursor)
        if _is_known(cursor, is_ours):
            return None
        row, cursor.told = cursor.row, {**cursor.seen}
        kept = [*cursor.seen.values()], row.n_resets, row.acked, {**row.histories}
        return ToldCursor(cursor.client, cursor.name, *kept)

    def _parked_to_tell(self, event_id: EventId, cursor: Cursor) -> ToldParked:
        row, n_resets = self.parked(cursor).get(event_id), cursor.row.n_resets
        if row is None:
            now = Timestamp.now()
            return ToldParked(cursor.client, cursor.name, event_id, None, now, n_resets=n_resets)
        history_id = self._history_of(event_id.server)
        kept = row.reason, row.at, row.is_due, history_id, n_resets
        return ToldParked(cursor.client, cursor.name, event_id, *kept)

    def tell_again(self, told: Sequence[ToldCursor | ToldParked]) -> None:
        """Nobody was told of these, after all."""
        for i in told:
            names = i.client, i.cursor
            if (cursor := self._cursors.get(names)) is not None:
                cursor.told = None
            if isinstance(i, ToldParked):
                key = parked_prefix(*names) + encode_id(i.id)
            else:
                key = cursor_key(*names)
            self._untold.setdefault(key, names)

    def take_over(self, told: ToldCursor | ToldParked, teller: int) -> None:
        """Another server told of a cursor. It goes on, never back, unless people set it back.

        Args:
            told: what it told; its own events of which it tells are handed over already.
            teller: the server.

        Raises:
            StorageError: what is kept cannot be read.
            ClosedError: the store is closed.
        """
        names = told.client, told.cursor
        cursor = self._cursors.get(names)
        row = self._deleted.get(names) if cursor is None else cursor.row
        rows: dict[bytes, bytes | None] = {}
        if (
            row is not None
            and told.n_resets < row.n_resets
            and (cursor is None or isinstance(told, ToldCursor))
        ):
            return  # it was reset, or deleted, since
        if isinstance(told, ToldCursor) and told.seen is None:
            if row is None or told.n_resets > row.n_resets:
                rows = self._forget(names, told.n_resets)
        elif cursor is None and len(self._cursors) >= limits.MAX_CURSORS:
            extra = {"client": told.client, "cursor": told.cursor}
            mlog.error("a cursor of another server is not kept: there are too many", extra=extra)
        else:
            if cursor is None:
                cursor = self._make(*names)
            if isinstance(told, ToldCursor):
                self._take_over_position(cursor, told, teller)
            elif told.id.server == teller or (
                self._stored(told.id) == told.id and not self._departs(told.id, told.history)
            ):
                self._take_over_parked(cursor, told, rows)
            rows[cursor_key(*names)] = encode_row(cursor.row)
        self._changed |= rows
        self._is_changed.set()
        # and at once: whoever has the events of this session has these rows
        self._backend.keep_reader_rows(rows)

    def _take_over_position(self, cursor: Cursor, told: ToldCursor, teller: int) -> None:
        row, seen = cursor.row, {}
        for event_id in told.seen or ():  # those of a third server may not be here
            if self._departs(event_id, told.histories.get(event_id.server)):
                continue  # what it tells was acknowledged is not what is here
            stored = event_id if event_id.server == teller else self._stored(event_id)
            if stored is not None:
                seen[event_id.server] = stored
        if told.n_resets > row.n_resets:
            row.n_resets = told.n_resets
            self._set(cursor, seen.values())
            self._take_away(cursor, "the cursor was reset")
        else:
            self._move(cursor, [i for i in seen.values() if self._is_behind(cursor, i)])
        row.acked = max((i for i in (row.acked, told.acked) if i is not None), default=None)

    def _take_over_parked(
        self, cursor: Cursor, told: ToldParked, rows: dict[bytes, bytes | None]
    ) -> None:
        key = cursor.parked_prefix + encode_id(told.id)
        is_parked = self._has_row(key)
        if told.reason is None:
            cursor.n_parked -= is_parked
            rows[key] = None
        elif is_parked or cursor.n_parked < limits.MAX_PARKED:
            cursor.n_parked += not is_parked
            rows[key] = encode_row(ParkedRow(told.reason, told.at, told.is_due))

    def _make(self, client: str, name: str) -> Cursor:
        """A cursor that is nowhere yet."""
        row = CursorRow([], Timestamp.now())
        if (deleted := self._deleted.pop((client, name), None)) is not None:
            row.n_resets = deleted.n_resets
        cursor = self._cursors[client, name] = Cursor(client, name, row)
        return cursor

    def _forget(self, names: _Names, n_resets: int) -> dict[bytes, bytes | None]:
        """Rows of a cursor that is deleted, which was reset or deleted so often."""
        row = CursorRow([], Timestamp.now(), n_resets=n_resets, is_deleted=True)
        self._deleted[names] = row
        rows: dict[bytes, bytes | None] = dict.fromkeys(self._rows(parked_prefix(*names)))
        rows[cursor_key(*names)] = encode_row(row)
        if len(self._deleted) > limits.MAX_DELETED_CURSORS:
            oldest = min(self._deleted, key=lambda i: self._deleted[i].created)
            del self._deleted[oldest]
            self._changed[cursor_key(*oldest)] = None  # of which nobody is told
        if (cursor := self._cursors.pop(names, None)) is not None:
            self._take_away(cursor, "the cursor was deleted")
        return rows

    # --- rows -----------------------------------------------------------------------------

    async def flush(self) -> None:
        """Keep what changed; returns when that is durable.

        Raises:
            EventerBridgeError: it is not.
        """
        async with self._lock:
            while self._changed:
                self._saving, self._changed = self._changed, {}
                try:
                    await asyncio.shield(self._backend.keep_reader_rows(self._saving))
                except BaseException:
                    self._changed = self._saving | self._changed
                    raise
                finally:
                    self._saving = {}

    async def run(self) -> None:
        """Keep what changes, now and then."""
        while True:
            await self._is_changed.wait()
            await asyncio.sleep(limits.CURSOR_PERIOD_S)
            self._is_changed.clear()
            try:
                await self.flush()
            except EventerBridgeError as e:
                mlog.warning("cursors are not kept, and will be later", extra={"reason": str(e)})
                self._is_changed.set()

    def _departs(self, event_id: EventId, followed: str | None) -> bool:
        """Whether an event is of another history than what is stored of its server."""
        return self._core is not None and self._core.departure(event_id, followed) is not None

    def _history_of(self, server_id: int) -> str | None:
        current = None if self._core is None else self._core.histories.get(server_id)
        return None if current is None else current.id

    def _is_behind(self, cursor: Cursor, event_id: EventId) -> bool:
        """Whether a cursor is before an event, or in another history."""
        seen = cursor.seen.get(event_id.server)
        if seen is None or seen < event_id:
            return True
        return self._departs(seen, cursor.row.histories.get(event_id.server))

    def _move(self, cursor: Cursor, ids: Iterable[EventId]) -> None:
        """Set a cursor to events that are stored; it is not kept yet."""
        row = cursor.row
        for event_id in ids:
            cursor.seen[event_id.server] = event_id
            if (history_id := self._history_of(event_id.server)) is not None:
                row.histories[event_id.server] = history_id
            else:
                row.histories.pop(event_id.server, None)
        row.seen = [*cursor.seen.values()]

    def _set(self, cursor: Cursor, ids: Iterable[EventId]) -> None:
        """The same, and to nothing else."""
        cursor.seen, cursor.row.histories, cursor.oldest = {}, {}, None
        self._move(cursor, ids)

    def _keep(self, cursor: Cursor) -> None:
        self._put(cursor_key(*cursor.names), encode_row(cursor.row), cursor.names)

    def _stored(self, event_id: EventId) -> EventId | None:
        """An event, or the last one of its server if that is before it; None: there is none."""
        last = self._backend.last_session(event_id.server)
        if event_id.session <= last.session:
            return event_id
        return None if last.timestamp is None else EventId(event_id.server, last.session, INT64_MAX)

    def _rows(self, prefix: bytes) -> dict[bytes, bytes]:
        """Rows as they will be."""
        rows: dict[bytes, bytes | None] = {**self._backend.reader_rows(prefix)}
        for changed in (self._saving, self._changed):
            rows |= {key: value for key, value in changed.items() if key.startswith(prefix)}
        return {key: value for key, value in sorted(rows.items()) if value is not None}

    def _has_row(self, key: bytes) -> bool:
        """Whether there will be a row; :meth:`_rows` would look at all that changed."""
        for changed in (self._changed, self._saving):
            if key in changed:
                return changed[key] is not None
        return key in self._backend.reader_rows(key)

    def _put(self, key: bytes, value: bytes | None, names: _Names) -> None:
        self._changed[key] = value
        self._is_changed.set()
        if self._is_in_group:
            self._untold.pop(key, None)  # in the order of changes: parked first, then gone on
            self._untold[key] = names

    def _held_since(self) -> Timestamp | None:
        """See ``HeldCb``: as long as it is not known how far a cursor is behind, for all events."""
        cursors = tuple(self._cursors.values())
        if not cursors:
            return None
        bound = self._backend.moment_before(self._hold_s) or Timestamp(INT64_MIN, 0)
        return max([bound, min([i.oldest or bound for i in cursors])])

    # --- lag ------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Find out how far cursors are behind, again and again."""
        while True:
            for cursor in self:
                try:
                    await self.measure(cursor)
                except EventerBridgeError as e:
                    mlog.debug("lag of a cursor is not known", extra={"reason": str(e)})
            await asyncio.sleep(limits.CURSOR_LAG_PERIOD_S)

    async def measure(self, cursor: Cursor) -> None:
        """Find out how far a cursor is behind, unless it goes back, or wants others, meanwhile.

        Raises:
            EventerBridgeError: as ``Backend.count_server``.
        """
        row, seen, measured = cursor.row, {**cursor.seen}, (cursor.row.types, cursor.row.server_id)
        wanted = EVERYTHING if row.types is None else Subscription(row.types)
        servers = self._backend.servers() if row.server_id is None else [row.server_id]
        n_events, oldest, began = 0, None, Timestamp.now()
        for server_id in servers:
            params = QueryServerParams(server_id, True, limits.MAX_LAG_EVENTS, seen.get(server_id))
            query = VisibleQuery(params, wanted)
            n_of_server, first = await self._backend.count_server(query, "cursors")
            n_events += n_of_server
            if first is not None:
                oldest = first if oldest is None else min(oldest, first)
        is_back = any(i not in cursor.seen or cursor.seen[i] < last for i, last in seen.items())
        if is_back or measured != (row.types, row.server_id):
            return  # retention would not wait for what it is behind now
        cursor.oldest = began if oldest is None else oldest
        cursor.lag_events = min(n_events, limits.MAX_LAG_EVENTS)
        now = Timestamp.now().to_float()
        cursor.lag_s = 0.0 if oldest is None else max(0.0, now - oldest.to_float())


def _is_known(cursor: Cursor, is_ours: Callable[[EventId, EventId], bool]) -> bool:
    """Whether other servers know how far a cursor is."""
    told = cursor.told
    return told is not None and all(
        i in told and (told[i] == last or is_ours(told[i], last)) for i, last in cursor.seen.items()
    )
