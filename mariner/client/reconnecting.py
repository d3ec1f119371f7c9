"""A client that outlives its connections: it repeats registrations, and resumes a replay.

Each registration is sent with a request key, and again, over the next connection, until a server
has said what became of it. So its events are stored once, whatever was cut or killed::

    servers = [
        functools.partial(mariner.connect, host, 23014, client_name="app", client_token=token)
        for host in ("gateway-1", "gateway-2")
    ]
    async with mariner.ReconnectingClient(servers) as client:
        event = await client.register("lamp/1", {"on": True})

Registrations are stored in the order in which they were made, although many are under way: a server
answers in their order, and each names the one before it (``after_key``). What fails for a reason
that may pass is sent again, together with everything after it, by the house's retry policy. Few are
sent before the first answer of a connection: however soon each is cut, some get through.

A replay goes on behind what the application was handed, or, with a cursor, what it acknowledged.
With ``start="now"`` it begins with what comes after the first connection: a live view that misses
nothing. Of several servers, the first that is OPERATIONAL is used until it is not. Those of a pair
have request keys and cursors of their own (docs/delivery.md).

What no server will ever take is not tried for ever: if each of them declines the client (a wrong
token, an unknown name), or a host cannot be resolved, the client is closed, and whoever uses it
gets the error. Runs on the event loop's thread.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol, overload

from eventer_bridge.core import paging
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Event, QueryParams, QueryResult, RegisterEvent, Status
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.connecting import keep_trying
from eventer_bridge.resources import Resource, Tasks, call_on_cancel, call_on_done, uncancellable
from mariner import errors, limits
from mariner.client.client import Client
from mariner.client.connection import CLOSED_BY_CLIENT
from mariner.client.present import positions
from mariner.client.replay import ReplayBatch, Resumption, Start
from mariner.client.values import Moment, TypeText, asked, query_of

mlog = logging.getLogger(__name__)


class Connect(Protocol):
    """Connects to one server: ``functools.partial(client.connect, …)``."""

    def __call__(
        self,
        *,
        start: Start | None = ...,
        cursor: str | None = ...,
        histories: Mapping[int, str] | None = ...,
    ) -> Awaitable[Client]:
        """See ``client.connect``."""


def _text_of(error: Exception) -> str:
    """Why there is no connection, with the address."""
    address = error.address if isinstance(error, errors.InitError) else None
    return str(error) if address is None else f"{address}: {error}"


_REPEATABLE: Final = (errors.UnavailableError, errors.OutcomeUnknownError)

_PERMANENT: Final = (
    errors.InitError,
    errors.UnsupportedError,
    errors.LocalProtocolError,
    InvalidEventError,
    TypeError,
)
"""Why it is of no use to connect again; a ``BusyError`` may pass."""


class KeyMaker:
    """Makes request keys that sort as they were made, which servers find to be new without a look.

    A key is a time in nanoseconds, made to ascend, and random digits of this maker.
    """

    def __init__(self) -> None:
        self._last_ns = 0
        self._suffix = secrets.token_hex(4)

    def __call__(self) -> str:
        """A new key, of 24 characters."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return f"{self._last_ns:016x}{self._suffix}"


