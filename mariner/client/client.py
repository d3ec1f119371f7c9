"""The client: requests, notifications, status, keep-alive. Runs on the event loop's thread.

Nothing grows without bound: a request waits while the transport's write buffer is above its
high-water mark, and the client stops reading while the queue of notifications is full. Responses
come through the same socket: if a request waits behind notifications that nobody consumes, the
connection is closed with that reason (``notifications.StallWatch``). Consume :meth:`Client.events`
in a task of its own.
"""

import asyncio
import functools
import itertools
import logging
import os
import secrets
import socket
import ssl as ssl_module
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import starmap
from typing import Any, Final, Literal, overload

from eventer_bridge import limits, model
from eventer_bridge.core import paging
from eventer_bridge.net import connecting as connection_errors
from eventer_bridge.net.connecting import open_connection
from eventer_bridge.net.stream import Pause
from eventer_bridge.payloads import same_as
from eventer_bridge.resources import Resource, call_on_cancel, uncancellable
from mariner import errors
from mariner.client import connection, notifications
from mariner.client.notifications import Notifications
from mariner.client.replay import ReplayBatch, ReplayItem, Start, batches
from mariner.client.values import Moment, TypeText, asked, event_types_of, events_of, query_of
from mariner.wire import messages
from mariner.wire.protocol import RefusedRegister

mlog = logging.getLogger(__name__)

_READER: Final = secrets.token_hex(16)
_attempts: Final = itertools.count(1)


async def connect(
    host: str,
    port: int,
    *,
    client_name: str,
    client_token: str | None = None,
    subscriptions: str | Iterable[TypeText] = (),
    server_id: int | None = None,
    persisted: bool = False,
    start: Start | None = None,
    cursor: str | None = None,
    decline_gap: bool = False,
    histories: Mapping[int, str] | None = None,
    ssl: ssl_module.SSLContext | None = None,
    server_hostname: str | None = None,
    connect_timeout_s: float = 10,
    ping_delay_s: float | None = 20,
    ping_timeout_s: float = 10,
) -> "Client":
    """Connect to a Mariner server; the client does not reconnect.

    Args:
        host: name or address of the server.
        port: its TCP port.
        client_name: the client's name.
        client_token: its token.
        subscriptions: event types to be notified of, such as ``"lamp/*"`` or ``("lamp", "*")``
            (``?`` and ``*`` are wildcards).
        server_id: notify only of events of this server; None: of all.
        persisted: notify when events are persisted, not already when they are registered.
        start: where a replay begins (see :meth:`Client.replay`); implies ``persisted``.
        cursor: name of a cursor, by which a replay begins behind what was acknowledged (if it is
            new, at ``start``, default the earliest); the newest connection has it.
        decline_gap: be declined, or closed, if retention deleted events that were not seen.
        histories: of which history each event in ``start`` is, by server, as far as that is known
            (:attr:`Client.histories`). If the server's differs, :meth:`Client.replay` says so.
            None: the client is declined then, and not told the server's.
        ssl: TLS with this context (``mariner.tls.client_context``); None: plain TCP.
        server_hostname: name to check the server's certificate for; None: ``host``.
        connect_timeout_s: for everything up to the answer to ``init_req``.
        ping_delay_s: silence before a ping; None: never ping.
        ping_timeout_s: silence after a ping before the connection counts as lost.

    Raises:
        ConnectError: no connection, TLS refused, no answer in time; the text says why.
        UnknownHostError: a ``ConnectError``: the name of the host cannot be resolved.
        InitError: the server declined; the text is its reason.
        BusyError: an ``InitError`` for a reason that may pass, such as too many connections.
        InvalidEventError: one of ``subscriptions`` is no event type.
        UnsupportedError: the server knows no ``start`` or ``cursor``.
    """
    init_req = messages.InitReq(
        client_name,
        client_token,
        event_types_of(subscriptions, "subscriptions"),
        server_id,
        persisted or start is not None or cursor is not None,
        _start_of(start),
        cursor,
        decline_gap,
        None if histories is None else tuple(starmap(messages.KnownHistory, histories.items())),
        None if cursor is None else _next_attempt(),
    )
    client = Client(f"{host}:{port}")
    opening = client._open(host, port, ssl, server_hostname)
    await client._connect(opening, init_req, connect_timeout_s)
    if ping_delay_s is not None and client.is_open:
        at, ids = client._connection, client._requests.ids
        client.async_group.spawn(notifications.keep_alive, at, ids, ping_delay_s, ping_timeout_s)
    return client


