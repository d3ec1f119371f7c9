"""A connection to a gateway for code that blocks: ``mariner.client`` on a thread of its own.

The next page of an answer is asked for as soon as the one before it came, so that gateway and
reader work at the same time; the client also keeps the connection alive meanwhile.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import msgspec

from eventer_bridge.model import (
    Event,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    natural_key,
)
from mariner import client
from mariner.errors import ConnectError, InitError
from mariner_spark import limits
from mariner_spark.errors import OptionError, SourceError
from mariner_spark.source.options import GatewayOptions

PagedParams: TypeAlias = QueryTimeseriesParams | QueryServerParams
T = TypeVar("T")


class Gateway:
    """See the module. A context manager; connects when it is entered.

    Args:
        options: the gateway and who we are to it.

    Raises:
        OptionError: it cannot be reached, or declines us; on entering.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._client: client.Client

    def __enter__(self) -> Self:
        options = self._options
        self._thread.start()
        try:
            self._client = self._run(
                client.connect(
                    options.host,
                    options.port,
                    client_name=options.client_name,
                    client_token=options.token,
                    ssl=options.context(),
                    connect_timeout_s=limits.CONNECT_TIMEOUT_S,
                )
            )
        except ConnectError as e:
            self._stop()
            raise OptionError("host, port", str(e)) from e
        except InitError as e:
            self._stop()
            raise OptionError("client_name, token", f"{options!r} declined: {e}") from e
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run(self._client.async_close())
        finally:
            self._stop()

    def first(self, params: PagedParams) -> Event | None:
        """First event of an answer; None: it is empty.

        Raises:
            MarinerError: as :meth:`pages`.
        """
        params = msgspec.structs.replace(params, max_results=1)
        events = self._ask(params).result(limits.ANSWER_TIMEOUT_S).events
        return events[0] if events else None

    def pages(self, params: PagedParams) -> Iterator[Sequence[Event]]:
        """All events of an answer, in ascending order.

        Yields:
            Pages, none of which is empty.

        Raises:
            MarinerError: the connection was lost, or an answer cannot be right.
            SourceError: the gateway did not answer in time.
        """
        request: Future[QueryResult] | None = self._ask(params)
        last: Event | None = None
        is_anchored = False  # to the last event of the page before
        while request is not None:
            try:
                result = request.result(limits.ANSWER_TIMEOUT_S)
            except TimeoutError:
                raise SourceError(
                    f"{self._options!r} did not answer in {limits.ANSWER_TIMEOUT_S:.0f} s"
                ) from None
            request = None
            if result.more_follows:
                if not result.events:
                    raise SourceError(f"{self._options!r}: an empty page, but more follow")
                last_id = result.events[-1].id
                request = self._ask(msgspec.structs.replace(params, last_event_id=last_id))
                is_anchored = True
            elif is_anchored and not result.events and isinstance(params, QueryTimeseriesParams):
                # More was to follow. The last event was deleted meanwhile (retention), and with
                # it the place to go on from: its timestamp is still known.
                assert last is not None
                request = self._ask(msgspec.structs.replace(params, t_from=last.timestamp))
                is_anchored = False
            if events := _behind(last, result.events):
                last = events[-1]
                yield events

    def _ask(self, params: PagedParams) -> Future[QueryResult]:
        return asyncio.run_coroutine_threadsafe(self._client.query(params), self._loop)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _behind(last: Event | None, events: Sequence[Event]) -> Sequence[Event]:
    """Events that were not given yet. Pages follow each other, except after a deletion."""
    if last is None or not events or natural_key(events[0]) > natural_key(last):
        return events
    return [i for i in events if natural_key(i) > natural_key(last)]
