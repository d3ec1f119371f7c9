"""Replay of missed events from the store, then live events, without gaps or duplicates.

::

    init ─▶ gaps ─▶ pages of the store, of each server in turn ─▶ join ─▶ live
                        ▲         as fast as the client reads       │        │
                        └──── too much came meanwhile ◀─────────────┘        │
                        └──── the client does not read ◀─────────────────────┘

To join, the client is subscribed first. If no commit was notified since its last reads, it is
live. Otherwise, its notifications are held, and the rest is read from the store, from the end of
the last reads: the end of the store at that time, whether or not the client wants its last events.
These reads find everything durable before the subscription; later notifications are held. Events in
both (a read may be ahead of the notification) are skipped: sessions of a server are notified in the
order of their ids. Held notifications are bounded: if they exceed the bound, they are dropped and
read from the store. So no client keeps memory, neither while it catches up nor when it reads slowly
afterwards.

Each page is read together with the deletions of retention at the same moment: if they include
events that the client has not seen, a gap is sent before the page (or the connection is closed, if
the client declines gaps).

Events of a session come together, but a client may have seen the first of them elsewhere: positions
are events, not sessions, and the rest of a session comes from the store.

Clients take turns to join, and all reads for a client count as its queries.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from typing_extensions import override

from eventer_bridge import limits, slices
from eventer_bridge.backends.history import Departure
from eventer_bridge.backends.readers import Reading
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.acknowledgements import Acknowledgements, AcknowledgingClient
from eventer_bridge.core.client_service import ClientService
from eventer_bridge.core.cursors import Attempt, Cursor
from eventer_bridge.core.fanout import Filter, Receiver
from eventer_bridge.core.quotas import Account
from eventer_bridge.errors import ClosedError, EventerBridgeError, InitError, RemoteProtocolError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    Event,
    EventId,
    Order,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Stream
from eventer_bridge.net.throttle import QUERIES
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps

GAP_TEXT: Final = "events that this client did not see were deleted"
"""Reason for declining or closing a client that declines gaps."""


class ReplayWire(Protocol):
    """A wire with replays."""

    __slots__ = ()

    def encode_replayed(
        self, events: Sequence[Event], /, *, is_redelivered: bool = False
    ) -> Steps[list[bytes]]:
        """The parts of a notification of several sessions (or parked events), encoded in steps."""

    def send_replayed(self, parts: list[bytes], /) -> None:
        """Send them."""

    def send_gap(
        self, server_id: int, oldest: EventId | None, departure: Departure | None, /
    ) -> None:
        """The next events do not continue those seen by the client; ``oldest`` is the next one.

        Without a ``departure``, retention deleted events that the client did not see.
        """

    def send_up_to_date(self) -> None:
        """All events persisted before were sent."""

    def send_cursor_lost(self, reason: str, /) -> None:
        """The client lost its cursor; the connection is closed afterwards."""


class Start(msgspec.Struct, frozen=True):
    """Start position of a client.

    Attributes:
        seen: the last event that it saw of each server; it saw none of other servers.
        declines_gap: whether to decline it if retention deleted events that it did not see, and to
            close it if that happens later.
        cursor: name of its cursor; a new one starts at ``seen``. None: the client keeps its own
            position.
        histories: known histories of the events of ``seen``, by server; compared with a cursor,
            too. None: the client cannot process a departure.
    """

    wire: ReplayWire
    seen: Mapping[int, EventId]
    declines_gap: bool
    cursor: str | None = None
    histories: Mapping[int, str] | None = None
    attempt: Attempt | None = None


class ReplayingClient(Receiver, Protocol):
    """Whose replay it is, ``ClientSession``."""

    __slots__ = ()

    @property
    def stream(self) -> Stream[Any]:
        """Its connection."""

    @property
    def account(self) -> Account:
        """What it uses."""


class Replay(AcknowledgingClient, Receiver):
    """Replay of a client with a start position, and its live notifications."""

    def __init__(
        self, service: ClientService, client: ReplayingClient, start: Start, wanted: Filter
    ) -> None:
        self._service = service
        self._client = client
        self._wire = start.wire
        self._filter = wanted
        self._start = start
        self._seen = dict(start.seen)  # the last event sent, by server
        self._read = dict(start.seen)  # position of reads and notifications
        self._cursor: Cursor | None = None
        self._gaps: dict[int, tuple[EventId | None, Departure | None]] = {}
        self._n_deletions: dict[int, int] = {}  # reported to it, by server
        self._n_deletions_before = 0
        self._is_live = False
        self._held: list[tuple[bytes, int, Batch]] | None = None
        self._held_bytes = 0
        self._is_any_due = True  # of parked events
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._acknowledgements: Acknowledgements | None = None

    async def find_gaps(self) -> bool:
        """Whether retention deleted events that the client did not see; they will be reported.

        ``InitError``: the client saw events that are not stored here. ``NotOperationalError``: as
        ``EventCore.check_position``. ``LimitError``: there are too many cursors. Others: a query
        failed.
        """
        core, histories = self._service.core, None
        # earlier deletions do not matter for servers of which it saw nothing
        self._n_deletions_before = core.n_deletions()
        while histories is not core.histories:  # they may change meanwhile
            histories = core.histories
            departures = self._find_departures()
            self._gaps = {}
            seen = {i for i in self._servers() if i in self._seen}
            for server_id in sorted(departures.keys() | seen):
                self._n_deletions[server_id] = 0
                async with self._reading(waits=False) as reading:
                    result = await self._query(server_id, 1, reading)
                    if server_id in departures or result.deleted is not None:
                        oldest = result.events[0].id if result.events else None
                        self._gaps[server_id] = oldest, departures.get(server_id)
                    self._n_deletions[server_id] = result.n_deletions
                    del result  # it may be large
        self._look_up()  # cursors may have been created or taken meanwhile
        return bool(self._gaps)

    def _look_up(self) -> Cursor | None:
        """The cursor, if it exists; raises as ``Cursors.look_up`` and ``Cursor.check_newest``."""
        cursors, start = self._service.core.cursors, self._start
        if cursors is None or start.cursor is None:
            return None
        cursor = cursors.look_up(self._name, start.cursor)
        if cursor is not None and start.attempt is not None:
            cursor.check_newest(start.attempt)
        return cursor

    def _find_departures(self) -> dict[int, Departure]:
        """Resume after the seen events that are stored; returns the departures to report."""
        start, followed = self._start, self._start.histories or {}
        cursor = self._look_up()
        if cursor is None:
            begin, departures = self._reached(start.seen, followed)
        else:
            begin, departures = self._reached(cursor.seen, cursor.row.histories)
            known = {i: seen for i, seen in start.seen.items() if i in followed}
            for server_id, departure in self._reached(known, followed)[1].items():
                departures[server_id] = min(departure, departures.get(server_id, departure))
        is_reportable = cursor is not None or start.histories is not None
        if departures and (start.declines_gap or not is_reportable):
            raise InitError(f"start: {next(iter(departures.values())).reason}")
        self._resume_after(begin)
        return departures

    def _reached(
        self, seen: Mapping[int, EventId], followed: Mapping[int, str]
    ) -> tuple[dict[int, EventId], dict[int, Departure]]:
        """The seen positions that are stored here, and departures from them."""
        begin, departures = dict(seen), dict[int, Departure]()
        for server_id, event_id in seen.items():
            if self.is_wanted(server_id):
                self._service.core.check_position(server_id)
            found = self._service.core.departure(event_id, followed.get(server_id))
            if found is None or not self.is_wanted(server_id):
                continue
            departures[server_id] = found
            del begin[server_id]
            if found.last:
                begin[server_id] = EventId(server_id, found.last, INT64_MAX)
        return begin, departures

    @property
    def n_resets(self) -> int:
        """Number of resets of its cursor."""
        cursor = self._look_up()
        return 0 if cursor is None else cursor.row.n_resets

    def begin(self) -> None:
        """The client was accepted: report gaps, and begin."""
        cursors, name = self._service.core.cursors, self._start.cursor
        if cursors is not None and name is not None:
            wanted = self._filter.subscription, self._filter.server_id
            cursor = self._cursor = cursors.take(self._name, name, self, self._seen, wanted)
            if self._start.attempt is not None:
                cursor.note_newest(self._start.attempt)
            reached, _ = self._reached(cursor.seen, cursor.row.histories)
            for server_id, last in reached.items():  # the cursor may have moved meanwhile
                if last != self._seen.get(server_id):
                    _, departure = self._gaps.get(server_id, (None, None))
                    if departure is None:  # a departure is independent of the cursor
                        self._gaps.pop(server_id, None)
                    self._n_deletions[server_id] = 0
            self._resume_after(reached)
            self._acknowledgements = Acknowledgements(
                self._service, self._client.stream, cursors, self._cursor, self
            )
        for server_id, (oldest, departure) in self._gaps.items():
            self._wire.send_gap(server_id, oldest, departure)
        self._task = self._service.spawn(self._run())

    def use(self, wanted: Filter) -> None:
        """Change the filter of the client."""
        if self._is_live:
            self._service.fanout.remove(self, self._filter)
            self._service.fanout.add(self, wanted)
        else:  # held events may no longer be visible
            self._leave()
        if wanted != self._filter:  # deletions of other types were not reported
            self._n_deletions |= dict.fromkeys(self._read, 0)
        self._filter = wanted

    def end(self) -> None:
        """The client disconnected."""
        self._service.fanout.remove(self, self._filter)
        self._is_live = False
        self._drop_held()
        if self._task is not None:
            self._task.cancel()
        if self._acknowledgements is not None:
            self._acknowledgements.end()
        if self._cursor is not None and self._service.core.cursors is not None:
            self._service.core.cursors.leave(self._cursor, self)

    # --- acknowledgements, AcknowledgingClient ---------------------------------------------------

    def acknowledge(
        self, ids: Sequence[EventId], parked: Sequence[tuple[EventId, str]], done: Sequence[EventId]
    ) -> None:
        """Process an acknowledgement of the client.

        ``ids`` are the last processed event of each server, ``parked`` events that it cannot
        process, each with the reason, ``done`` redelivered events that it processed.
        ``RemoteProtocolError``: the client has no cursor, or these events were not sent.
        """
        if self._acknowledgements is None:
            raise RemoteProtocolError("events_ack: this client has no cursor")
        self._acknowledgements.take(self._seen, ids, parked, done)

    @override
    def spend(self, reading: Reading) -> None:
        if (throttle := self._client.account.throttle) is not None:
            throttle.spend(QUERIES, reading.seconds * 1_000)

    @override
    async def answer(
        self, params: QueryParams, holding: Reading, n_deletions: int = 0
    ) -> QueryResult:
        """``n_deletions``: see ``VisibleQuery``."""
        query = VisibleQuery(params, self._filter.subscription, n_deletions)
        return await self._service.core.answer(query, self._client.stream.owner, (), holding)

    @override
    def on_cursor_lost(self, reason: str) -> None:
        self._wire.send_cursor_lost(reason)
        self._client.stream.close(CloseReason.CURSOR_LOST, detail=reason, level=logging.INFO)

    @override
    def redeliver(self) -> None:
        self._is_any_due = True
        self._wake.set()

    # --- fanout.Receiver ----------------------------------------------------------------

    @override
    def notify(self, message: bytes, event_count: int, session: Batch) -> None:
        if self._is_live:
            self._pass_on(message, event_count, session)
        elif self._held is not None:
            self._held.append((message, event_count, session))
            n_bytes = len(message) + limits.ANSWER_EVENT_BYTES * event_count
            self._held_bytes += n_bytes
            self._client.stream.hold(n_bytes)
            if self._held_bytes > limits.MAX_HELD_BYTES:
                self._leave()

    @override
    def delay_queries(self, commit: asyncio.Future[None]) -> None:
        """It hears of nothing before its commit."""

    @override
    def on_failed(self, error: Exception) -> None:
        self._client.on_failed(error)

    def _pass_on(self, message: bytes, event_count: int, session: Batch) -> None:
        if self._client.stream.is_write_blocked:
            self._leave()
            self._wake.set()
            return
        last = session.last_id
        read = self._read.get(last.server, EventId(last.server, INT64_MIN, INT64_MIN))
        missing = self._service.core.missing.get(last.server, read)
        if last.session > read.session and read >= missing:
            self._seen[last.server] = last
            self._read[last.server] = _end_of(last)
            self._client.notify(message, event_count, session)
        elif read < last:  # the client saw a part of it, or there is a gap
            self._leave()
            self._wake.set()

    # --- the way ------------------------------------------------------------------------

    async def _run(self) -> None:
        stream = self._client.stream
        try:
            while True:
                self._wake.clear()
                await self._redeliver()
                if not self._is_live:
                    await self._catch_up()
                    if await self._join():
                        self._wire.send_up_to_date()
                if self._is_live:
                    await self._wake.wait()
        except ClosedError:
            stream.close(CloseReason.QUERY_FAILED, detail="closed")
        except EventerBridgeError as e:
            stream.close(CloseReason.QUERY_FAILED, detail=str(e), level=logging.WARNING)
        except Exception as e:
            stream.on_failed(e)

    async def _catch_up(self) -> None:
        """Send pages of the store until its end."""
        stream = self._client.stream
        waiting = deque(self._servers())
        while waiting:
            await stream.drain()
            server_id = waiting.popleft()
            if await self._send_page(server_id):
                waiting.append(server_id)

    async def _join(self) -> bool:
        """Go live; false if too many notifications came meanwhile."""
        await self._client.stream.drain()
        if not self._behind():
            self._hold()
            return self._go_live()
        line = self._client.stream.owner
        await self._enter(line)
        try:
            self._hold()
            waiting = deque(self._behind())
            while waiting:
                if self._held is None or self._client.stream.is_write_blocked:
                    self._leave()
                    return False
                server_id = waiting.popleft()
                if await self._send_page(server_id, waits=False):
                    waiting.append(server_id)
            return self._go_live()
        finally:
            self._service.joining.leave(line)

    async def _enter(self, line: str) -> None:
        """Wait for a place; clients over their quota do not occupy one."""
        joining = self._service.joining
        while True:
            await self._until_paid()
            await joining.enter(line)
            throttle = self._client.account.throttle
            if throttle is None or throttle.is_paid:
                return
            joining.leave(line)

    def _behind(self) -> list[int]:
        """Servers with notifications since the last read."""
        return [i for i in self._servers() if i not in self._read or self._read[i] < self._end(i)]

    def _end(self, server_id: int) -> EventId:
        """End of the stored events of a server that queries find."""
        return EventId(server_id, self._service.core.last_persisted(server_id), INT64_MAX)

    def _hold(self) -> None:
        """Subscribe, and hold notifications."""
        self._held = []
        self._service.fanout.add(self, self._filter)

    def _go_live(self) -> bool:
        """Pass on held notifications, then new ones; false if too many were to be held."""
        if self._held is None:
            return False
        held, self._is_live = self._held, True
        self._drop_held()
        for message, event_count, session in held:
            if self._is_live:
                self._pass_on(message, event_count, session)
        return self._is_live

    def _leave(self) -> None:
        """Unsubscribe."""
        self._is_live = False
        self._drop_held()
        self._service.fanout.remove(self, self._filter)

    def _drop_held(self) -> None:
        self._client.stream.hold(-self._held_bytes)
        self._held, self._held_bytes = None, 0

    async def _send_page(self, server_id: int, *, waits: bool = True) -> bool:
        """Send the next page of a server; whether more follows."""
        async with self._reading(waits=waits) as reading:
            wanted = self._filter
            end = self._end(server_id)
            result = await self._query(server_id, limits.REPLAY_PAGE_EVENTS, reading)
            n_events, more_follows = len(result.events), result.more_follows
            first = result.events[0].id if n_events else None
            last = result.events[-1].id if n_events else None
            n_deletions, is_gap = result.n_deletions, result.deleted is not None
            steps = self._wire.encode_replayed(result.events)
            del result  # its events may be large
            parts = await slices.run(steps) if n_events else []
        if wanted is not self._filter:  # read again, with the new filter
            return True
        self._n_deletions[server_id] = n_deletions
        if is_gap:
            self._wire.send_gap(server_id, first, None)
            if self._start.declines_gap:
                self._client.stream.close(CloseReason.GAP, detail=GAP_TEXT, level=logging.INFO)
                raise ClosedError(GAP_TEXT)
        if last is not None:
            self._wire.send_replayed(parts)
            self._seen[server_id] = self._read[server_id] = last
            self._service.stats.events_notified += n_events
            self._client.account.n_notified += n_events
        if not more_follows:
            if last is not None:  # the end of its session may be later
                end = max(end, _end_of(last))
            self._read[server_id] = max(end, self._read.get(server_id, end))
        return more_follows

    async def _redeliver(self) -> None:
        """Send parked events that are due for redelivery."""
        cursors = self._service.core.cursors
        if self._cursor is None or cursors is None or not self._is_any_due:
            return
        assert self._acknowledgements is not None
        self._is_any_due = False
        due = {i for i, row in cursors.parked(self._cursor).items() if row.is_due}
        while due:
            wanted = self._filter
            params = QueryTimeseriesParams(order=Order.ASCENDING, ids=[*due])
            async with self._reading() as reading:
                result = await self.answer(params, reading)
                steps = self._wire.encode_replayed(result.events, is_redelivered=True)
                parts = await slices.run(steps)
            if wanted is not self._filter:  # read again, with the new filter
                continue
            if result.events:
                self._wire.send_replayed(parts)
                self._acknowledgements.note_redelivered(i.id for i in result.events)
            if not result.more_follows:
                break
            due.difference_update(i.id for i in result.events)
            del result, parts  # they may be large
            await self._client.stream.drain()

    def _resume_after(self, seen: Mapping[int, EventId]) -> None:
        self._seen, self._read = dict(seen), dict(seen)

    @contextlib.asynccontextmanager
    async def _reading(self, *, waits: bool = True) -> AsyncIterator[Reading]:
        """Read for the client, at the expense of its quota.

        It does not wait until that has recovered before it is accepted, which has a time limit, nor
        while it occupies a place.
        """
        if waits:
            await self._until_paid()
        reading = Reading()
        try:
            with reading:
                yield reading
        finally:
            self.spend(reading)

    async def _until_paid(self) -> None:
        if (throttle := self._client.account.throttle) is not None:
            await throttle.until_paid()

    async def _query(self, server_id: int, max_results: int, holding: Reading) -> QueryResult:
        params = QueryServerParams(server_id, True, max_results, self._read.get(server_id))
        n_deletions = self._n_deletions.get(server_id, self._n_deletions_before)
        return await self.answer(params, holding, n_deletions)

    @property
    def _name(self) -> str:
        """Name of the client; generated if all clients share a token."""
        return self._client.stream.client or ""

    def _servers(self) -> list[int]:
        if self._filter.subscription.is_empty:
            return []
        return [i for i in self._service.core.servers() if self.is_wanted(i)]

    def is_wanted(self, server_id: int) -> bool:
        """Whether the client wants events of a server."""
        return self._filter.server_id in (None, server_id)


def _end_of(event_id: EventId) -> EventId:
    """The position after all events of a session."""
    return EventId(event_id.server, event_id.session, INT64_MAX)
