"""Reading from a gateway by the Mariner protocol: planning, and the tasks.

A read ends at the newest event that the gateway has when it is planned. It is cut into slices
of time (timeseries queries), or of sessions where all events of one server are asked for
(server queries). Every slice is read page by page over a connection of its own.

A timeseries query cannot name servers: the events of others are left out where they arrive.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.model import (
    INT64_MIN,
    Event,
    Order,
    QueryTimeseriesParams,
    Timestamp,
)
from mariner_spark import limits, times
from mariner_spark.source.columns import make_batch
from mariner_spark.source.event_rows import EventRows
from mariner_spark.source.gateway import GatewayClient, PagedParams
from mariner_spark.source.options import GatewayOptions
from mariner_spark.source.selection import Selection
from mariner_spark.source.server_events import after, after_session, cut, find_last
from mariner_spark.times import Interval

Plan: TypeAlias = list["NetworkPartition"]


class NetworkPartition(InputPartition):
    """What one task reads.

    Args:
        params: its query.
        last_session: of a server query: the last session that belongs to it.
    """

    def __init__(self, params: PagedParams, last_session: int | None = None) -> None:
        super().__init__(None)
        self.params = params
        self.last_session = last_session


def plan(options: GatewayOptions, selection: Selection, n_partitions: int | None) -> Plan:
    """Plan a read; asks the gateway.

    Args:
        options: the gateway.
        selection: which events.
        n_partitions: how many partitions at most; None: ``limits.NETWORK_PARTITIONS``.

    Raises:
        OptionError: the gateway cannot be reached, or declines us.
        MarinerError: it did not answer as it should.
    """
    n_partitions = n_partitions or limits.NETWORK_PARTITIONS
    with GatewayClient(options) as gateway:
        if selection.servers is not None and selection.is_servers_only:
            n_slices = max(n_partitions // len(selection.servers), 1)
            servers = sorted(selection.servers)
            return [i for server in servers for i in _cut_sessions(gateway, server, n_slices)]
        return _cut_time(gateway, _params(selection), n_partitions)


def read(
    options: GatewayOptions, partition: NetworkPartition, selection: Selection, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read a partition.

    Raises:
        OptionError: the gateway cannot be reached, or declines us.
        MarinerError: the connection was lost, or an answer cannot be right.
    """
    accept = _make_filter(partition, selection)
    with GatewayClient(options) as gateway:
        for page in gateway.pages(partition.params, lambda event: _is_past(partition, event)):
            events = page if accept is None else list(filter(accept, page))
            for begin in range(0, len(events), limits.BATCH_ROWS):
                yield make_batch(EventRows(events[begin : begin + limits.BATCH_ROWS]), schema)


def last_timestamp(options: GatewayOptions, time: Interval) -> Timestamp | None:
    """Timestamp of the last event in some time, of any type that we may see; None: there is none.

    Raises:
        OptionError: the gateway cannot be reached, or declines us.
        MarinerError: it did not answer as it should.
    """
    params = _params(Selection(time=time))
    with GatewayClient(options) as gateway:
        found = gateway.first(msgspec.structs.replace(params, order=Order.DESCENDING))
    return None if found is None else found.timestamp


def _params(selection: Selection) -> QueryTimeseriesParams:
    """Query of all that a selection asks for, but of any server."""
    t_from, t_to = selection.time.timestamps()
    source_from, source_to = (selection.source or Interval()).timestamps()
    if selection.source is not None and source_from is None and source_to is None:
        source_from = Timestamp(INT64_MIN, 0)  # any that there is
    return QueryTimeseriesParams(
        event_types=selection.types,
        t_from=t_from,
        t_to=t_to,
        source_t_from=source_from,
        source_t_to=source_to,
        order=Order.ASCENDING,
    )


def _cut_time(gateway: GatewayClient, params: QueryTimeseriesParams, n_slices: int) -> Plan:
    """Slices of time with about as many sessions each, up to the newest event."""
    change = msgspec.structs.replace
    first = gateway.first(params)
    last = gateway.first(change(params, order=Order.DESCENDING))
    if first is None or last is None:
        return []
    begin, end = first.timestamp, last.timestamp
    inner = sorted({i for i in _inner_edges(gateway, first, last, n_slices) if begin < i <= end})
    edges = [*(times.exact_us(i) for i in inner), times.exact_us(end) + 1]
    slices = zip([begin, *inner], (times.to_timestamp(i - 1) for i in edges), strict=True)
    return [NetworkPartition(change(params, t_from=low, t_to=high)) for low, high in slices]


def _inner_edges(
    gateway: GatewayClient, first: Event, last: Event, n_slices: int
) -> Iterator[Timestamp]:
    """Timestamps that cut what lies between two events.

    Where both are of one server its sessions are counted, because they rise with time however
    unevenly they are spread over it; otherwise time is cut into equal parts.
    """
    if first.id.server == last.id.server and last.id.session - first.id.session >= n_slices:
        n_sessions = last.id.session - first.id.session + 1
        for i in range(1, n_slices):
            session = first.id.session + i * n_sessions // n_slices
            found = gateway.first(after_session(first.id.server, session - 1))
            if found is not None:
                yield found.timestamp
        return
    begin, end = times.exact_us(first.timestamp), times.exact_us(last.timestamp)
    for i in range(1, n_slices):
        yield times.to_timestamp(begin + i * (end - begin) // n_slices)


def _cut_sessions(gateway: GatewayClient, server: int, n_slices: int) -> Plan:
    """Slices of the sessions of a server, up to the newest."""
    first = gateway.first(after(server, None))
    last = None if first is None else find_last(gateway, server, first.id)
    if first is None or last is None:
        return []
    return [
        NetworkPartition(after_session(server, before), last_session)
        for before, last_session in cut(first.id.session, last.session, n_slices)
    ]


def _is_past(partition: NetworkPartition, event: Event) -> bool:
    return partition.last_session is not None and event.id.session > partition.last_session


def _make_filter(
    partition: NetworkPartition, selection: Selection
) -> Callable[[Event], bool] | None:
    """What a query cannot say; None: nothing is left to say."""
    if partition.last_session is not None:
        return lambda event: not _is_past(partition, event)
    servers = selection.servers
    return None if servers is None else lambda event: event.id.server in servers