class Registration:
    """A registration until a server has said what became of it; ``is_sent``: one may have it."""

    __slots__ = ("events", "is_sent", "key", "outcome")

    def __init__(
        self, events: Sequence[RegisterEvent], key: str, outcome: asyncio.Future[Sequence[Event]]
    ) -> None:
        self.events = events
        self.key = key
        self.outcome = outcome
        self.is_sent = False

    def end(self, outcome: Sequence[Event] | Exception) -> None:
        """Tell the outcome to whoever still waits for it."""
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class ReconnectingClient(Resource):
    """See the module; ``servers``, at least one, are how to connect to each.

    Those without the extensions that it ``requires`` are of no use.

    ``start``, ``cursor`` and ``histories`` are those of ``connect``, for :meth:`replay`; without
    the first two there is none. ``start`` may also be ``"now"``, when the first connection is made.
    ``gives_up``: see the module; False: it tries for ever, whatever the reason.
    """

    def __init__(
        self,
        servers: Sequence[Connect],
        requires: Collection[str] = (),
        *,
        start: Start | Literal["now"] | None = None,
        cursor: str | None = None,
        histories: Mapping[int, str] | None = None,
        gives_up: bool = True,
    ) -> None:
        self._servers = deque(servers)
        self._is_now_wanted = start == "now"
        begin = () if start == "now" else start
        self._resumption = Resumption(begin, cursor, histories or {})
        self._gives_up = gives_up
        self._failure: Exception | None = None  # why it gave up
        self._was_connected = False
        self._cursor_lost: str | None = None
        self._requires = requires
        self._make_key = KeyMaker()
        self._loop = asyncio.get_running_loop()
        self._begun_at = self._loop.time()
        self._client: Client | None = None
        self._changed = asyncio.Event()
        self._waiting: deque[Registration] = deque()  # to be sent over this connection
        self._sent: deque[Registration] = deque()  # over this connection, unanswered
        self._answers: set[asyncio.Task[Sequence[Event]]] = set()  # that are awaited
        self._sending = Tasks()  # over this connection
        self._window = 1  # how many may be sent before an answer; grows over each connection
        self._failures: list[errors.MarinerError] = []  # for which what was sent will be sent again
        self._n_ended = 0
        self._room = asyncio.Semaphore(limits.MAX_UNANSWERED)
        self.async_group.spawn(call_on_done, self.async_group.spawn(self._run), self.close)
        self.async_group.spawn(call_on_cancel, self._fail_all)

    @property
    def address(self) -> str | None:
        """Host and port of the server that it is connected to; None: it is not connected."""
        return None if self._client is None else self._client.address

    @property
    def status(self) -> Status:
        """Status of that server; STANDBY without a connection."""
        return Status.STANDBY if self._client is None else self._client.status

    @property
    def histories(self) -> Mapping[int, str]:
        """As :attr:`Client.histories`, of the server that it is connected to."""
        return {} if self._client is None else self._client.histories

    @property
    def close_reason(self) -> str | None:
        """Why it ended by itself; None: it did not."""
        return self._cursor_lost if self._failure is None else str(self._failure)

    # --- for the application --------------------------------------------------------------

    async def wait_connected(self) -> None:
        """Wait until it is connected; raises why it gave up, or ConnectionLostError."""
        await self._connected()

    @overload
    async def register(
        self, events: Sequence[RegisterEvent], request_key: str | None = None
    ) -> Sequence[Event]: ...

    @overload
    async def register(
        self,
        events: TypeText,
        payload: Any = None,
        *,
        source_timestamp: Moment | None = None,
        request_key: str | None = None,
    ) -> Event: ...

    async def register(  # type: ignore[misc]  # the second is a key, or a payload
        self,
        events: TypeText | Sequence[RegisterEvent],
        payload: Any = None,
        request_key: str | None = None,
        *,
        source_timestamp: Moment | None = None,
    ) -> Event | Sequence[Event]:
        """Register events, in one session, all or none, however long that takes.

        Or one event, as :meth:`Client.register`, which is returned.

        Those of several calls are stored in the order of the calls. Whoever stops waiting
        (``asyncio.timeout``) does not know whether they are, or will be, stored, unless they were
        not sent yet: these are not. A ``request_key`` is as of :meth:`Client.register`; None: a new
        one. An application that repeats its own work after a crash gives the same key again.

        Raises:
            RegisterError: a server refused them for good, and none of them is stored.
            UnsupportedError: the server does not keep request keys.
            LocalProtocolError: the request cannot be sent (too large, for example).
            InvalidEventError, TypeError: no event can have such a type, time or payload.
            OutcomeUnknownError: the client was closed before an answer.
            ConnectionLostError: the client was closed before they were sent.
            InitError, UnknownHostError, …: it gave up before they were sent, for this reason.
        """
        one = asked(events, payload, request_key, source_timestamp)
        async with self._room:
            found = await self.submit(one.events, one.request_key or self._make_key())
        return one.answer(found)  # type: ignore[no-any-return]

    def submit(self, events: Sequence[RegisterEvent], key: str) -> asyncio.Future[Sequence[Event]]:
        """As :meth:`register`, without a bound: the caller limits how many are under way.

        To cancel the outcome is to stop waiting.
        """
        outcome: asyncio.Future[Sequence[Event]] = self._loop.create_future()
        if not self.is_open:
            outcome.set_exception(self._ended())
        else:
            self._waiting.append(Registration(events, key, outcome))
            self._changed.set()
        return outcome

    async def query(self, params: QueryParams) -> QueryResult:
        """As :meth:`Client.query`, again over the next connection if it is lost.

        Raises why the client gave up, if it did.
        """
        return (await self._query(params))[0]

    async def _query(self, params: QueryParams) -> tuple[QueryResult, Mapping[int, str]]:
        """As :meth:`query`, and the histories of the connection that it was answered over."""
        while True:
            client = await self._connected()
            with contextlib.suppress(errors.ConnectionLostError):
                return await client.query(params), client.histories
            await client.wait_closed()

    async def query_all(
        self, params: QueryParams, *, limit: int | None = None
    ) -> AsyncIterator[Event]:
        """As :meth:`Client.query_all`; each page is requested until it is there.

        Raises as :meth:`query`, and OtherHistoryError if a page came from a store of another
        history than those before it: query again.
        """
        async with aclosing(self.query_pages(params, limit=limit)) as pages:
            async for page in pages:
                for event in page:
                    yield event

    async def query_pages(
        self, params: QueryParams, *, limit: int | None = None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """As :meth:`query_all`, page by page; none is empty."""
        of_pages: dict[int, str] = {}

        async def query(page: QueryParams) -> QueryResult:
            result, histories = await self._query(page)
            for server_id, name in histories.items():
                if (before := of_pages.setdefault(server_id, name)) != name:
                    raise errors.OtherHistoryError(
                        server_id,
                        f"server {server_id}: its history is {name}, but {before} was queried"
                        " before: query again",
                    )
            return result

        async with aclosing(paging.query_pages(query, query_of(params), limit)) as pages:
            async for page in pages:
                yield page

    async def replay(self) -> AsyncGenerator[ReplayBatch, None]:
        """What the application missed, then what is new, over all connections.

        Each event comes once, in the order of its server, to the one who iterates. With a cursor,
        what was not acknowledged when a connection was lost comes again. Consume it, or requests
        wait behind what is not consumed, and the connection is made anew. The iteration ends when
        the client is closed.

        Raises:
            GapError: retention deleted events that were not seen. Call it again for what follows.
            OtherHistoryError: a server has another history than what was seen of it: its store was
                restored, or made anew. What was not seen of the other history may be lost. Call it
                again: it goes on behind what both have in common, with a cursor where that is.
            CursorLostError: another connection has the cursor now; the client is closed.
            InitError, UnknownHostError, …: the client gave up, for this reason.
            LocalProtocolError: the client was made without ``start`` and ``cursor``.
        """
        resumption = self._resumption
        if not resumption.is_wanted:
            raise errors.LocalProtocolError("replay: give start or cursor")
        while self.is_open:
            with contextlib.suppress(errors.ConnectionLostError):
                client = await self._connected()
                link = resumption.link
                try:
                    async for batch in client.replay():
                        if resumption.is_foreign(batch, link):
                            client.close()  # the next one is told
                            break
                        try:
                            fresh = await resumption.fresh(batch, link)
                        except asyncio.CancelledError:
                            client.close()  # the batch is to come again
                            raise
                        if fresh is not None:
                            yield fresh
                except errors.GapError as e:
                    if isinstance(e, errors.OtherHistoryError):
                        resumption.go_back(e, client.histories)
                    if resumption.is_new(e):
                        raise
                    continue
                await client.wait_closed()
        if self._cursor_lost is not None:
            raise errors.CursorLostError(self._cursor_lost)
        if self._failure is not None:
            raise self._ended()

    async def _connected(self) -> Client:
        while (client := self._client) is None or not client.is_open:
            if not self.is_open:
                raise self._ended()
            await self._change()
        return client

    def _ended(self) -> Exception:
        """Why nothing can be done any more."""
        if self._failure is None:
            return errors.ConnectionLostError(CLOSED_BY_CLIENT)
        error = type(self._failure)(*self._failure.args)  # each has its own traceback
        error.__cause__ = self._failure.__cause__
        return error

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- connections ----------------------------------------------------------------------

    async def _run(self) -> None:
        text = "client is not connected"
        try:
            while self._failure is None:
                wait_s = net_limits.RECONNECT_MAX_S
                if len(self._servers) > 1:  # another one takes over soon
                    wait_s = limits.OTHER_SERVERS_WAIT_S
                await keep_trying(
                    self._follow, Exception, mlog, text, {}, is_told=True, max_wait_s=wait_s
                )
            mlog.error("client gives up: %s", self._failure, extra={"reason": str(self._failure)})
        except Exception as e:  # a handler of the log, for one
            if self._failure is None:
                self._failure = errors.MarinerError(f"the client failed: {e!r}")
                self._failure.__cause__ = e
            raise

    async def _follow(self) -> None:
        """Use one connection, until it is lost.

        Returns if it was stable, or something got through, or the client gives up; else raises the
        reason.
        """
        client = await self._connect()
        if client is None:
            return
        self._was_connected = True
        connected_at, n_ended = self._loop.time(), self._n_ended
        self._sending = Tasks()
        self._client = client
        self._resumption.connected(client.histories, client.cursor_resets)
        self._window = 1
        self._changed.set()
        try:
            mlog.info("connected", extra={"server": client.address})
            self._sending.spawn(self._send_all, client)
            if len(self._servers) > 1:
                await client.wait_status(Status.STANDBY)
                await self._until(lambda: not self._answers)
                raise errors.ConnectError(f"{client.address}: STANDBY")
            await client.wait_closing()
            raise errors.ConnectionLostError(f"{client.address}: {client.close_reason}")
        except errors.MarinerError as e:
            duration_s = self._loop.time() - connected_at
            if n_ended == self._n_ended and duration_s < net_limits.STABLE_CONNECTION_S:
                raise
            mlog.warning("connection lost: %s; connecting again", e, extra={"reason": str(e)})
        finally:
            self._client = None
            if client.cursor_lost is not None:  # to take it back would go on for ever
                self._cursor_lost = client.cursor_lost
                self.close()
            await uncancellable(self._sending.async_close())
            await uncancellable(client.async_close())
            self._rewind()
            self._changed.set()

    async def _connect(self) -> Client | None:
        """Connect to the first server that is OPERATIONAL, beginning with the last one used.

        Returns None to give up; raises ConnectError if it is to be tried again.
        """
        failures: list[Exception] = []
        for _ in range(len(self._servers)):
            try:
                client = await self._open(self._servers[0])
            except (errors.MarinerError, TypeError) as e:
                failures.append(e)
            else:
                missing = [i for i in self._requires if i not in client.extensions]
                if missing:
                    text = f"{client.address}: the server does not know {missing[0]!r}"
                    failures.append(errors.UnsupportedError(text))
                elif self._is_usable(client):
                    return client
                else:
                    failures.append(errors.ConnectError(f"{client.address}: STANDBY"))
                await uncancellable(client.async_close())
            self._servers.rotate(-1)
        reasons = "; ".join(map(_text_of, failures))
        if self._gives_up and all(map(self._is_permanent, failures)):
            self._failure = type(failures[0])(reasons)
            self._failure.__cause__ = failures[0]
            return None
        raise errors.ConnectError(reasons)

    async def _open(self, connect: Connect) -> Client:
        """Connect to a server, the first time perhaps to find where its events end now."""
        if self._is_now_wanted:
            client = await connect(histories={})
            if not self._is_usable(client):
                return client
            async with client:
                client.check_supported("replay")
                found = await positions(client.query, client.histories)
            self._resumption.begin_at(found, client.histories)
            self._is_now_wanted = False
        return await connect(**self._resumption.options)

    def _is_usable(self, client: Client) -> bool:
        return len(self._servers) == 1 or client.status is Status.OPERATIONAL

    def _is_permanent(self, error: Exception) -> bool:
        if isinstance(error, errors.UnknownHostError):
            is_late = self._loop.time() - self._begun_at >= limits.UNKNOWN_HOST_S
            return is_late and not self._was_connected
        return isinstance(error, _PERMANENT) and not isinstance(error, errors.BusyError)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._change()

    # --- registrations --------------------------------------------------------------------

    async def _send_all(self, client: Client) -> None:
        sending, extra = functools.partial(self._send, client), {"server": client.address}
        text = f"registrations wait: {client.address}"
        try:
            while True:
                await keep_trying(sending, _REPEATABLE, mlog, text, extra, is_told=True)
        except errors.ConnectionLostError:
            pass
        except Exception:
            client.close()  # over the next one it goes on
            raise

    async def _send(self, client: Client) -> None:
        """Send what waits, until something is to be repeated.

        Returns if registrations ended meanwhile; raises why they are repeated if none did.
        """
        n_ended = self._n_ended
        self._failures.clear()
        while not self._failures:
            if client.status is not Status.OPERATIONAL:
                await client.wait_status(Status.OPERATIONAL)
            elif self._waiting and len(self._sent) < self._window:
                await self._send_one(client, self._waiting.popleft())
            else:
                await self._change()
        await self._until(lambda: not self._answers)
        self._rewind()
        if n_ended == self._n_ended:
            raise self._failures[0]

    async def _send_one(self, client: Client, registration: Registration) -> None:
        if registration.outcome.done():  # nobody waits for it
            return
        after_key = self._sent[-1].key if self._sent else None
        self._sent.append(registration)
        try:
            answer = await client.send_registration(
                registration.events, registration.key, after_key=after_key
            )
        except errors.ConnectionLostError:
            raise
        except Exception as e:  # whatever is wrong with it, those behind it are to be sent
            self._end(registration, e)
            return
        registration.is_sent = True
        waiting = asyncio.create_task(answer)
        self._answers.add(waiting)
        waiting.add_done_callback(functools.partial(self._on_answer, client, registration))

    def _on_answer(
        self, client: Client, registration: Registration, answer: asyncio.Task[Sequence[Event]]
    ) -> None:
        self._answers.discard(answer)
        self._window += 2
        self._changed.set()
        if answer.cancelled():  # the loop ends
            return
        error = answer.exception()
        if client is not self._client or client.close_reason is not None:
            return  # it is sent again over the next connection
        if isinstance(error, _REPEATABLE):
            self._failures.append(error)
        elif error is None or isinstance(error, errors.RegisterError):
            self._end(registration, error or answer.result())

    def _end(self, registration: Registration, outcome: Sequence[Event] | Exception) -> None:
        self._sent.remove(registration)  # nearly always the first
        self._n_ended += 1
        registration.end(outcome)

    def _rewind(self) -> None:
        """Send again what was sent."""
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()

    async def _fail_all(self) -> None:
        await self._sending.async_close()  # what is failed as unsent stays so
        self._rewind()
        for registration in self._waiting:
            ended = self._ended()
            registration.end(
                errors.OutcomeUnknownError(f"outcome unknown: {ended}")
                if registration.is_sent
                else ended
            )
        self._waiting.clear()
        self._changed.set()
