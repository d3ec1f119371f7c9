"""Reads from one gateway, for as long as the console runs, and asks it what pages want to know.

Its connection is read all the time, whatever the browsers do: the console is never a slow client.
The same holds for a :class:`Tail`, which has a connection of its own. What arrives too fast to be
looked at is counted and forgotten. A query has a connection that no other query waits for.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urljoin

import aiohttp

from eventer_bridge import tls
from eventer_bridge.control.client import Addressee
from eventer_bridge.core import tokens
from eventer_bridge.errors import ClosedError, ConnectError, ControlError, ProtocolError
from eventer_bridge.model import (
    Event,
    EventType,
    QueryLatestParams,
    QueryParams,
    RegisterEvent,
    Status,
)
from eventer_bridge.net import connecting
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.connecting import keep_trying
from eventer_bridge.resources import Resource, Tasks, call_on_cancel, uncancellable
from mariner import client
from mariner.errors import BusyError, ConnectionLostError, MarinerError
from mariner.gateway import connection_requests, cursor_requests, group_requests, status
from mariner.gateway.connection_requests import ConnectionRequest, ConnectionsAnswer
from mariner.gateway.cursor_requests import CursorAnswer, CursorRequest
from mariner.gateway.group_requests import StepDownAnswer, StepDownRequest
from mariner.gateway.status import GatewayStatus
from mariner_console import limits, view
from mariner_console.asking import RecentAnswer
from mariner_console.config import WatchedGateway

mlog = logging.getLogger(__name__)

_PASSING: Final = (ConnectError, BusyError, ClosedError, ProtocolError)
"""Why there is no connection, which may pass. A client that is declined stays so until an operator
does something."""

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Kept:
    """The newest events, within bounds of count and bytes, and the number of all that came."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._size_bytes = 0
        self.n_seen = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Sequence[Event]) -> None:
        """Take on events; of many, only the newest are looked at."""
        self.n_seen += len(events)
        for event in events[-limits.MAX_TAIL_EVENTS :]:
            self._events.append(event)
            self._size_bytes += _size_bytes(event)
        while len(self._events) > limits.MAX_TAIL_EVENTS or (
            self._size_bytes > limits.MAX_TAIL_BYTES and len(self._events) > 1
        ):
            self._size_bytes -= _size_bytes(self._events.popleft())

    def newest(self) -> list[Event]:
        """All of them, the newest first."""
        return list(reversed(self._events))


class Tail(Resource):
    """Follows the newest events of patterns. Created by :meth:`Watcher.follow`.

    It goes on over another connection when one is lost. ``lost_s`` is when that was, in seconds
    since 1970, and ``back_s`` when there was another one; None: not yet, or none was lost.
    ``refusal`` is why there will be none; None: there may be.
    """

    def __init__(
        self, connection: client.Client, connect: Callable[[], Awaitable[client.Client]]
    ) -> None:
        self.kept = Kept()
        self.lost_s: float | None = None
        self.back_s: float | None = None
        self.refusal: str | None = None
        self._connect = connect
        self.async_group.spawn(self._run, connection)

    async def _run(self, connection: client.Client) -> None:
        while True:
            try:
                async for events in connection.events():
                    self.kept.put(events)
            finally:
                await uncancellable(connection.async_close())
            self.lost_s, self.back_s = time.time(), None
            try:
                connection = await self._connect()
            except MarinerError as e:
                self.refusal = str(e)
                return
            self.back_s = time.time()


