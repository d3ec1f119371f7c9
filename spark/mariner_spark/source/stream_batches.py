"""The batches of a stream: planning one, on the driver, and reading it, in tasks.

A batch has the events of each server after its start offset, up to and including its end offset.
A gateway that has the event at the end offset, or a later one, has all of them: events of a server
reach other gateways in their order.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.model import INT64_MAX, Event, EventId, EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits
from mariner_spark.errors import DataLossError, HistoryError, OptionError
from mariner_spark.source import data_loss, histories
from mariner_spark.source.columns import make_batch
from mariner_spark.source.event_rows import EventRows
from mariner_spark.source.gateway import GatewayClient, Pages, ReplayRequest
from mariner_spark.source.gateways import Backoff, GatewayPool
from mariner_spark.source.options import Options
from mariner_spark.source.server_events import after, from_event, split_sessions

mlog = logging.getLogger(__name__)


class StreamPartition(InputPartition):
    """Events of a server that one task reads.

    Args:
        server: the server.
        start: offset to start after; None: from the first event.
        end: its end, included; an event with this id or a later one exists.
        history_id: history of the events; None: unknown.
    """

    def __init__(
        self, server: int, start: EventId | None, end: EventId, history_id: str | None = None
    ) -> None:
        super().__init__(None)
        self.server = server
        self.start = start
        self.end = end
        self.history_id = history_id


class _Availability(NamedTuple):
    """The events of a batch on a gateway."""

    first_session: int
    is_complete: bool


def plan(
    gateways: GatewayPool,
    options: Options,
    server: int,
    start: EventId | None,
    end: EventId,
    *,
    history_id: str | None,
) -> Sequence[StreamPartition]:
    """Plan the partitions of a server; waits for a gateway that has its events.

    Args:
        gateways: the gateways.
        options: options of the stream.
        server: the server.
        start: offset to start after; None: from the first event.
        end: its last event.
        history_id: history of the events; None: unknown.

    Raises:
        OptionError: a gateway refuses this client.
        DataLossError: events were deleted.
        HistoryError: a gateway has another history.
    """
    refused: list[HistoryError] = []

    def find(gateway: GatewayClient) -> _Availability | None:
        try:
            histories.check_gateway(gateway, server, history_id, end.session)
        except HistoryError as e:
            refused.append(e)  # another gateway may have the right history
            return None
        if gateway.first(from_event(end)) is None:
            return None  # not replicated yet
        if start is not None:
            return _Availability(start.session, not data_loss.detect(gateway, start, end))
        first = gateway.first(after(server, None))
        return None if first is None else _Availability(min(first.id.session, end.session), True)

    backoff = Backoff()
    while not (found := _until_complete(gateways.query_each(find))):
        if not gateways.is_any_unavailable:
            if refused:
                raise refused[0]
            _report(options, f"server {server}: the events up to {_text(end)} are not there")
            return []
        backoff.wait(gateways.reasons)
    best = found[-1]
    if start is not None and not best.is_complete:
        _report(
            options,
            f"server {server}: events behind {_text(start)} seem to be deleted (retention) before"
            " they were read",
        )
    n_slices = (end.session - best.first_session) // limits.SLICE_SESSIONS
    n_slices = min(max(n_slices, 1), options.partitions or limits.NETWORK_PARTITIONS)
    slices = split_sessions(best.first_session, end.session, n_slices)
    inner = [EventId(server, last_session, INT64_MAX) for _, last_session in slices[:-1]]
    return [
        StreamPartition(server, begin, stop, history_id)
        for begin, stop in zip([start, *inner], [*inner, end], strict=True)
    ]


def read(
    options: Options, partition: StreamPartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read a partition; resumes on another gateway if need be, until it is complete.

    Raises:
        OptionError: a gateway refuses this client.
        MarinerError, SourceError: a gateway violated the protocol, or has another history.
    """
    gateways = GatewayPool(options.gateways)
    backoff = Backoff()
    with closing(_PartitionReader(partition, options.selection.types)) as reader:
        while not reader.is_done:
            events = next(gateways.query_each(reader.next_events), None)
            if events is None:
                if reader.refused is not None and not gateways.is_any_unavailable:
                    raise reader.refused
                backoff.wait(gateways.reasons or f"no gateway has all up to {_text(partition.end)}")
                continue
            backoff = Backoff()
            for begin in range(0, len(events), limits.BATCH_ROWS):
                yield make_batch(EventRows(events[begin : begin + limits.BATCH_ROWS]), schema)


