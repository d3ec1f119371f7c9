"""The client without ``await``, for scripts and notebooks: :func:`connect`, :class:`SyncClient`.

::

    with mariner.sync.connect("gateway", 23014, client_name="app") as client:
        client.register("lamp/1", {"on": True})
        for event in client.subscribe("lamp/*"):
            print(event)

It is the :class:`~mariner.client.ReconnectingClient`, on an event loop in a thread of its own: it
outlives its connections, and works in a notebook, where a loop is running already. Any thread may
call it, but for that one, where handlers of the log are called, too. Calls block; Ctrl-C ends them,
and leaves the client as it is. A fork has no such thread: connect after it.
"""

import asyncio
import contextlib
import functools
import ssl as ssl_module
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

from eventer_bridge.model import Event, QueryParams, QueryResult, RegisterEvent, Status
from eventer_bridge.resources import Resource
from mariner import client
from mariner.client.connection import CLOSED_BY_CLIENT
from mariner.client.replay import ReplayBatch, Start
from mariner.client.values import Moment, TypeText
from mariner.errors import ConnectionLostError

T = TypeVar("T")
ResourceT = TypeVar("ResourceT", bound=Resource)
Server: TypeAlias = Callable[..., Awaitable[client.Client]]
Started: TypeAlias = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]


def connect(
    host: str,
    port: int,
    *,
    client_name: str,
    client_token: str | None = None,
    ssl: ssl_module.SSLContext | None = None,
    server_hostname: str | None = None,
    connect_timeout_s: float = 10,
) -> "SyncClient":
    """Connect to a Mariner server; arguments and errors are those of ``mariner.connect``.

    An error is raised at once. A connection that is lost later is made anew.
    """
    server = functools.partial(
        client.connect,
        host,
        port,
        client_name=client_name,
        client_token=client_token,
        ssl=ssl,
        server_hostname=server_hostname,
        connect_timeout_s=connect_timeout_s,
    )
    background = _Background()
    try:
        return SyncClient(background, server, background.run(_open(background, server)))
    except BaseException:
        background.end()
        raise


async def _open(background: "_Background", server: Server) -> client.ReconnectingClient:
    async with await server():
        pass
    return background.keep(client.ReconnectingClient([server]))


