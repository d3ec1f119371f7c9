"""Reading from a gateway by the Mariner protocol: planning partitions, and reading them in tasks.

A read ends at the newest event that the gateway has when the read is planned. It is split into
slices of time (timeseries queries), or of sessions if all events of given servers are selected
(server queries). Every slice is read page by page over a connection of its own.

A timeseries query cannot name servers: the tasks filter the events by server.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.model import INT64_MIN, Event, Order, QueryTimeseriesParams, Timestamp
from mariner_spark import limits, times
from mariner_spark.source.gateway import GatewayClient, PagedParams
from mariner_spark.source.options import GatewayOptions, Selection
from mariner_spark.source.rows import Columns, event_batches
from mariner_spark.source.server_events import after, after_session, find_last, split_sessions
from mariner_spark.times import Interval

Plan: TypeAlias = list["NetworkPartition"]


@dataclass
class NetworkPartition(InputPartition):
    """The query of one task; ``last_session``, of a server query: the last one of the slice."""

    params: PagedParams
    last_session: int | None = None


def plan(options: GatewayOptions, selection: Selection, n_partitions: int | None) -> Plan:
    """Plan a read with at most so many partitions; queries the gateway.

    Raises OptionError if it cannot be reached or refuses this client, MarinerError.
    """
    n_partitions = n_partitions or limits.NETWORK_PARTITIONS
    with GatewayClient(options) as gateway:
        if selection.servers is not None and selection.is_servers_only:
            n_slices = max(n_partitions // len(selection.servers), 1)
            servers = sorted(selection.servers)
            return [i for server in servers for i in _split_by_session(gateway, server, n_slices)]
        return _split_by_time(gateway, _params(selection), n_partitions)


def read(
    options: GatewayOptions, partition: NetworkPartition, selection: Selection, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Read a partition; raises as :func:`plan`, also if the connection was lost."""
    accept = _make_filter(partition, selection)
    with GatewayClient(options) as gateway:
        for page in gateway.pages(partition.params, lambda event: _is_after(partition, event)):
            events = page if accept is None else list(filter(accept, page))
            yield from event_batches(events, columns)


def last_timestamp(options: GatewayOptions, time: Interval) -> Timestamp | None:
    """Timestamp of the last visible event in an interval, of any type; raises as :func:`plan`."""
    params = _params(Selection(time=time))
    with GatewayClient(options) as gateway:
        found = gateway.first(msgspec.structs.replace(params, order=Order.DESCENDING))
    return None if found is None else found.timestamp


def _params(selection: Selection) -> QueryTimeseriesParams:
    t_from, t_to = selection.time.timestamps()
    source_from, source_to = (selection.source or Interval()).timestamps()
    if selection.source is not None and source_from is None and source_to is None:
        source_from = Timestamp(INT64_MIN, 0)  # any source timestamp
    return QueryTimeseriesParams(
        event_types=selection.types,
        t_from=t_from,
        t_to=t_to,
        source_t_from=source_from,
        source_t_to=source_to,
        order=Order.ASCENDING,
    )


def _split_by_time(gateway: GatewayClient, params: QueryTimeseriesParams, n_slices: int) -> Plan:
    """Slices of time with about the same number of sessions each, up to the newest event."""
    change = msgspec.structs.replace
    first = gateway.first(params)
    last = gateway.first(change(params, order=Order.DESCENDING))
    if first is None or last is None:
        return []
    begin, end = first.timestamp, last.timestamp
    inner = sorted({i for i in _inner_edges(gateway, first, last, n_slices) if begin < i <= end})
    edges = [*(times.exact_us(i) for i in inner), times.exact_us(end) + 1]
    slices = zip([begin, *inner], (times.to_timestamp(i - 1) for i in edges), strict=True)
    return [NetworkPartition(change(params, t_from=start, t_to=end)) for start, end in slices]


def _inner_edges(
    gateway: GatewayClient, first: Event, last: Event, n_slices: int
) -> Iterator[Timestamp]:
    """Timestamps that split the time between two events.

    If both are of one server, the sessions are split evenly: their ids rise with time, however
    unevenly they are spread over it. Otherwise time is split evenly.
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


def _split_by_session(gateway: GatewayClient, server: int, n_slices: int) -> Plan:
    """Slices of the sessions of a server, up to the newest."""
    first = gateway.first(after(server, None))
    last = None if first is None else find_last(gateway, server, first.id)
    if first is None or last is None:
        return []
    return [
        NetworkPartition(after_session(server, before), last_session)
        for before, last_session in split_sessions(first.id.session, last.session, n_slices)
    ]


def _is_after(partition: NetworkPartition, event: Event) -> bool:
    return partition.last_session is not None and event.id.session > partition.last_session


def _make_filter(
    partition: NetworkPartition, selection: Selection
) -> Callable[[Event], bool] | None:
    """Conditions that a query cannot express; None: there are none."""
    if partition.last_session is not None:
        return lambda event: not _is_after(partition, event)
    servers = selection.servers
    return None if servers is None else lambda event: event.id.server in servers
