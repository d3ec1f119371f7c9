"""Cursors: the positions up to which clients acknowledged events, kept by the server.

A cursor belongs to a client name and has a name of its own. A client that connects with it resumes
after the last acknowledged event. One connection holds it at a time; the newest one takes it over:
of one process, the last that the process made, even if another one arrives later. Positions refer
to the histories of the events of each server (``history``).

Events that a client cannot process are parked: the cursor advances, and operators redeliver or drop
the parked events.

Rows keep everything (``cursor_rows``). Cursors are held in memory, parked events are not. Clients
forget what they saw when the number of resets and deletions of a cursor grows; it is kept after a
deletion.

Runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import NamedTuple, Protocol, TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.history import Departure, History
from eventer_bridge.backends.reader_rows import (
    CURSOR_PREFIX,
    CursorRow,
    ParkedRow,
    cursor_key,
    decode_cursor,
    decode_parked,
    encode_id,
    encode_row,
    parked_prefix,
)
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.cursor_rows import CursorRows
from eventer_bridge.errors import (
    ControlError,
    EventerBridgeError,
    InitError,
    LimitError,
    NotOperationalError,
    RemoteProtocolError,
    StoreDamagedError,
)
from eventer_bridge.model import INT64_MAX, INT64_MIN, EventId, QueryServerParams, Timestamp
from eventer_bridge.subscription import EVERYTHING, Subscription

mlog = logging.getLogger(__name__)

_Names: TypeAlias = tuple[str, str]
"""Names of a client and of its cursor."""


class CursorCore(Protocol):
    """See ``EventCore``."""

    @property
    def histories(self) -> Mapping[int, History]:
        """Histories of the servers whose events are stored."""

    def departure(self, seen: EventId, followed: str | None) -> Departure | None:
        """Where the history of a seen event departs from the stored one."""


class Attempt(NamedTuple):
    """A connection of a process, by the process's name and a number that increases with each."""

    reader: str
    number: int


class CursorHolder(Protocol):
    """The connection that holds a cursor: ``Replay``."""

    def on_cursor_lost(self, reason: str) -> None:
        """The connection lost the cursor."""

    def redeliver(self) -> None:
        """Parked events are due for redelivery."""


