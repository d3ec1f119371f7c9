"""``spark.readStream.format("mariner")``: offsets and batches of a stream, on the driver.

Spark keeps the reader in a process beside the driver while the query runs, asks it for the latest
offsets, and has it plan the batches between them (``stream_batches``), which tasks read. Offsets
(``offsets``) are in the query's checkpoint before their batch is read, so that the same batch is
read again after a crash: the events between two offsets never change.

With several gateways, each server is read from one that has the end of the batch, so that events
that several of them have (replication) are read once. The query waits for unavailable gateways.
Only a new query, and one that reads what is available now, needs one at its start.

Connection events do not start a batch for ``limits.CONNECTION_EVENTS_WAIT_S``, because reading
causes some itself; until then they wait for other events.
"""

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from eventer_bridge.backends.history import History
from eventer_bridge.model import Event, EventId, Timestamp
from eventer_bridge.subscription import Subscription
from mariner_spark import limits
from mariner_spark import schema as schemas
from mariner_spark.errors import DataLossError, GatewayUnavailableError, OptionError
from mariner_spark.source import histories, offsets, stream_batches
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.gateways import Backoff, GatewayPool
from mariner_spark.source.histories import ServerHistory
from mariner_spark.source.offsets import Offsets
from mariner_spark.source.options import Options
from mariner_spark.source.server_events import (
    ANY_TYPE,
    advance,
    after,
    find_last,
    find_servers,
    session_time,
)

_CONNECTION_EVENTS: Final = Subscription(
    [("event", "communication", "*"), ("event", "?", "eventer", "*")]
)


