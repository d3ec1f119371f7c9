"""A blocking connection to a gateway: ``mariner.client`` on a thread of its own.

The next page of an answer is requested as soon as the previous one has arrived, so that gateway
and reader work at the same time; the client also keeps the connection alive meanwhile.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from eventer_bridge.core.paging import PageProgress, query_pages
from eventer_bridge.errors import RemoteProtocolError
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    natural_key,
)
from mariner import client
from mariner.client.replay import ReplayBatch
from mariner.errors import (
    ConnectError,
    ConnectionLostError,
    GapError,
    InitError,
    OtherHistoryError,
)
from mariner_spark import limits
from mariner_spark.errors import GatewayUnavailableError, OptionError, SourceError
from mariner_spark.source.options import GatewayOptions

PagedParams: TypeAlias = QueryTimeseriesParams | QueryServerParams
Pages: TypeAlias = Generator[Sequence[Event], None, None]
"""Events, some at a time; to be closed by who does not read them to the end."""

T = TypeVar("T")


class ReplayRequest(NamedTuple):
    """What a gateway is to replay.

    Attributes:
        last: events of its server after this one.
        types: events of these types.
        histories: of the gateway that the last event is of.
    """

    last: EventId
    types: Sequence[EventType]
    histories: Mapping[int, str] = {}


class GatewayClient:
    """See the module. A context manager, which closes it.

    Args:
        options: the gateway and the credentials.
        replay: what it is to replay.

    Raises:
        GatewayUnavailableError: it cannot be reached.
        OptionError: it refuses this client, or a file for TLS is missing.
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
        except ConnectError as e:
            self._stop()
            raise GatewayUnavailableError(str(e)) from e
        except InitError as e:
            self._stop()
            raise OptionError("client_name, token", f"{options!r} declined: {e}") from e
        except BaseException:
            self._stop()
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

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def query(self, params: QueryParams) -> QueryResult:
        """Answer of one query.

        Raises:
            MarinerError: as :meth:`pages`.
            GatewayUnavailableError: as :meth:`pages`.
        """
        return self._result(self._request(params))

    def first(self, params: PagedParams) -> Event | None:
        """First event of an answer; None: it is empty.

        Raises:
            MarinerError: as :meth:`pages`.
            GatewayUnavailableError: as :meth:`pages`.
        """
        events = self.query(msgspec.structs.replace(params, max_results=1)).events
        return events[0] if events else None

    def latest(self, event_types: Sequence[EventType]) -> Iterator[Event]:
        """Latest event of each type that matches, of all pages.

        Raises:
            MarinerError, GatewayUnavailableError: as :meth:`pages`.
            SourceError: more follow, but the gateway returns an empty page.
        """
        pages = query_pages(self._client.query, QueryLatestParams(event_types))

        async def next_page() -> Sequence[Event] | None:
            return await anext(pages, None)

        try:
            while page := self._result(self._submit(next_page())):
                yield from page
        except RemoteProtocolError as e:
            raise SourceError(f"{self._options!r}: {e}") from None

    def pages(self, params: PagedParams, is_last: Callable[[Event], bool] | None = None) -> Pages:
        """All events of an answer, in ascending order.

        Args:
            params: the query.
            is_last: whether no page is needed after one that ends with this event.

        Yields:
            Pages, none of which is empty.

        Raises:
            MarinerError: the gateway violated the protocol.
            GatewayUnavailableError: the connection was lost, or there was no answer in time.
            SourceError: more follow, but the gateway returns an empty page, or the same again.
        """
        try:
            yield from self._pages(params, is_last)
        except RemoteProtocolError as e:
            raise SourceError(f"{self._options!r}: {e}") from None

    def _pages(self, params: PagedParams, is_last: Callable[[Event], bool] | None) -> Pages:
        request: Future[QueryResult] | None = self._request(params)
        last: Event | None = None
        order: Callable[[Event], Any]
        order = natural_key if isinstance(params, QueryTimeseriesParams) else _id
        is_anchored = False  # at the last event of the previous page
        progress = PageProgress()
        while request is not None:
            result = self._result(request)
            request = None
            if result.more_follows:
                if not result.events:
                    raise SourceError(f"{self._options!r}: an empty page, but more follow")
                last_id = result.events[-1].id
                if is_last is None or not is_last(result.events[-1]):
                    progress.go_on(last_id)
                    request = self._request(msgspec.structs.replace(params, last_event_id=last_id))
                    is_anchored = True
            elif is_anchored and not result.events and isinstance(params, QueryTimeseriesParams):
                # More was to follow. Retention deleted the last event meanwhile, and with it the
                # position to continue from: its timestamp is still known.
                assert last is not None
                progress.resume(last.id)
                request = self._request(msgspec.structs.replace(params, t_from=last.timestamp))
                is_anchored = False
            if events := _new_events(last, result.events, order):
                last = events[-1]
                yield events

    @property
    def can_replay(self) -> bool:
        """Whether the gateway knows replays."""
        return "replay" in self._client.extensions

    def replay(self, wanted: ReplayRequest) -> Pages:
        """Events up to the newest, of which the gateway has selected the types.

        They come over a connection of their own, which ends with the iteration.

        Raises:
            MarinerError: the gateway violated the protocol.
            GatewayUnavailableError: the connection was lost, or there was no answer in time.
            OptionError: the gateway declines another connection.
        """
        wanted = wanted._replace(histories=self._client.histories)
        with GatewayClient(self._options, wanted) as replaying:
            yield from replaying._replayed()

    def _replayed(self) -> Iterator[Sequence[Event]]:
        batches = self._client.replay(until_up_to_date=True)

        async def next_batch() -> ReplayBatch | None:
            return await anext(batches, None)

        while True:
            try:
                batch = self._result(self._submit(next_batch()))
            except OtherHistoryError as e:  # since this connection was made
                raise GatewayUnavailableError(f"{self._options!r}: {e}") from e
            except GapError:  # what is deleted is found when a batch is planned
                batches = self._client.replay(until_up_to_date=True)
                continue
            if batch is None:
                return
            yield batch.events

    def _request(self, params: QueryParams) -> Future[QueryResult]:
        return self._submit(self._client.query(params))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _result(self, request: Future[T]) -> T:
        try:
            return request.result(limits.ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise GatewayUnavailableError(
                f"{self._options!r} did not answer in {limits.ANSWER_TIMEOUT_S:.0f} s"
            ) from None
        except ConnectionLostError as e:
            raise GatewayUnavailableError(str(e)) from e

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _id(event: Event) -> EventId:
    return event.id


def _new_events(
    last: Event | None, events: Sequence[Event], order: Callable[[Event], Any]
) -> Sequence[Event]:
    """Events after the last one. Pages only overlap after a deletion."""
    if last is None or not events or order(events[0]) > order(last):
        return events
    return [i for i in events if order(i) > order(last)]