class SyncClient:
    """See the module. Made by :func:`connect`; ``with`` closes it."""

    def __init__(
        self, background: "_Background", server: Server, connected: client.ReconnectingClient
    ) -> None:
        self._background = background
        self._server = server
        self._client = connected
        weakref.finalize(self, background.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it and its subscriptions; calls of other threads end."""
        self._background.end()
        self._background.join()

    @property
    def status(self) -> Status:
        """Status of the server; STANDBY without a connection."""
        return self._client.status

    @overload
    def register(
        self, events: Sequence[RegisterEvent], request_key: str | None = None
    ) -> Sequence[Event]: ...

    @overload
    def register(
        self,
        events: TypeText,
        payload: Any = None,
        *,
        source_timestamp: Moment | None = None,
        request_key: str | None = None,
    ) -> Event: ...

    def register(self, *args: Any, **options: Any) -> Event | Sequence[Event]:
        """As ``ReconnectingClient.register``: it is stored once, however long that takes."""
        registered: Event | Sequence[Event] = self._background.run(
            self._client.register(*args, **options)
        )
        return registered

    def query(self, params: QueryParams) -> QueryResult:
        """As ``Client.query``: one answer, which may be partial (``more_follows``)."""
        return self._background.run(self._client.query(params))

    def query_all(self, params: QueryParams, *, limit: int | None = None) -> Iterator[Event]:
        """As ``Client.query_all``: all events, page by page, each on demand."""
        pages = self._client.query_pages(params, limit=limit)
        while page := self._background.run(_next(pages)):
            yield from page

    def subscribe(
        self,
        *event_types: TypeText,
        start: Start | Literal["now"] | None = None,
        cursor: str | None = None,
        server_id: int | None = None,
    ) -> "SyncEvents":
        """Events as they come, over a connection of its own, each once, whatever is restarted.

        Args:
            event_types: such as ``"lamp/*"``; none: all.
            start: where they begin, as of ``mariner.ReconnectingClient``. None: now; those of a new
                cursor with the earliest.
            cursor: name of a cursor, which the server keeps: they begin behind what was
                acknowledged. Events are acknowledged when later ones are asked for.
            server_id: only events of this server.

        Raises:
            InitError, InvalidEventError, UnsupportedError: as ``mariner.connect``.
        """
        server = functools.partial(
            self._server, subscriptions=event_types or "*", server_id=server_id
        )
        begin = start if start is not None or cursor is not None else "now"

        async def subscribed() -> client.ReconnectingClient:
            opened = self._background.keep(
                client.ReconnectingClient([server], start=begin, cursor=cursor)
            )
            try:
                await opened.wait_connected()
            except BaseException:
                opened.close()
                raise
            return opened

        opened = self._background.run(subscribed())
        return SyncEvents(self, self._background, opened, is_acknowledged=cursor is not None)


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


class SyncEvents(Iterator[Event]):
    """Events of a subscription, as they come; ends when it or its client is closed.

    With a cursor, for one thread at a time: what it asks for acknowledges what came before. After
    an error, such as ``GapError`` or ``KeyboardInterrupt``, it goes on with the next event.
    Made by :meth:`SyncClient.subscribe`.
    """

    def __init__(
        self,
        owner: SyncClient,
        background: "_Background",
        subscribed: client.ReconnectingClient,
        *,
        is_acknowledged: bool,
    ) -> None:
        self._owner = owner  # would end if it were forgotten
        self._background = background
        self._client = subscribed
        self._is_acknowledged = is_acknowledged
        self._replay: AsyncIterator[ReplayBatch] | None = None
        self._batch: ReplayBatch | None = None  # to be acknowledged
        self._events: deque[Event] = deque()
        self._turn = asyncio.Lock()
        weakref.finalize(self, background.call, subscribed.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._background.call(self._client.close)

    def __next__(self) -> Event:
        goes_on = True
        while goes_on or self._events:
            with contextlib.suppress(IndexError):  # another thread may have taken them
                return self._events.popleft()
            try:
                goes_on = self._background.run(self._receive())
            except ConnectionLostError:
                if self._background.is_open and self._client.is_open:
                    raise
                goes_on = False
        raise StopIteration

    async def _receive(self) -> bool:
        """Receive events, unless there are some; returns whether it goes on."""
        async with self._turn:  # one may go on that Ctrl-C left behind, or another thread's
            if self._events:
                return True
            if self._batch is not None:
                await self._batch.ack()
                self._batch = None
            if self._replay is None:
                self._replay = self._client.replay()
            try:
                batch = await anext(self._replay, None)
            except BaseException:
                self._replay = None  # another one goes on
                raise
            if batch is None:
                return False
            self._events.extend(batch.events)
            self._batch = batch if self._is_acknowledged else None
            return True


class _Background:
    """An event loop in a thread, until :meth:`end`; then what is kept is closed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage is collected anywhere
        self.is_open = True
        self._kept: list[Resource] = []
        started: Started = Future()
        self._thread = threading.Thread(
            target=_run_loop, args=(started, self._kept), name="mariner.sync", daemon=True
        )
        self._thread.start()
        self._loop, self._ended = started.result()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for it; ``ConnectionLostError``: it has ended.

        ``RuntimeError``: it would wait for itself.
        """
        with self._lock:
            try:
                self._check()
            except BaseException:
                work.close()
                raise
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ConnectionLostError(CLOSED_BY_CLIENT) from None
        except BaseException:  # KeyboardInterrupt, for one
            future.cancel()
            raise

    def _check(self) -> None:
        if not self.is_open:
            raise ConnectionLostError(CLOSED_BY_CLIENT)
        if not self._thread.is_alive():
            raise ConnectionLostError("the client's thread is gone; connect again after a fork")
        if self._thread is threading.current_thread():
            raise RuntimeError(
                "called in the client's own thread, by a handler of its log, for example:"
                " it would wait for itself"
            )

    def call(self, function: Callable[[], object]) -> None:
        """Call a function there, soon."""
        with self._lock:
            if self.is_open and self._thread.is_alive():
                self._loop.call_soon_threadsafe(function)

    def keep(self, resource: ResourceT) -> ResourceT:
        """Close a resource in the end; to be called there."""
        self._kept[:] = [i for i in self._kept if not i.is_closed] + [resource]
        return resource

    def end(self) -> None:
        """End it soon."""
        with self._lock:
            self.call(self._ended.set)
            self.is_open = False

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()


def _run_loop(started: Started, kept: list[Resource]) -> None:
    try:
        with asyncio.Runner() as runner:
            runner.run(_serve(started, kept))
    except BaseException as e:
        if started.done():
            raise
        started.set_exception(e)


async def _serve(started: Started, kept: list[Resource]) -> None:
    ended = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), ended))
    await ended.wait()
    while kept:  # some may be added meanwhile
        closing = kept.copy()
        kept.clear()
        await asyncio.gather(*(i.async_close() for i in closing))