class Client(Resource):
    """A connection to a Mariner server. Created by :func:`connect`.

    It closes on request, or when the connection is lost: see ``close_reason``. Requests in
    progress then raise ``ConnectionLostError``, registrations ``OutcomeUnknownError``.

    Attributes:
        address: host and port of the server, as in error texts.
        status: the server's last known status: STANDBY or OPERATIONAL.
        extensions: of the protocol that the server has, such as ``request_key``.
        histories: names of the histories that the server's events are of, by the server that they
            are of, if ``connect`` was given ``histories``. A server whose store was restored, or
            made anew, has another one: ids of events are worth nothing without.
        cursor_resets: how often its cursor was reset; each time its events come again from
            somewhere else.
        cursor_lost: why the client has its cursor no more; None: it has it, or never had one.
    """

    def __init__(self, address: str) -> None:
        self.address: Final = address
        self._connection = connection.ServerConnection(self._on_message, self._on_lost)
        self._is_tls = False
        self.status: model.Status = model.Status.STANDBY
        self.extensions: frozenset[str] = frozenset()
        self.histories: Mapping[int, str] = {}
        self.cursor_resets = 0
        self._status_changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._init_res: asyncio.Future[messages.InitRes] = self._loop.create_future()
        self._on_room = functools.partial(self._connection.resume_reading, Pause.USER)
        self._notifications: Notifications[Sequence[model.Event]] = Notifications(self._on_room)
        self._replayed: Notifications[ReplayItem] | None = None
        self._has_cursor = False
        self.cursor_lost: str | None = None
        self._up_to_date: asyncio.Future[None] = self._loop.create_future()
        self._requests = connection.Requests(self._connection, address, self.async_group)
        self._stalls = notifications.StallWatch(self._connection, self._requests.pending)
        self.async_group.spawn(call_on_cancel, self._stop)

    @property
    def close_reason(self) -> str | None:
        """Why the client is closed, in plain words; None while it is open."""
        return self._connection.close_text

    async def wait_status(self, status: model.Status) -> None:
        """Wait until the server's status is this one; raises ConnectionLostError."""
        while self.status is not status:
            self._requests.check_open()
            await self._status_changed.wait()

    @overload
    async def register(
        self,
        events: Sequence[model.RegisterEvent],
        request_key: str | None = None,
        *,
        after_key: str | None = None,
    ) -> Sequence[model.Event]: ...

    @overload
    async def register(
        self,
        events: TypeText,
        payload: Any = None,
        *,
        source_timestamp: Moment | None = None,
        request_key: str | None = None,
        after_key: str | None = None,
    ) -> model.Event: ...

    async def register(  # type: ignore[misc]  # the second is a key, or a payload
        self,
        events: TypeText | Sequence[model.RegisterEvent],
        payload: Any = None,
        request_key: str | None = None,
        *,
        source_timestamp: Moment | None = None,
        after_key: str | None = None,
    ) -> model.Event | Sequence[model.Event]:
        """Register events in one session, all or none; returns them as registered, in their order.

        Or one event, which is returned: ``register("lamp/1", {"on": True})``.

        Args:
            events: what is registered; or the type of one event.
            payload: of one event: a Python value, or a payload (see ``values.event``).
            source_timestamp: of one event.
            request_key: of 1 to 64 characters, for this client name alone: whatever becomes of the
                answer, registering the same events again with the same key stores them once, and
                returns the same events. JSON payloads are compared as they are written: in
                another order of keys, for example, they are other events.
            after_key: with a ``request_key``: that of a registration which must be stored first.
                So many may be under way, and none is stored unless those before it are.

        Raises:
            UnsupportedError: the server does not keep request keys.
            RegisterError: the server refused them, and none of them is stored; the text is
                its reason.
            UnavailableError: a ``RegisterError`` for a reason that may pass: the server is not
                OPERATIONAL, or the registration of ``after_key`` is not stored.
            OutcomeUnknownError: they may or may not be stored: the server said so, or the
                connection was lost before it answered. Registering them again without a
                ``request_key`` may store them twice.
            ConnectionLostError: the connection was lost before they were sent.
            LocalProtocolError: the request cannot be sent (too large, for example).
            InvalidEventError, TypeError: no event can have such a type, time or payload.
        """
        one = asked(events, payload, request_key, source_timestamp)
        sent = await self._send_registration(one.events, one.request_key, after_key)
        return one.answer(await sent)  # type: ignore[no-any-return]

    async def send_registration(
        self,
        events: Sequence[model.RegisterEvent],
        request_key: str | None = None,
        *,
        after_key: str | None = None,
    ) -> Coroutine[Any, Any, Sequence[model.Event]]:
        """As :meth:`register`, up to the sending; so that several are sent in a known order.

        Returns the wait for the answer. Of the errors of :meth:`register`, those of a request that
        was not sent are raised here.
        """
        return await self._send_registration(events_of(events), request_key, after_key)

    async def _send_registration(
        self,
        events: tuple[model.RegisterEvent, ...],
        request_key: str | None,
        after_key: str | None,
    ) -> Coroutine[Any, Any, Sequence[model.Event]]:
        if request_key is not None:
            self.check_supported("request_key")
        elif after_key is not None:
            raise errors.LocalProtocolError(f"after_key: {messages.NEEDS_REQUEST_KEY}")
        register_id = next(self._requests.ids)
        request = messages.RegisterReq(register_id, events, request_key, after_key)
        return self._registered(register_id, await self._requests.send(register_id, request))

    async def _registered(
        self, register_id: int, sent: asyncio.Future[Any]
    ) -> Sequence[model.Event]:
        try:
            response = await self._requests.answer(register_id, sent, messages.RegisterRes)
        except errors.ConnectionLostError as e:
            raise errors.OutcomeUnknownError(f"outcome unknown: {e}") from None
        if response.success and response.events is not None:
            return response.events
        if response.outcome == messages.UNKNOWN:
            reason = response.error or "outcome unknown; the server gave no reason"
            raise errors.OutcomeUnknownError(reason)
        reason = response.error or "refused; the server gave no reason"
        may_pass = response.outcome == messages.UNAVAILABLE
        raise errors.UnavailableError(reason) if may_pass else errors.RegisterError(reason)

    async def query(self, params: model.QueryParams) -> model.QueryResult:
        """Query events: one request, one answer, which may be partial (``more_follows``).

        The conditions ``ids``, ``payload`` and ``unique_type`` of a timeseries are known by our
        servers only.

        Raises:
            ConnectionLostError: the connection was lost.
            LocalProtocolError: the request cannot be sent (too many ids, for example).
            InvalidEventError: an event type, or a moment, is none.
            RemoteProtocolError: the server does not know one of these conditions: the
                answer has other events as well. The connection stays open.
        """
        params = query_of(params)
        _check_request(params)
        query_id = next(self._requests.ids)
        response = await self._requests.ask(
            query_id, messages.QueryReq(query_id, params), messages.QueryRes
        )
        _check_answer(params, response.events)
        return model.QueryResult(response.events, response.more_follows)

    async def query_all(
        self, params: model.QueryParams, *, limit: int | None = None
    ) -> AsyncIterator[model.Event]:
        """Query all events, or up to a limit, page by page, each (of ``max_results``) on demand.

        Raises as :meth:`query`, and RemoteProtocolError if the server does not return the remaining
        events.
        """
        async with aclosing(paging.query_all(self.query, query_of(params), limit)) as events:
            async for event in events:
                yield event

    def events(self) -> AsyncIterator[Sequence[model.Event]]:
        """Notifications, each the events of one session that match the subscriptions.

        The iteration ends when the client is closed and everything is consumed. At 16 MiB of
        unconsumed notifications, the client stops reading from the socket, including answers
        to requests: see the module.
        """
        return self._notifications

    async def replay(self, *, until_up_to_date: bool = False) -> AsyncIterator[ReplayBatch]:
        """What the client missed, then what is new: each event once, in the order of its server.

        It is for clients that were connected with ``start`` or ``cursor``, and ends when the client
        is closed and everything is consumed (see :meth:`events` for what happens if it is not), or
        with ``until_up_to_date`` behind what was persisted before the connection, once.

        Raises:
            ConnectionLostError: the connection was lost before that end.
            GapError: retention deleted events that were not seen. Call it again for what follows.
            OtherHistoryError: what was seen is not what the server has. Call it again for that.
            CursorLostError: another connection has the cursor now.
            LocalProtocolError: the client was connected without ``start`` and ``cursor``.
        """
        if self._replayed is None:
            raise errors.LocalProtocolError("replay: connect with start or cursor")
        received = batches(self._replayed, self._acknowledge, until_up_to_date=until_up_to_date)
        async for batch in received:
            yield batch
        if self.cursor_lost is not None:
            raise errors.CursorLostError(f"{self.address}: {self.cursor_lost}")
        if until_up_to_date:
            await self.wait_up_to_date()

    async def wait_up_to_date(self) -> None:
        """Wait until all that was persisted before the connection has come, consumed or not.

        Raises ConnectionLostError if the client closes before.
        """
        await asyncio.wait([self._up_to_date])
        self._up_to_date.result()

    async def _acknowledge(self, message: messages.EventsAck) -> None:
        if not self._has_cursor:
            raise errors.LocalProtocolError("ack: connect with a cursor")
        await self._connection.wait_writable()
        if self.cursor_lost is not None:
            raise errors.CursorLostError(f"{self.address}: {self.cursor_lost}")
        self._requests.tell(message)

    async def ping(self) -> float:
        """Ping the server: round-trip time in seconds; raises ConnectionLostError."""
        ping_id = next(self._requests.ids)
        started = time.perf_counter()
        await self._requests.ask(ping_id, messages.PingReq(ping_id), messages.PingRes)
        return time.perf_counter() - started

    # --- connecting and closing -------------------------------------------------------

    async def _connect(
        self, opening: Coroutine[Any, Any, None], init_req: messages.InitReq, timeout_s: float
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                await opening
                await self._init(init_req)
        except BaseException as e:
            await uncancellable(self.async_close())
            if isinstance(e, TimeoutError) and timeout.expired():
                what = "no answer to init_req" if self._connection.is_connected else "no connection"
                text = f"{self.address}: {what} within {timeout_s:g} s"
                raise errors.ConnectError(text) from None
            raise

    async def _open(
        self, host: str, port: int, ssl: ssl_module.SSLContext | None, server_hostname: str | None
    ) -> None:
        self._is_tls = ssl is not None
        server_name = (server_hostname or host) if ssl else None
        try:
            await open_connection(self._connection, host, port, ssl, server_name)
        except OSError as e:
            is_unknown = isinstance(e, socket.gaierror)
            error = errors.UnknownHostError if is_unknown else errors.ConnectError
            text = connection_errors.refused(e, server_name)
            raise error(f"{self.address}: {text}") from e

    async def _init(self, init_req: messages.InitReq) -> None:
        self._has_cursor = init_req.cursor is not None
        if self._has_cursor or init_req.start is not None:
            self._replayed = Notifications(self._on_room)
        self._connection.send(init_req)
        response = await self._init_res
        if not response.success or response.status is None:
            may_pass = response.outcome == messages.UNAVAILABLE
            declined = errors.BusyError if may_pass else errors.InitError
            reason = response.error or "declined; the server gave no reason"
            raise declined(reason, self.address)
        self.extensions = frozenset(response.extensions)
        self.histories = {i.server_id: i.id for i in response.histories}
        self.cursor_resets = response.cursor_resets
        if self._replayed is not None:
            self.check_supported("replay")
        if self._has_cursor:
            self.check_supported("cursor")

    async def _stop(self) -> None:
        if self._connection.is_connected:
            self._connection.close(text=connection.CLOSED_BY_CLIENT)
        self._fail_pending()
        if self._connection.is_connected:
            await self._connection.wait_lost()

    def _on_lost(self) -> None:
        mlog.debug("connection lost", extra={"server": self.address, "reason": self.close_reason})
        self._fail_pending()
        self.close()

    def _fail_pending(self) -> None:
        reason = f"{self.address}: {self.close_reason}"
        if not self._init_res.done() and self._connection.is_connected:
            text = connection.lost_before_init(reason, "init_req", self._is_tls)
            self._init_res.set_exception(errors.ConnectError(text))
            self._init_res.exception()  # who connects may have given up
        self._requests.fail(reason)
        self._notifications.end()
        if self._replayed is not None:
            self._replayed.end()
        if not self._up_to_date.done():
            self._up_to_date.set_exception(errors.ConnectionLostError(reason))
            self._up_to_date.exception()  # nobody has to wait for it
        self._status_changed.set()
        self._stalls.end()

    def check_supported(self, extension: str) -> None:
        """Raise UnsupportedError if the server lacks an extension."""
        if extension not in self.extensions:
            raise errors.UnsupportedError(f"{self.address}: the server does not know {extension!r}")

    # --- messages ---------------------------------------------------------------------

    def _on_message(self, message: messages.Message | RefusedRegister) -> None:
        match message:
            case messages.RegisterRes():
                self._requests.on_answer(message.register_id, message)
            case messages.QueryRes():
                self._requests.on_answer(message.query_id, message)
            case messages.EventsMsg():
                self._on_events(message)
            case messages.Gap() | messages.UpToDate():
                self._on_mark(message)
            case messages.CursorLost():
                self.cursor_lost = message.reason
            case messages.PingRes():
                self._requests.on_answer(message.ping_id, message)
            case messages.StatusMsg():
                self.status = message.status
                self._status_changed.set()
                self._status_changed = asyncio.Event()
            case messages.InitRes():
                if not self._init_res.done():
                    self._init_res.set_result(message)
                    # at once: another one may be behind it
                    self.status = message.status or self.status

    @property
    def _queue(self) -> Notifications[Any]:
        return self._notifications if self._replayed is None else self._replayed

    def _on_mark(self, mark: messages.Gap | messages.UpToDate) -> None:
        if self._replayed is not None:
            other = mark.other_history if isinstance(mark, messages.Gap) else None
            self._replayed.put(mark, 0 if other is None else len(other.reason))
            self._pause_when_full()
        if isinstance(mark, messages.UpToDate) and not self._up_to_date.done():
            self._up_to_date.set_result(None)

    def _on_events(self, message: messages.EventsMsg) -> None:
        size_bytes = notifications.size_of(message.events)
        if self._replayed is not None:
            self._replayed.put(message, size_bytes)
        else:
            self._notifications.put(message.events, size_bytes)
        self._pause_when_full()

    def _pause_when_full(self) -> None:
        if self._queue.is_full:
            self._connection.pause_reading(Pause.USER)
            self._stalls.begin(self._queue)


def _start_of(start: Start | str | None) -> Literal["earliest"] | tuple[model.EventId, ...] | None:
    if start is None:
        return None
    if isinstance(start, str):
        if start == "earliest":
            return "earliest"
        raise errors.LocalProtocolError(
            f"start: expected 'earliest' or ids of events, got {start!r}"
            + (": that is for a ReconnectingClient" if start == "now" else "")
        )
    return tuple(start.values() if isinstance(start, Mapping) else start)


def _next_attempt() -> messages.ConnectionAttempt:
    # a fork is another process
    return messages.ConnectionAttempt(f"{_READER}-{os.getpid()}", next(_attempts))


# --- query conditions that only our server has ----------------------------------------------
#
# Other servers ignore unknown conditions, and return more events than requested. The client
# checks every answer, so that no caller mistakes these for a valid one.


def _check_request(params: model.QueryParams) -> None:
    """Refuse a query for which our server would close the connection; raises LocalProtocolError."""
    if isinstance(params, model.QueryTimeseriesParams) and params.ids is not None:
        n_ids = len(params.ids)
        if n_ids > limits.MAX_QUERY_IDS:
            raise errors.LocalProtocolError(
                f"{n_ids} ids in one query, at most {limits.MAX_QUERY_IDS} are allowed"
            )


def _check_answer(params: model.QueryParams, events: Sequence[model.Event]) -> None:
    """Refuse an answer that has events that were not requested; raises RemoteProtocolError."""
    if not isinstance(params, model.QueryTimeseriesParams):
        return
    if params.ids is not None and not {i.id for i in events}.issubset(params.ids):
        ignored = "ids"
    elif params.payload is not None and not all(
        map(same_as(params.payload), (i.payload for i in events))
    ):
        ignored = "payload"
    elif params.unique_type and len({i.type for i in events}) < len(events):
        ignored = "unique_type"
    else:
        return
    raise errors.RemoteProtocolError(
        f"query_res: events that were not requested: the server does not know {ignored!r}"
    )