class _PartitionReader:
    """Reads a partition page by page, and remembers its offset.

    A page has events of all types. If few of them are selected, the gateway replays the rest of the
    partition, of the selected types only. That takes another connection, whose events are stored,
    too: a partition of one page or two does without.

    Args:
        partition: the partition.
        types: types of the selected events; None: all.

    Attributes:
        refused: the error of a gateway with another history.
    """

    def __init__(self, partition: StreamPartition, types: tuple[EventType, ...] | None) -> None:
        self._partition = partition
        self._types = types
        self._accept = _make_filter(types)
        self._offset = partition.start
        self._gateway: GatewayClient | None = None
        self.refused: HistoryError | None = None
        self._pages: Pages | None = None
        self._is_replaying = False
        self._may_replay = types is not None

    @property
    def is_done(self) -> bool:
        """Whether the whole partition was read."""
        return self._offset is not None and self._offset >= self._partition.end

    def close(self) -> None:
        """End what is under way."""
        if self._pages is not None:
            self._pages.close()

    def next_events(self, gateway: GatewayClient) -> Sequence[Event] | None:
        """The next selected events, from this gateway; None: it has no more of any type."""
        partition = self._partition
        if gateway is not self._gateway:
            try:
                end = partition.end.session
                histories.check_gateway(gateway, partition.server, partition.history_id, end)
            except HistoryError as e:
                self.refused = e  # another gateway may have the right history
                return None
            params = after(partition.server, self._offset)
            self._begin(gateway.pages(params, lambda last: last.id >= partition.end))
            self._gateway = gateway
        assert self._pages is not None
        try:
            page = next(self._pages, None)
        except OptionError:  # it declines another connection
            if not self._is_replaying:
                raise
            self._may_replay, self._gateway = False, None
            return ()
        if page is None:
            self._gateway = None
            if not self._is_replaying:
                return None
            self._offset = partition.end
            return ()
        self._offset = page[-1].id
        events = [i for i in page if i.id <= partition.end and self._accept(i.type)]
        if len(events) < limits.REPLAYED_SHARE * len(page):
            self._replay(gateway)
        return events

    def _begin(self, pages: Pages, *, is_replaying: bool = False) -> None:
        self.close()
        self._pages, self._is_replaying = pages, is_replaying

    def _replay(self, gateway: GatewayClient) -> None:
        """Have the rest replayed, if the gateway can, and has all of it."""
        if not self._may_replay or self._is_replaying or self.is_done or not gateway.can_replay:
            return
        if gateway.first(from_event(self._partition.end)) is None:
            return
        assert self._offset is not None
        assert self._types is not None
        rest = gateway.replay(ReplayRequest(self._offset, self._types))
        self._begin(rest, is_replaying=True)


def _until_complete(answers: Iterable[_Availability]) -> list[_Availability]:
    """Answers up to the first that is complete."""
    found: list[_Availability] = []
    for answer in answers:
        found.append(answer)
        if answer.is_complete:
            break
    return found


def _report(options: Options, reason: str) -> None:
    """Report lost events.

    Raises:
        DataLossError: the option ``failOnDataLoss`` is set.
    """
    if options.stream.fails_on_loss:
        raise DataLossError(f"{reason}; failOnDataLoss=false goes on with what there is")
    mlog.warning("going on with what there is: %s", reason)


def _make_filter(types: tuple[EventType, ...] | None) -> Callable[[EventType], bool]:
    """Condition: whether a type is selected."""
    if types is None:
        return lambda event_type: True
    return lru_cache(limits.NAMED_TYPES)(Subscription(types).matches)


def _text(event_id: EventId) -> str:
    return f"{event_id.session}/{event_id.instance}"