class _GatewayState(NamedTuple):
    """A gateway: its name, and the histories and last events of its servers."""

    gateway: str
    histories: Mapping[int, History]
    last_events: Mapping[int, EventId | None]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the events that the options select.

    Args:
        parsed: options.
        schema: columns to read.
    """

    def __init__(self, parsed: Options, schema: StructType) -> None:
        self._options = parsed
        self._schema = schema
        self._gateways = GatewayPool(parsed.gateways)
        self._target: Offsets | None = None  # where the query ends
        self._servers = set(parsed.selection.servers or ())
        self._compared: dict[int, int] = {}  # server to the number of gateways that agree on it
        self._turn = -1  # which server comes first in a limited batch
        self._is_idle = False
        self._histories: dict[int, ServerHistory] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's
        """Offsets at which a new query begins.

        Raises:
            OptionError: no gateway can be reached, one refuses this client, none shows a server,
                or two have different events of a server.
        """
        newest = self._require_latest()
        starting = self._options.stream.starting
        return self._encode(newest, {}) if starting is None else dict(starting)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's
        """Have the query end at the events that are the latest now.

        Raises:
            OptionError: as :meth:`initialOffset`.
        """
        self._target = self._require_latest()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's
        """The limit of a batch, from the options.

        Spark calls this first. Errors are raised here, because Spark hides an error of the
        constructor behind one of its own.

        Raises:
            OptionError: an option is not for a stream.
            SchemaError: a column is not one of ``schema.SCHEMA``.
        """
        self._options.check_stream()
        schemas.check(self._schema)
        max_events = self._options.stream.max_events
        return ReadAllAvailable() if max_events is None else ReadMaxRows(max_events)

    def latestOffset(  # noqa: N802  # Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch; ``start`` if there is nothing to read.

        Raises:
            OptionError: a gateway refuses this client, or two have different events of a server.
            DataLossError: the gateways no longer have the events at the start offset.
            HistoryError: their events do not continue those that were read.
        """
        if self._is_idle:
            time.sleep(limits.POLL_PERIOD_S)
        begin = offsets.decode(start)
        newest = self._find_latest(begin) if self._target is None else self._target
        history_ids = offsets.decode_histories(start)
        self._check_histories(begin, history_ids)
        self._check_start(begin, newest)
        if self._target is None and self._has_only_connection_events(begin, newest):
            newest = begin
        if isinstance(limit, ReadMaxRows):
            newest = self._limit(begin, newest, limit.max_rows)
        end = {**begin, **dict(_pending(begin, newest))}
        self._is_idle = end == begin
        return start if end == begin else self._encode(end, history_ids)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch; waits for a gateway that has all of it.

        Raises:
            OptionError: a gateway refuses this client.
            DataLossError: some of its events were deleted.
            HistoryError: a gateway has another history than the batch.
        """
        begin, history_ids = offsets.decode(start), offsets.decode_histories(end)
        return [
            partition
            for server, last in _pending(begin, offsets.decode(end))
            for partition in stream_batches.plan(
                self._gateways,
                self._options,
                server,
                begin.get(server),
                last,
                history_id=history_ids.get(server),
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition; runs in a task.

        Yields:
            Arrow batches with the columns of the schema.
        """
        assert isinstance(partition, stream_batches.StreamPartition)
        return stream_batches.read(self._options, partition, schemas.arrow_schema(self._schema))

    def batches(self, start: dict[str, Any], *, ends: bool) -> Iterator[Sequence[InputPartition]]:
        """The partitions of one batch after the other, for use without Spark.

        Args:
            start: offsets to start after; :meth:`initialOffset` was called before.
            ends: end at the events that were the latest then; else, a batch may be empty.

        Raises:
            OptionError, SourceError: as the methods that Spark calls.
        """
        limit = self.getDefaultReadLimit()
        while (end := self.latestOffset(start, limit)) != start or not ends:
            yield self.partitions(start, end)
            start = end

    def stop(self) -> None:
        """Close the connections; Spark calls it at the end of the query."""
        self._gateways.close()

    @property
    def servers(self) -> Set[int]:
        """Servers that are read, as far as they are known."""
        return self._servers

    @property
    def histories(self) -> dict[int, History]:
        """Histories of the servers, as the gateways told them last."""
        return {server: found.history for server, found in self._histories.items()}

    def session_times(self, server: int, session: int) -> list[tuple[str, Timestamp]]:
        """Names of the gateways that have a session, with its timestamp there.

        Raises:
            OptionError: a gateway refuses this client.
        """

        def find(gateway: GatewayClient) -> tuple[str, Timestamp] | None:
            moment = session_time(gateway, server, session)
            return None if moment is None else (repr(gateway), moment)

        return list(self._gateways.query_each(find))

    def _require_latest(self) -> dict[int, EventId]:
        """Last events of all servers; needs at least one gateway."""
        if self._options.selection.servers is None:
            for found in self._gateways.query_each(partial(find_servers, event_types=[ANY_TYPE])):
                self._servers |= found
        newest = self._find_latest({})
        if self._gateways.are_all_unavailable:
            raise GatewayUnavailableError(self._gateways.reasons)
        if (
            not newest
            and not self._gateways.is_any_unavailable
            and self._options.selection.servers is None
        ):
            raise OptionError(
                "servers",
                "there are no events that this client may see, which would tell the servers:"
                " name their ids",
            )
        return newest

    def _find_latest(self, begin: Offsets) -> dict[int, EventId]:
        """Last events of all servers, from the gateways that can be reached."""
        named = self._options.selection.servers

        def find(gateway: GatewayClient) -> _GatewayState:
            if named is None:
                self._servers |= find_servers(gateway) | begin.keys()
            known = histories.find(gateway)
            last = {i: find_last(gateway, i, begin.get(i)) for i in sorted(self._servers)}
            return _GatewayState(repr(gateway), known, last)

        last_events: dict[int, list[EventId]] = {}
        self._histories = {}
        for found in self._gateways.query_each(find):
            for server, last in found.last_events.items():
                if last is not None:
                    last_events.setdefault(server, []).append(last)
                if server in found.histories:
                    session = 0 if last is None else last.session
                    history = ServerHistory(found.gateway, found.histories[server], session)
                    histories.merge(self._histories, server, history)
        for server, found_events in last_events.items():
            self._compare(server, found_events)
        return {server: max(found_events) for server, found_events in last_events.items()}

    def _check_histories(self, begin: Offsets, history_ids: Mapping[int, str]) -> None:
        """Refuse events that do not continue those that were read."""
        for server in begin.keys() & self._histories.keys():
            gateway, history, _ = self._histories[server]
            session = begin[server].session
            histories.check(gateway, server, history_ids.get(server), history, session)

    def _encode(self, events: Offsets, history_ids: Mapping[int, str]) -> dict[str, Any]:
        """Offsets as Spark stores them, with the current histories, or else the known ones."""
        return offsets.encode(events, {**history_ids, **histories.ids(self._histories)})

    def _compare(self, server: int, last_events: Sequence[EventId]) -> None:
        """Refuse gateways with different events of a server; checked once per number of gateways.

        Args:
            server: the server.
            last_events: its last event on each gateway that has some. All of them should have
                the earliest of these.

        Raises:
            OptionError: they have different sessions of that id.
        """
        if len(last_events) <= self._compared.get(server, 1):
            return
        session = min(last_events).session
        found = self.session_times(server, session)
        for gateway, moment in found[1:]:
            if moment != found[0][1]:
                names = " and ".join(sorted((found[0][0], gateway)))
                raise OptionError(
                    "host",
                    f"{names} have different events of server {server} (session {session}): they"
                    " are not of one system, or one store was made anew",
                )
        if found:
            self._compared[server] = len(found)

    def _check_start(self, begin: Offsets, newest: Offsets) -> None:
        """Refuse to wait if the gateways no longer have the events at the start offset."""
        if not self._options.stream.fails_on_loss or self._gateways.is_any_unavailable:
            return
        for server in self._servers & begin.keys():
            last = begin[server]
            if server not in newest or newest[server] < last:
                raise DataLossError(
                    f"server {server}: event {last.session}/{last.instance}, which was read before,"
                    " is not there, nor any later one: another store, or a backup? With"
                    " failOnDataLoss=false the query waits for later ones"
                )

    def _has_only_connection_events(self, begin: Offsets, newest: Offsets) -> bool:
        """Whether there is nothing to read but a few recent connection events."""
        for server, _ in _pending(begin, newest):
            params = after(server, begin.get(server))
            params = msgspec.structs.replace(params, max_results=limits.MAX_CONNECTION_EVENTS)
            query = partial(GatewayClient.query, params=params)
            result = next(self._gateways.query_each(query), None)
            if result is not None and (
                result.more_follows or not all(map(_is_recent_connection, result.events))
            ):
                return False
        return True

    def _limit(self, begin: Offsets, newest: Offsets, max_events: int) -> dict[int, EventId]:
        """End offsets of a batch with at most ``max_events`` events, the same share per server.

        If the limit is too small for all of them, another server comes first in each batch.
        """
        pending = list(_pending(begin, newest))
        if pending:
            self._turn = (self._turn + 1) % len(pending)
            pending = pending[self._turn :] + pending[: self._turn]
        backoff = Backoff()
        reached: dict[int, EventId] = {}
        n_left = max_events
        for i, (server, last) in enumerate(pending):
            n_events = -(-n_left // (len(pending) - i))
            query = partial(
                advance, server=server, start=begin.get(server), end=last, n_events=n_events
            )
            advanced = next(self._gateways.query_each(query), None)
            while advanced is None and n_events and self._target is not None:
                # an empty batch would end the query before its target
                backoff.wait(self._gateways.reasons or f"no gateway has server {server}'s events")
                advanced = next(self._gateways.query_each(query), None)
            if advanced is not None:
                reached[server], n_advanced = advanced
                n_left -= n_advanced
        return reached


def _pending(begin: Offsets, end: Offsets) -> Iterator[tuple[int, EventId]]:
    """Servers with events after ``begin``, and the last of these."""
    for server in sorted(end):
        if server not in begin or begin[server] < end[server]:
            yield server, end[server]


def _is_recent_connection(event: Event) -> bool:
    """Whether an event reports a connection, and is recent."""
    age_s = time.time() - event.timestamp.s
    return _CONNECTION_EVENTS.matches(event.type) and age_s < limits.CONNECTION_EVENTS_WAIT_S