class Cursor:
    """One cursor.

    Attributes:
        row: its stored form.
        seen: the last acknowledged event of each server.
        holder: the connection that holds it.
        lag_events: number of unacknowledged events, at most ``limits.MAX_LAG_EVENTS``.
        lag_s: age of the oldest unacknowledged event, in seconds.
        oldest: earliest possible timestamp of an unacknowledged event; None: unknown.
        checking: held while the store is queried for events to park.
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
        self.checking = asyncio.Lock()
        self._attempts: dict[str, int] = {}  # newest of each recent process

    @property
    def parked_prefix(self) -> bytes:
        """Key prefix of its parked events."""
        return parked_prefix(self.client, self.name)

    def check_newest(self, attempt: Attempt) -> None:
        """Raise ``InitError`` if a newer connection of the same process held the cursor."""
        if attempt.number < self._attempts.get(attempt.reader, attempt.number):
            raise InitError(f"cursor {self.name!r}: a newer connection of this process took it")

    def note_newest(self, attempt: Attempt) -> None:
        """Note the connection that holds the cursor now."""
        self._attempts.pop(attempt.reader, None)
        self._attempts[attempt.reader] = attempt.number
        for reader in [*self._attempts][: -limits.MAX_CURSOR_READERS]:
            del self._attempts[reader]


class Cursors:
    """All cursors of a server.

    ``hold_s`` is the maximum time that retention keeps unacknowledged events; 0: it ignores
    cursors. ``core`` knows the histories of the stored events; None: they are unknown.
    """

    def __init__(
        self,
        backend: Backend,
        hold_s: float = 0.0,
        *,
        core: CursorCore | None = None,
    ) -> None:
        self._backend = backend
        self._core = core
        self._hold_s = hold_s
        if hold_s:
            backend.hold_retention(self._held_since)
        self._cursors: dict[_Names, Cursor] = {}
        self._deleted: dict[_Names, CursorRow] = {}
        self._are_known = False
        self.rows = CursorRows(backend)
        self.load()

    def load(self) -> None:
        """Read them from the store."""
        backend = self._backend
        self._cursors, self._deleted = {}, {}
        self.rows.forget()
        for key, value in backend.reader_rows(CURSOR_PREFIX).items():
            try:
                client, name, row = decode_cursor(key, value)
            except ValueError as e:
                raise StoreDamagedError(f"the event store is damaged: a cursor: {e}") from None
            if row.is_deleted:
                self._deleted[client, name] = row
            else:
                cursor = self._cursors[client, name] = Cursor(client, name, row)
                cursor.n_parked = len(backend.reader_rows(cursor.parked_prefix))
        self._are_known = True

    def give_up(self) -> None:
        """Forget all: another member of the group has them. Who holds one loses it."""
        for cursor in self:
            self._take_away(cursor, "another member of the group has the cursors now")
        self._cursors, self._deleted = {}, {}
        self._are_known = False
        self.rows.forget()

    def __iter__(self) -> Iterator[Cursor]:
        return iter(tuple(self._cursors.values()))

    # --- of clients -----------------------------------------------------------------------

    def look_up(self, client: str, name: str) -> Cursor | None:
        """The cursor of a client; None: there is none yet.

        ``LimitError``: there are too many. ``NotOperationalError``: another server has them.
        """
        if self._backend.is_passive:
            raise NotOperationalError("cursor: this server is STANDBY, the active one has cursors")
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
        """Give a cursor to a connection, which may be a new one; its previous holder loses it.

        A new one begins at ``start``. ``wanted``: subscription of the connection, and the server of
        its events (None: all).
        """
        cursor = self._cursors.get((client, name))
        if cursor is None:
            # the client may have seen events of other servers that are not stored here yet
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
            cursor.oldest = None  # unknown for another subscription
        self._keep(cursor)
        return cursor

    def leave(self, cursor: Cursor, holder: CursorHolder) -> None:
        """A present or former holder disconnected."""
        if cursor.holder is holder:
            cursor.holder = None

    def acknowledge(self, cursor: Cursor, ids: Sequence[EventId]) -> None:
        """Advance a cursor; it never moves back."""
        self._move(cursor, [i for i in ids if self._is_behind(cursor, i)])
        cursor.row.acked = Timestamp.now()
        self._keep(cursor)

    def parked_of(self, cursor: Cursor, ids: Collection[EventId]) -> set[EventId]:
        """The parked ones among some events."""
        if not cursor.n_parked:
            return set()
        prefix = cursor.parked_prefix
        if len(ids) < limits.FEW_PARKED:
            return {i for i in ids if self.rows.has(prefix + encode_id(i))}
        rows = self.rows.find(prefix)
        return {i for i in ids if prefix + encode_id(i) in rows}

    def check_room(self, cursor: Cursor, n_more: int) -> None:
        """Raise ``RemoteProtocolError`` if so many more events may not be parked."""
        if cursor.n_parked + n_more > limits.MAX_PARKED:
            raise RemoteProtocolError(f"more than {limits.MAX_PARKED} events are parked")

    def may_be_deleted(self, event_id: EventId) -> bool:
        """See ``Backend.may_be_deleted``."""
        return self._backend.may_be_deleted(event_id)

    def is_at(self, cursor: Cursor, n_resets: int) -> bool:
        """Whether a cursor still exists and was reset exactly so often."""
        is_there = self._cursors.get((cursor.client, cursor.name)) is cursor
        return is_there and cursor.row.n_resets == n_resets

    def park(self, cursor: Cursor, events: Mapping[EventId, str]) -> None:
        """Park events, each with a reason; raises as :meth:`check_room`."""
        n_new = len(events) - len(self.parked_of(cursor, events.keys()))
        self.check_room(cursor, n_new)
        cursor.n_parked += n_new
        now = Timestamp.now()
        for event_id, reason in events.items():
            key = cursor.parked_prefix + encode_id(event_id)
            self.rows.put({key: encode_row(ParkedRow(reason, now))})

    def done(self, cursor: Cursor, ids: Sequence[EventId]) -> None:
        """Parked events were processed after redelivery, or dropped."""
        for event_id in ids:
            key = cursor.parked_prefix + encode_id(event_id)
            if self.rows.has(key):
                cursor.n_parked -= 1
                self.rows.put({key: None})

    def parked(self, cursor: Cursor) -> dict[EventId, ParkedRow]:
        """The parked events, in the order of their ids; may raise ``StoreDamagedError``."""
        rows = self.rows.find(cursor.parked_prefix).items()
        try:
            return {event_id: row for _, _, event_id, row in starmap(decode_parked, rows)}
        except ValueError as e:
            raise StoreDamagedError(f"the event store is damaged: a parked event: {e}") from None

    # --- of operators ---------------------------------------------------------------------

    def find(self, client: str, name: str) -> Cursor:
        """A cursor; raises ControlError if it does not exist, or is on another server."""
        if self._backend.is_passive:
            raise ControlError("this server is STANDBY: the active one of its group has cursors")
        cursor = self._cursors.get((client, name))
        if cursor is None:
            raise ControlError(f"client {client!r} has no cursor {name!r}")
        return cursor

    def reset(self, cursor: Cursor, seen: Mapping[int, EventId]) -> None:
        """Move a cursor anywhere, also back; its holder loses it."""
        self._set(cursor, seen.values())
        cursor.row.n_resets += 1
        self._keep(cursor)
        self._take_away(cursor, "the cursor was reset")

    def delete(self, cursor: Cursor) -> None:
        """Delete a cursor and its parked events; its holder loses it."""
        names, n_resets = (cursor.client, cursor.name), cursor.row.n_resets + 1
        row = CursorRow([], Timestamp.now(), n_resets=n_resets, is_deleted=True)
        del self._cursors[names]
        self._deleted[names] = row
        self.rows.put(dict.fromkeys(self.rows.find(cursor.parked_prefix)))
        self.rows.put({cursor_key(*names): encode_row(row)})
        if len(self._deleted) > limits.MAX_DELETED_CURSORS:
            oldest = min(self._deleted, key=lambda i: self._deleted[i].created)
            del self._deleted[oldest]
            self.rows.put({cursor_key(*oldest): None})
        self._take_away(cursor, "the cursor was deleted")

    def redeliver(self, cursor: Cursor, ids: Sequence[EventId]) -> None:
        """Redeliver parked events, now or when the client connects."""
        parked = self.parked(cursor)
        for event_id in ids:
            row = parked[event_id]
            row.is_due = True
            key = cursor.parked_prefix + encode_id(event_id)
            self.rows.put({key: encode_row(row)})
        if cursor.holder is not None:
            cursor.holder.redeliver()

    def _take_away(self, cursor: Cursor, reason: str) -> None:
        holder, cursor.holder = cursor.holder, None
        if holder is not None:
            holder.on_cursor_lost(reason)

    def _make(self, client: str, name: str) -> Cursor:
        """Create a cursor without a position."""
        row = CursorRow([], Timestamp.now())
        if (deleted := self._deleted.pop((client, name), None)) is not None:
            row.n_resets = deleted.n_resets
        cursor = self._cursors[client, name] = Cursor(client, name, row)
        return cursor

    # --- positions ------------------------------------------------------------------------

    def _departs(self, event_id: EventId, followed: str | None) -> bool:
        """Whether an event belongs to another history than the stored events of its server."""
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
        """Set positions of a cursor, without writing its row."""
        row = cursor.row
        for event_id in ids:
            cursor.seen[event_id.server] = event_id
            if (history_id := self._history_of(event_id.server)) is not None:
                row.histories[event_id.server] = history_id
            else:
                row.histories.pop(event_id.server, None)
        row.seen = [*cursor.seen.values()]

    def _set(self, cursor: Cursor, ids: Iterable[EventId]) -> None:
        """Replace all positions of a cursor, without writing its row."""
        cursor.seen, cursor.row.histories, cursor.oldest = {}, {}, None
        self._move(cursor, ids)

    def _keep(self, cursor: Cursor) -> None:
        self.rows.put({cursor_key(cursor.client, cursor.name): encode_row(cursor.row)})

    def _stored(self, event_id: EventId) -> EventId | None:
        """The event, or the last stored one of its server if that is earlier; None: no event."""
        last = self._backend.last_session(event_id.server)
        if event_id.session <= last.session:
            return event_id
        return None if last.timestamp is None else EventId(event_id.server, last.session, INT64_MAX)

    def _held_since(self) -> Timestamp | None:
        """See ``HeldCb``. While cursors, or the lag of one, are unknown, events are held."""
        cursors = tuple(self._cursors.values())
        if self._are_known and not cursors:
            return None
        bound = self._backend.moment_before(self._hold_s) or Timestamp(INT64_MIN, 0)
        if not self._are_known:
            return bound
        return max([bound, min([i.oldest or bound for i in cursors])])

    # --- lag ------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Measure the lag of cursors periodically."""
        while True:
            for cursor in self:
                try:
                    await self.measure(cursor)
                except EventerBridgeError as e:
                    mlog.debug("lag of a cursor is not known", extra={"reason": str(e)})
            await asyncio.sleep(limits.CURSOR_LAG_PERIOD_S)

    async def measure(self, cursor: Cursor) -> None:
        """Measure the lag of a cursor, unless it moves back or its subscription changes meanwhile.

        Raises as ``Backend.count_server``.
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
            return  # outdated: retention could delete unacknowledged events
        cursor.oldest = began if oldest is None else oldest
        cursor.lag_events = min(n_events, limits.MAX_LAG_EVENTS)
        now = Timestamp.now().to_float()
        cursor.lag_s = 0.0 if oldest is None else max(0.0, now - oldest.to_float())
