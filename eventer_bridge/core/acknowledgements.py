"""Acknowledgements of a client with a cursor: events are processed, or parked for operators.

A client may acknowledge only events that were sent over its cursor: otherwise it could park events
that never existed, and a drill would consider the store damaged. Sent events are not remembered,
which would be unbounded: a parked event must precede the client's position, and be stored and
visible for the client, unless retention may have deleted it. A task queries the store, and the
client is not read meanwhile, which keeps the order of its messages.

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from eventer_bridge import limits
from eventer_bridge.backends.readers import Reading
from eventer_bridge.core.client_service import ClientService
from eventer_bridge.core.cursors import Cursor, CursorHolder, Cursors
from eventer_bridge.errors import EventerBridgeError, RemoteProtocolError
from eventer_bridge.model import (
    INT64_MIN,
    EventId,
    Order,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause, Stream


class AcknowledgingClient(CursorHolder, Protocol):
    """The client of acknowledgements, ``Replay``."""

    async def answer(self, params: QueryParams, holding: Reading) -> QueryResult:
        """Query events that it wants and may see."""

    def spend(self, reading: Reading) -> None:
        """Count the use of its quota."""


class Acknowledgements:
    """Processes the acknowledgements of a client."""

    def __init__(
        self,
        service: ClientService,
        stream: Stream[Any],
        cursors: Cursors,
        cursor: Cursor,
        client: AcknowledgingClient,
    ) -> None:
        self._service, self._stream, self._client = service, stream, client
        self._cursors, self._cursor = cursors, cursor
        self._redelivered: dict[EventId, None] = {}  # the last ones over this connection
        self._checking: asyncio.Task[None] | None = None
        self._has_begun = False  # to check

    def note_redelivered(self, ids: Iterable[EventId]) -> None:
        """Parked events were sent again; at most ``limits.MAX_PARKED`` are noted."""
        self._redelivered |= dict.fromkeys(ids)
        for event_id in [*self._redelivered][: -limits.MAX_PARKED]:
            del self._redelivered[event_id]

    def take(
        self,
        sent: Mapping[int, EventId],
        ids: Sequence[EventId],
        parked: Sequence[tuple[EventId, str]],
        done: Sequence[EventId],
    ) -> None:
        """Take an acknowledgement; see ``Replay.acknowledge``. ``sent``: the last of each server.

        ``RemoteProtocolError``: these events were not sent, or too many are parked. If that needs a
        query of the store, the connection is closed later.
        """
        cursors, cursor = self._cursors, self._cursor
        reasons = dict(parked)
        known = self._redelivered.keys() | cursors.parked_of(cursor, reasons.keys())
        unknown = [i for i in reasons if i not in known]
        for event_id in (*ids, *unknown):
            last = sent.get(event_id.server)
            if last is None or last < event_id:
                raise RemoteProtocolError(f"events_ack: event {_text(event_id)} was not sent")
        for event_id in done:
            if event_id not in self._redelivered:
                raise RemoteProtocolError(
                    f"events_ack: done: event {_text(event_id)} was not sent again"
                )
        keep = functools.partial(self._keep, ids, reasons, done)
        if not unknown:
            keep()
            return
        cursors.check_room(cursor, len(unknown))
        self._stream.pause_reading(Pause.REPLAY)
        self._checking = self._service.spawn(self._check(unknown, keep))

    def end(self) -> None:
        """The client disconnected. A running check continues; each cursor has at most one."""
        if self._checking is not None and not self._has_begun:
            self._checking.cancel()

    def _keep(
        self, ids: Sequence[EventId], parked: Mapping[EventId, str], done: Sequence[EventId]
    ) -> None:
        self._cursors.park(self._cursor, parked)
        self._cursors.done(self._cursor, done)
        if ids:
            self._cursors.acknowledge(self._cursor, ids)

    async def _check(self, unknown: Sequence[EventId], keep: Callable[[], None]) -> None:
        """Keep an acknowledgement, if the parked events were sent to the client."""
        cursor, stream, n_resets = self._cursor, self._stream, self._cursor.row.n_resets
        try:
            async with cursor.checking:
                self._has_begun = True
                await self._check_stored(unknown)
            # else another connection holds the cursor and gets these again, or it was reset
            if cursor.holder in (self._client, None) and self._cursors.is_at(cursor, n_resets):
                keep()
        except RemoteProtocolError as e:
            if stream.close_reason is None:
                stream.on_protocol_error(e)
        except EventerBridgeError as e:
            stream.close(CloseReason.QUERY_FAILED, detail=str(e), level=logging.WARNING)
        except Exception as e:
            stream.on_failed(e)
        finally:
            self._has_begun, self._checking = False, None
            stream.resume_reading(Pause.REPLAY)

    async def _check_stored(self, ids: Sequence[EventId]) -> None:
        """Check that events are or were stored, and that the client may see them."""
        left = dict.fromkeys(ids)
        has_more = True
        while left and has_more:
            params = QueryTimeseriesParams(order=Order.ASCENDING, ids=[*left])
            with Reading() as reading:
                result = await self._client.answer(params, reading)
                for event in result.events:
                    left.pop(event.id, None)
                has_more = result.more_follows
                del result  # it may be large
            self._client.spend(reading)
        if left:
            await self._check_deleted([*left])

    async def _check_deleted(self, ids: Sequence[EventId]) -> None:
        """Check that retention may have deleted events; raises as :meth:`_check_stored`."""
        gaps: dict[int, EventId] = {}  # the last missing event of each server
        for server_id in {i.server for i in ids}:
            with Reading() as reading:
                params = QueryServerParams(server_id, True, 0)
                if (deleted := (await self._client.answer(params, reading)).deleted) is not None:
                    gaps[server_id] = deleted
            self._client.spend(reading)
        for event_id in ids:
            last = gaps.get(event_id.server)
            is_before = last is not None and event_id <= last
            if not (is_before and await self._was_session(event_id)):
                raise RemoteProtocolError(
                    f"events_ack: parked: event {_text(event_id)} is not stored, or this client may"
                    " not see it"
                )

    async def _was_session(self, event_id: EventId) -> bool:
        """Whether its session exists or existed."""
        if self._cursors.may_be_deleted(event_id):
            return True
        server, session = event_id.server, event_id.session
        params = QueryServerParams(server, True, 1, EventId(server, session, INT64_MIN))
        found = (await self._service.core.query(params)).events
        return bool(found) and found[0].id.session == session


def _text(event_id: EventId) -> str:
    return f"{event_id.server}/{event_id.session}/{event_id.instance}"