class Watcher(Resource):
    """See the module; raises ConfigurationError if token or certificate cannot be used."""

    def __init__(self, config: WatchedGateway) -> None:
        self.config: Final = config
        self.view: Final = view.GatewayView(config.name)
        self._token = tokens.read_own(config.token, "token")
        self._context = None
        if config.tls is not None:
            self._context = tls.client_context(config.tls.ca, config.tls.cert, config.tls.key)
        self._connection: client.Client | None = None
        self._free: client.Client | None = None  # for the next query
        self._querying = asyncio.Semaphore(limits.MAX_QUERIES)
        self._lost_by_alarms = False  # when they were asked for the last time
        self._status = RecentAnswer(self._ask_status, status.with_rates)
        self._connections = RecentAnswer(self._ask_connections, connection_requests.with_rates)
        self.async_group.spawn(self._stay_connected)
        if config.metrics is not None:
            self.async_group.spawn(self._keep_scraping, config.metrics)
        self.async_group.spawn(self._keep_asking_why)
        self.async_group.spawn(call_on_cancel, self._close_free)

    async def query(self, params: QueryParams, limit: int) -> tuple[list[Event], bool]:
        """Some events, up to ``limits.MAX_QUERY_BYTES`` of payloads, and whether there are more.

        Raises MarinerError without a connection, or as ``Client.query_all``; TimeoutError.
        """
        found: list[Event] = []
        size_bytes = 0
        async with (
            asyncio.timeout(limits.QUERY_TIMEOUT_S),
            self._free_connection() as connection,
            aclosing(connection.query_all(params, limit=limit + 1)) as events,  # type: ignore[type-var]  # an async generator
        ):
            async for event in events:
                size_bytes += _size_bytes(event)
                if len(found) == limit or (found and size_bytes > limits.MAX_QUERY_BYTES):
                    return found, True
                found.append(event)
        return found, False

    async def latest(self, params: QueryLatestParams) -> AsyncGenerator[Event, None]:
        """The last events of types, until the caller has enough; raises as :meth:`query`."""
        async with (
            asyncio.timeout(limits.QUERY_TIMEOUT_S),
            self._free_connection() as connection,
            aclosing(connection.query_all(params)) as events,  # type: ignore[type-var]  # an async generator
        ):
            async for event in events:
                yield event

    async def status(self) -> GatewayStatus:
        """What the gateway tells by its control socket, not long ago; asked only if someone looks.

        Raises ControlError if it did not answer, or has none.
        """
        return await self._status.get()

    async def connections(self) -> ConnectionsAnswer:
        """As :meth:`status`, of its connections."""
        return await self._connections.get()

    async def request_cursors(self, request: CursorRequest) -> CursorAnswer:
        """Look at a cursor, or change it, by the control socket; the next status is a new one.

        Raises as ``cursor_requests.ask``, and ControlError if there is no control socket.
        """
        answer = await self._request(cursor_requests.ask, request)
        if request.do != "show":
            await self._status.forget()
        return answer

    async def request_connections(self, request: ConnectionRequest) -> ConnectionsAnswer:
        """Close a connection by the control socket; raises as :meth:`request_cursors`."""
        answer = await self._request(connection_requests.ask, request)
        await self._connections.forget()
        return answer

    async def request_step_down(self, request: StepDownRequest) -> StepDownAnswer:
        """Have the gateway step down; raises as :meth:`request_cursors`."""
        return await self._request(group_requests.ask, request)

    async def _ask_status(self) -> GatewayStatus:
        return await asyncio.to_thread(status.ask, self._control())

    async def _ask_connections(self) -> ConnectionsAnswer:
        return await self._request(connection_requests.ask, ConnectionRequest("list"))

    async def _request(
        self, ask: Callable[[Path, RequestT, Addressee], AnswerT], request: RequestT
    ) -> AnswerT:
        """Send a request to the process that told its status: another one may listen by now."""
        socket, shown = self._control(), await self.status()
        return await asyncio.to_thread(ask, socket, request, Addressee(pid=shown.pid))

    async def register(self, event: RegisterEvent) -> Event:
        """Register an event; raises MarinerError without a connection, or as ``Client.register``.

        Raises TimeoutError if there is no answer: it may be registered all the same.
        """
        async with asyncio.timeout(limits.TIMEOUT_S):
            [registered] = await self._connected().register([event])
        return registered

    async def follow(self, patterns: Sequence[EventType]) -> Tail:
        """Follow the events of patterns; raises as ``client.connect``."""

        async def again() -> client.Client:
            extra = {"gateway": self.config.name}
            await asyncio.sleep(net_limits.RECONNECT_MIN_S)
            attempt = partial(self._open, patterns)
            return await keep_trying(attempt, _PASSING, mlog, "a tail is not followed", extra)

        return Tail(await self._open(patterns), again)

    async def _open(self, subscriptions: Sequence[EventType]) -> client.Client:
        at = self.config
        return await client.connect(
            at.host,
            at.port,
            client_name=at.client,
            client_token=self._token,
            subscriptions=subscriptions,
            ssl=self._context,
        )

    def _control(self) -> Path:
        if self.config.control is None:
            raise ControlError(f"{self.config.name}: no control socket is configured")
        return self.config.control

    def _connected(self) -> client.Client:
        reason = view.outage(self.view, time.monotonic())
        if self._connection is None or reason is not None:
            raise ConnectError(f"{self.config.name}: {reason or 'not connected'}")
        return self._connection

    @asynccontextmanager
    async def _free_connection(self) -> AsyncIterator[client.Client]:
        """A connection for a query: a gateway answers one query of a connection after the other.

        The last one is kept. Raises MarinerError if there is none.
        """
        self._connected()
        async with self._querying:
            connection, self._free = self._free, None
            if connection is None or not connection.is_open:
                connection = await self._open([])
            is_kept = False
            try:
                yield connection
                is_kept = self.is_open and self._free is None
            finally:  # one that is still busy with an answer is of no use
                if is_kept:
                    self._free = connection
                else:
                    await uncancellable(connection.async_close())

    async def _close_free(self) -> None:
        if self._free is not None:
            await self._free.async_close()

    # --- the connection -----------------------------------------------------------------

    async def _stay_connected(self) -> None:
        extra = {"gateway": self.config.name}
        while True:
            connection = await keep_trying(
                self._connect, MarinerError, mlog, "no connection to a gateway", extra
            )
            try:
                await self._use(connection)
            except ConnectionLostError as e:
                mlog.warning("connection to a gateway lost", extra={**extra, "reason": str(e)})
                self.view.on_lost(str(e))
            finally:
                self._connection = None
                await uncancellable(connection.async_close())
            await asyncio.sleep(net_limits.RECONNECT_MIN_S)

    async def _connect(self) -> client.Client:
        try:
            return await self._open(self.config.alarms)
        except MarinerError as e:
            self.view.on_lost(str(e))
            raise

    async def _use(self, connection: client.Client) -> None:
        """Read from a connection until it is lost: raises ConnectionLostError then."""
        async with Tasks() as group:
            self.view.alarms.clear()
            reading = group.spawn(self._take_alarms, connection)
            self.view.on_answer(connection.status, time.monotonic(), time.time())
            self._connection = connection
            group.spawn(self._load_alarms, connection)
            while not reading.done():
                self.view.ping_s = await connection.ping()
                self.view.on_answer(connection.status, time.monotonic(), time.time())
                await asyncio.wait([reading], timeout=limits.PING_PERIOD_S)
        await connection.ping()  # tells why it is lost

    async def _take_alarms(self, connection: client.Client) -> None:
        async for events in connection.events():
            self.view.alarms.take(events)

    async def _load_alarms(self, connection: client.Client) -> None:
        """Those that were raised before.

        A relay without its server answers no query, and closes the connection: there, the next one
        waits until it is OPERATIONAL.
        """
        try:
            if self._lost_by_alarms:
                await connection.wait_status(Status.OPERATIONAL)
            self._lost_by_alarms = True
            params = QueryLatestParams(self.config.alarms)
            async with aclosing(connection.query_all(params)) as events:  # type: ignore[type-var]  # an async generator
                async for event in events:
                    self.view.alarms.take_earlier(event)
            self.view.alarms.is_known = True
            self._lost_by_alarms = False
        except MarinerError as e:
            extra = {"gateway": self.config.name, "reason": str(e)}
            mlog.warning("alarms cannot be read", extra=extra)

    # --- metrics ------------------------------------------------------------------------

    async def _keep_scraping(self, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=limits.TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                try:
                    text = await _read(session, url)
                    scrape = await asyncio.to_thread(view.parse, text, time.monotonic())
                    self.view.on_scrape(scrape, time.time())
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
                    self.view.on_scrape_failed(_reason(e, url), time.time())
                await asyncio.sleep(limits.SCRAPE_PERIOD_S)

    # --- why it is STANDBY --------------------------------------------------------------

    async def _keep_asking_why(self) -> None:
        """Ask a gateway that is not OPERATIONAL for the reason."""
        while True:
            if self.view.is_hindered:
                self.view.on_hindrance(await self._hindrance())
            await asyncio.sleep(limits.SCRAPE_PERIOD_S)

    async def _hindrance(self) -> str | None:
        """By ``/readyz`` beside its metrics or, without them, by its control socket."""
        if self.config.metrics is None:
            try:
                return (await self.status()).not_ready
            except ControlError:
                return None
        url = urljoin(self.config.metrics, "readyz")
        timeout = aiohttp.ClientTimeout(total=limits.TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
                text = await _read(session, url, status=503)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None  # that it cannot be asked, its metrics tell
        status_name, _, reason = text.partition(": ")
        return reason.strip() if status_name in Status.__members__ else None


def _reason(error: Exception, url: str) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            cause = error.certificate_error
        else:
            cause = error.os_error
        if isinstance(cause, OSError):
            server_name = error.host if url.startswith("https:") else None
            return f"{error.host}:{error.port}: {connecting.refused(cause, server_name)}"
    return str(error) or f"{url}: no answer in time"


async def _read(session: aiohttp.ClientSession, url: str, status: int = 200) -> str:
    async with session.get(url, allow_redirects=False) as response:
        if response.status != status:
            raise ValueError(f"{url}: HTTP status {response.status}")
        data = b""
        async for chunk in response.content.iter_chunked(1 << 16):
            data += chunk
            if len(data) > limits.MAX_METRICS_BYTES:
                raise ValueError(f"{url}: more than {limits.MAX_METRICS_BYTES} bytes")
    return data.decode()


def _size_bytes(event: Event) -> int:
    return 0 if event.payload is None else len(memoryview(event.payload.data))
