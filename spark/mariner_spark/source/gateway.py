"""Blocking connections to gateways: ``mariner.client`` on a thread of its own.

The next page of an answer is requested as soon as the previous one has arrived, so that gateway
and reader work at the same time; the client also keeps the connection alive meanwhile.
"""

import asyncio
import logging
import random
import threading
import time
from collections import abc
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from eventer_bridge import model
from eventer_bridge.core.paging import query_pages
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.model import Event, EventId, EventType
from mariner import client, errors
from mariner_spark import limits
from mariner_spark.errors import GatewayUnavailableError, OptionError, SourceError
from mariner_spark.source.options import GatewayOptions

mlog = logging.getLogger(__name__)

PagedParams: TypeAlias = model.QueryTimeseriesParams | model.QueryServerParams
Pages: TypeAlias = abc.Generator[Sequence[Event], None, None]
"""Events, some at a time; to be closed if not read to the end."""

T = TypeVar("T")


class ReplayRequest(NamedTuple):
    """Events after ``last`` of its server, of these types, and histories that it is of."""

    last: EventId
    types: Sequence[EventType]
    histories: Mapping[int, str] = {}


class GatewayClient:
    """A blocking connection; a context manager, which closes it.

    Raises GatewayUnavailableError if the gateway cannot be reached, OptionError if it refuses this
    client, or a file for TLS is missing.
    """

    def __init__(self, options: GatewayOptions, replay: ReplayRequest | None = None) -> None:
        ssl = options.context()
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client = self._run(
                client.connect(
                    options.host,
                    options.port,
                    client_name=options.client_name,
                    client_token=options.token,
                    subscriptions=() if replay is None else replay.types,
                    server_id=None if replay is None else replay.last.server,
                    start=None if replay is None else [replay.last],
                    histories={} if replay is None else replay.histories,
                    ssl=ssl,
                    connect_timeout_s=limits.CONNECT_TIMEOUT_S,
                )
            )
        except BaseException as e:
            self._stop()
            if isinstance(e, errors.ConnectError):
                raise GatewayUnavailableError(str(e)) from e
            if isinstance(e, errors.InitError):
                raise OptionError("client_name, token", f"{options!r} declined: {e}") from e
            raise

    def __repr__(self) -> str:
        return repr(self._options)

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither lost nor closed."""
        return self._client.is_open

    def close(self) -> None:
        """Close the connection; to be called once."""
        try:
            self._run(self._client.async_close())
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query(self, params: model.QueryParams) -> model.QueryResult:
        """Answer of one query; raises as :meth:`pages`."""
        return self._result(self._submit(self._client.query(params)))

    def first(self, params: PagedParams) -> Event | None:
        """First event of an answer; None: it is empty. Raises as :meth:`query`."""
        events = self.query(msgspec.structs.replace(params, max_results=1)).events
        return events[0] if events else None

    def latest(self, event_types: Sequence[EventType]) -> Iterator[Event]:
        """Latest event of each type that matches; raises as :meth:`pages`."""
        for page in self.pages(model.QueryLatestParams(event_types)):
            yield from page

    def pages(
        self,
        params: model.QueryParams,
        is_last: Callable[[Event], bool] = lambda _event: False,
        limit: int | None = None,
    ) -> Pages:
        """Pages of an answer (``eventer_bridge.core.paging``), none of which is empty.

        No page is requested after one whose last event satisfies ``is_last``. Raises MarinerError
        if the gateway violated the protocol, GatewayUnavailableError if the connection was lost, or
        there was no answer in time, SourceError if it does not return the remaining events, or the
        same again.
        """
        pages = query_pages(self._client.query, params, limit)
        page: Future[Sequence[Event] | None] = self._submit(_next(pages))
        try:
            while events := self._result(page):
                if not (ends := is_last(events[-1])):
                    page = self._submit(_next(pages))
                yield events
                if ends:
                    return
        except RemoteProtocolError as e:
            raise SourceError(f"{self._options!r}: {e}") from None
        finally:
            if not page.cancel() and not self._loop.is_closed():
                self._submit(_close(pages))

    @property
    def can_replay(self) -> bool:
        """Whether the gateway knows replays."""
        return "replay" in self._client.extensions

    def replay(self, wanted: ReplayRequest) -> Pages:
        """Events of selected types, up to the newest; raises as :meth:`pages`.

        They come over a connection of their own, which the gateway may decline: OptionError.
        """
        wanted = wanted._replace(histories=self._client.histories)
        with GatewayClient(self._options, wanted) as replaying:
            yield from replaying._replayed()

    def _replayed(self) -> Iterator[Sequence[Event]]:
        batches = self._client.replay(until_up_to_date=True)
        while True:
            try:
                batch = self._result(self._submit(_next(batches)))
            except errors.OtherHistoryError as e:  # since this connection was made
                raise GatewayUnavailableError(f"{self._options!r}: {e}") from e
            except errors.GapError:  # what is deleted is found when a batch is planned
                batches = self._client.replay(until_up_to_date=True)
                continue
            if batch is None:
                return
            yield batch.events

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _result(self, request: Future[T]) -> T:
        try:
            return request.result(limits.ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise GatewayUnavailableError(
                f"{self._options!r} did not answer in {limits.ANSWER_TIMEOUT_S:.0f} s"
            ) from None
        except errors.ConnectionLostError as e:
            raise GatewayUnavailableError(str(e)) from e

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(items: abc.AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _close(items: abc.AsyncGenerator[Any, None]) -> None:
    await items.aclose()


# --- several gateways ---------------------------------------------------------------------

_open: dict[GatewayOptions, GatewayClient] = {}
"""Connections of this process, kept from one batch of a stream to the next: a gateway registers
events when a client connects and leaves, so a connection a batch would always cause a next one."""


class Backoff:
    """Exponential backoff between two attempts, which logs each new reason."""

    def __init__(self) -> None:
        self.reason = ""
        self._wait_s = limits.RETRY_MIN_S
        self._until_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the next attempt; 0 or less when it is due."""
        return self._until_s - time.monotonic()

    def fail(self, reason: str) -> None:
        """Record a failed attempt."""
        if reason != self.reason:
            mlog.warning("waiting: %s", reason)
        self.reason = reason
        self._until_s = time.monotonic() + self._wait_s * random.uniform(0.5, 1)  # noqa: S311
        self._wait_s = min(2 * self._wait_s, limits.RETRY_MAX_S)

    def wait(self, reason: str) -> None:
        """Record a failed attempt, and wait until the next one is due."""
        self.fail(reason)
        time.sleep(max(self.remaining_s, 0))


