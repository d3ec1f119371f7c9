"""The batches of a stream: planning one, on the driver, and reading it, in tasks.

A batch has for each server the events behind one up to and with another one. Both are events
that some gateway had, so that a gateway which answers with an event not before the last one
has all of them: events of a server come to other gateways in their order.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.model import INT64_MAX, Event, EventId, EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits
from mariner_spark.errors import DataLossError, HistoryError
from mariner_spark.source import data_loss, histories
from mariner_spark.source.columns import make_batch
from mariner_spark.source.event_rows import EventRows
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.gateways import Backoff, GatewayPool
from mariner_spark.source.options import Options
from mariner_spark.source.server_events import after, cut, from_event

mlog = logging.getLogger(__name__)


class StreamPartition(InputPartition):
    """What one task reads: events of a server.

    Args:
        server: the server.
        start: event behind which it begins; None: with the first one.
        end: where it ends; there are events from here on.
        held: history that they are of; None: not known.
    """

    def __init__(
        self, server: int, start: EventId | None, end: EventId, held: str | None = None
    ) -> None:
        super().__init__(None)
        self.server = server
        self.start = start
        self.end = end
        self.held = held


class _Place(NamedTuple):
    """How a gateway has the events of a batch."""

    first_session: int
    is_complete: bool


def plan(
    gateways: GatewayPool,
    options: Options,
    server: int,
    start: EventId | None,
    end: EventId,
    *,
    held: str | None,
) -> Sequence[StreamPartition]:
    """Plan what is read of a server; waits for a gateway that has it.

    Args:
        gateways: the gateways.
        options: options of the stream.
        server: the server.
        start: event behind which it begins; None: with the first one.
        end: its last event.
        held: history that it is of; None: not known.

    Raises:
        OptionError: a gateway declines us.
        DataLossError: events were deleted.
        HistoryError: a gateway has another history.
    """
    refused: list[HistoryError] = []

    def look(gateway: GatewayClient) -> _Place | None:
        try:
            histories.check_gateway(gateway, server, held, end.session)
        except HistoryError as e:
            refused.append(e)  # another one may have it
            return None
        if gateway.first(from_event(end)) is None:
            return None  # it does not have them yet
        if start is not None:
            return _Place(start.session, not data_loss.detect(gateway, start, end))
        first = gateway.first(after(server, None))
        return None if first is None else _Place(min(first.id.session, end.session), True)

    patience = Backoff()
    while not (places := _until_complete(gateways.ask(look))):
        if not gateways.is_anyone_away:
            if refused:
                raise refused[0]
            _report(options, f"server {server}: the events up to {_text(end)} are not there")
            return []
        patience.wait(gateways.reasons)
    place = places[-1]
    if start is not None and not place.is_complete:
        _report(
            options,
            f"server {server}: events behind {_text(start)} seem to be deleted (retention) before"
            " they were read",
        )
    n_slices = (end.session - place.first_session) // limits.SLICE_SESSIONS
    n_slices = min(max(n_slices, 1), options.partitions or limits.NETWORK_PARTITIONS)
    edges = cut(place.first_session, end.session, n_slices)
    inner = [EventId(server, last_session, INT64_MAX) for _, last_session in edges[:-1]]
    return [
        StreamPartition(server, low, high, held)
        for low, high in zip([start, *inner], [*inner, end], strict=True)
    ]


def read(
    options: Options, partition: StreamPartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read a partition; goes on where it was, with another gateway if need be, until it has all.

    Raises:
        OptionError: a gateway declines us.
        MarinerError, SourceError: an answer cannot be right, or the gateway has another history.
    """
    gateways = GatewayPool(options.gateways)
    reading = _Reading(partition)
    accept = _make_filter(options.selection.types)
    patience = Backoff()
    while not reading.is_done:
        page = next(gateways.ask(reading.next_page), None)
        if page is None:
            if reading.refused is not None and not gateways.is_anyone_away:
                raise reading.refused
            patience.wait(gateways.reasons or f"no gateway has all up to {_text(partition.end)}")
            continue
        patience = Backoff()
        events = [i for i in page if i.id <= partition.end and accept(i.type)]
        for begin in range(0, len(events), limits.BATCH_ROWS):
            yield make_batch(EventRows(events[begin : begin + limits.BATCH_ROWS]), schema)


class _Reading:
    """How far a partition is read.

    Args:
        partition: the partition.

    Attributes:
        refused: a gateway that has another history.
    """

    def __init__(self, partition: StreamPartition) -> None:
        self._partition = partition
        self._reached = partition.start
        self._gateway: GatewayClient | None = None
        self.refused: HistoryError | None = None
        self._pages: Iterator[Sequence[Event]] = iter(())

    @property
    def is_done(self) -> bool:
        """Whether all of it is read."""
        return self._reached is not None and self._reached >= self._partition.end

    def next_page(self, gateway: GatewayClient) -> Sequence[Event] | None:
        """What follows, of this gateway; None: it has no more."""
        if gateway is not self._gateway:
            partition = self._partition
            try:
                end = partition.end.session
                histories.check_gateway(gateway, partition.server, partition.held, end)
            except HistoryError as e:
                self.refused = e  # another one may have it
                return None
            params = after(self._partition.server, self._reached)
            self._pages = gateway.pages(params, lambda last: last.id >= self._partition.end)
            self._gateway = gateway
        page = next(self._pages, None)
        if page is None:
            self._gateway = None
        else:
            self._reached = page[-1].id
        return page


def _until_complete(places: Iterable[_Place]) -> list[_Place]:
    """Places up to the first that is complete."""
    found: list[_Place] = []
    for place in places:
        found.append(place)
        if place.is_complete:
            break
    return found


def _report(options: Options, reason: str) -> None:
    """Tell of a loss.

    Raises:
        DataLossError: the query is to end by it.
    """
    if options.stream.fails_on_loss:
        raise DataLossError(f"{reason}; failOnDataLoss=false goes on with what there is")
    mlog.warning("going on with what there is: %s", reason)


def _make_filter(types: tuple[EventType, ...] | None) -> Callable[[EventType], bool]:
    """Whether events of a type are asked for."""
    if types is None:
        return lambda event_type: True
    asked = Subscription(types)
    return lru_cache(limits.NAMED_TYPES)(asked.matches)


def _text(event_id: EventId) -> str:
    return f"{event_id.session}/{event_id.instance}"