class GatewayPool:
    """Gateways, queried in turn: the last to answer first, unavailable ones later."""

    def __init__(self, options: Iterable[GatewayOptions]) -> None:
        self._options = list(options)
        self._unavailable: dict[GatewayOptions, Backoff] = {}

    @property
    def is_any_unavailable(self) -> bool:
        """Whether a gateway did not answer its last query."""
        return bool(self._unavailable)

    @property
    def are_all_unavailable(self) -> bool:
        """Whether no gateway answered its last query."""
        return len(self._unavailable) == len(self._options)

    @property
    def reasons(self) -> str:
        """Reasons of the unavailable gateways."""
        return "; ".join(i.reason for i in self._unavailable.values())

    def query_each(self, query: Callable[[GatewayClient], T | None]) -> Iterator[T]:
        """Query the gateways one after the other, lazily; one may have no answer (None).

        Raises OptionError if a gateway refuses this client, MarinerError or SourceError if one
        violated the protocol.
        """
        for options in tuple(self._options):
            backoff = self._unavailable.get(options)
            if backoff is not None and backoff.remaining_s > 0:
                continue
            try:
                answer = query(_connected(options))
            except GatewayUnavailableError as e:
                _drop(options)
                self._unavailable.setdefault(options, Backoff()).fail(e.reason)
                continue
            self._unavailable.pop(options, None)
            if answer is not None:
                self._options.remove(options)
                self._options.insert(0, options)
                yield answer

    def close(self) -> None:
        """Close the connections."""
        for options in self._options:
            _drop(options)


def _connected(options: GatewayOptions) -> GatewayClient:
    gateway = _open.get(options)
    if gateway is not None and gateway.is_open:
        return gateway
    _drop(options)
    gateway = _open[options] = GatewayClient(options)
    return gateway


def _drop(options: GatewayOptions) -> None:
    if (gateway := _open.pop(options, None)) is not None:
        gateway.close()
