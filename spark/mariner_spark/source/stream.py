"""``spark.readStream.format("mariner")``: offsets and batches of a stream, on the driver.

Spark keeps the reader in a process beside the driver as long as the query runs, asks it for
the newest offsets and has it plan the batches between them (``stream_batches``), which tasks
read. Offsets (``offsets``) are in the query's checkpoint before their batch is read, so that
after a crash the same batch is read again: the events between two offsets never change.

Of several gateways, one that has the end of a batch is read from, so that events which more
than one of them has (replication) are read once. A gateway that is away is waited for. Only a
new query, and one that takes what is available now, cannot begin without any.

Announcements of connections do not start a batch for ``limits.ANNOUNCEMENTS_WAIT_S``, because
reading makes some itself; until then they wait for other events.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
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
from mariner_spark.errors import DataLossError, GatewayAwayError, OptionError
from mariner_spark.source import histories, offsets, stream_batches
from mariner_spark.source.gateway import GatewayClient
from mariner_spark.source.gateways import Backoff, GatewayPool
from mariner_spark.source.histories import Told
from mariner_spark.source.offsets import Offsets
from mariner_spark.source.options import Options
from mariner_spark.source.server_events import (
    ANY_TYPE,
    after,
    find_last,
    find_servers,
    session_time,
    take,
)

_ANNOUNCEMENTS: Final = Subscription(
    [("event", "communication", "*"), ("event", "?", "eventer", "*")]
)


class _Surveyed(NamedTuple):
    """What a gateway has: its name, histories and last events by server."""

    gateway: str
    told: Mapping[int, History]
    ends: Mapping[int, EventId | None]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what the options ask for.

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
        self._compared: dict[int, int] = {}  # server to the gateways that have the same of it
        self._turn = -1  # which server comes first in a limited batch
        self._is_idle = False
        self._histories: dict[int, Told] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's
        """Where a new query begins.

        Raises:
            OptionError: no gateway can be reached, or it declines us, or shows no servers, or
                two have different events of one.
        """
        newest = self._survey_now()
        starting = self._options.stream.starting
        return self._encode(newest, {}) if starting is None else dict(starting)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's
        """Have the query end at the newest events that there are now.

        Raises:
            OptionError: as :meth:`initialOffset`.
        """
        self._target = self._survey_now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's
        """The limit of a batch, by option.

        Spark asks for it first. What is wrong is told here, since Spark covers an error of the
        constructor by one of its own.

        Raises:
            OptionError: an option is not for a stream.
            SchemaError: a column is not one of ours.
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
            OptionError: a gateway declines us, or two have different events of a server.
            DataLossError: the gateways do not have what was read before.
            HistoryError: they do not go on from it.
        """
        if self._is_idle:
            time.sleep(limits.POLL_PERIOD_S)
        begin = offsets.decode(start)
        newest = self._survey(begin) if self._target is None else self._target
        held = offsets.decode_histories(start)
        self._check_histories(begin, held)
        self._check_known(begin, newest)
        if self._target is None and self._is_noise(begin, newest):
            newest = begin
        if isinstance(limit, ReadMaxRows):
            newest = self._limit(begin, newest, limit.max_rows)
        end = {**begin, **dict(_pending(begin, newest))}
        self._is_idle = end == begin
        return start if end == begin else self._encode(end, held)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch; waits for a gateway that has all of it.

        Raises:
            OptionError: a gateway declines us.
            DataLossError: some of it was deleted.
            HistoryError: a gateway has another history than the batch is of.
        """
        begin, held = offsets.decode(start), offsets.decode_histories(end)
        return [
            partition
            for server, last in _pending(begin, offsets.decode(end))
            for partition in stream_batches.plan(
                self._gateways,
                self._options,
                server,
                begin.get(server),
                last,
                held=held.get(server),
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition; runs in a task.

        Yields:
            Arrow batches with the columns of the schema.
        """
        assert isinstance(partition, stream_batches.StreamPartition)
        return stream_batches.read(self._options, partition, schemas.arrow_schema(self._schema))

    def stop(self) -> None:
        """The query ended."""
        self._gateways.close()

    def _survey_now(self) -> dict[int, EventId]:
        """Last events of all servers; not without a gateway."""
        if self._options.selection.servers is None:
            for found in self._gateways.ask(partial(find_servers, event_types=[ANY_TYPE])):
                self._servers |= found
        newest = self._survey({})
        if self._gateways.is_everyone_away:
            raise GatewayAwayError(self._gateways.reasons)
        if (
            not newest
            and not self._gateways.is_anyone_away
            and self._options.selection.servers is None
        ):
            raise OptionError(
                "servers",
                "there are no events that this client may see, which would tell the servers:"
                " name their ids",
            )
        return newest

    def _survey(self, begin: Offsets) -> dict[int, EventId]:
        """Last events of all servers, as far as the gateways can be reached."""
        named = self._options.selection.servers

        def find(gateway: GatewayClient) -> _Surveyed:
            if named is None:
                self._servers |= find_servers(gateway) | begin.keys()
            told = histories.find(gateway)
            ends = {i: find_last(gateway, i, begin.get(i)) for i in sorted(self._servers)}
            return _Surveyed(repr(gateway), told, ends)

        ends: dict[int, list[EventId]] = {}
        self._histories = {}
        for found in self._gateways.ask(find):
            for server, last in found.ends.items():
                if last is not None:
                    ends.setdefault(server, []).append(last)
                if server in found.told:
                    session = 0 if last is None else last.session
                    told = Told(found.gateway, found.told[server], session)
                    histories.merge(self._histories, server, told)
        for server, lasts in ends.items():
            self._compare(server, lasts)
        return {server: max(lasts) for server, lasts in ends.items()}

    def _check_histories(self, begin: Offsets, held: Mapping[int, str]) -> None:
        """Refuse what does not go on from what was read before."""
        for server in begin.keys() & self._histories.keys():
            told = self._histories[server]
            session = begin[server].session
            histories.check(told.gateway, server, held.get(server), told.history, session)

    def _encode(self, events: Offsets, held: Mapping[int, str]) -> dict[str, Any]:
        """Offsets as Spark keeps them, with the histories that are told now, or else held."""
        return offsets.encode(events, {**held, **histories.ids(self._histories)})

    def _compare(self, server: int, lasts: Sequence[EventId]) -> None:
        """Refuse gateways with different events of a server, once for as many of them.

        Args:
            server: the server.
            lasts: last events of it, of the gateways that have some. What all of them should
                have is the first of these.

        Raises:
            OptionError: the session of that one is not the same in all of them.
        """
        if len(lasts) <= self._compared.get(server, 1):
            return
        session = min(lasts).session

        def find(gateway: GatewayClient) -> tuple[GatewayClient, Timestamp] | None:
            moment = session_time(gateway, server, session)
            return None if moment is None else (gateway, moment)

        found = list(self._gateways.ask(find))
        for gateway, moment in found[1:]:
            if moment != found[0][1]:
                names = " and ".join(sorted((repr(found[0][0]), repr(gateway))))
                raise OptionError(
                    "host",
                    f"{names} have different events of server {server} (session {session}): they"
                    " are not of one system, or one store was made anew",
                )
        if found:
            self._compared[server] = len(found)

    def _check_known(self, begin: Offsets, newest: Offsets) -> None:
        """Refuse to wait where what was read before is not there."""
        if not self._options.stream.fails_on_loss or self._gateways.is_anyone_away:
            return
        for server in self._servers & begin.keys():
            last = begin[server]
            if server not in newest or newest[server] < last:
                raise DataLossError(
                    f"server {server}: event {last.session}/{last.instance}, which was read before,"
                    " is not there, nor any later one: another store, or a backup? With"
                    " failOnDataLoss=false the query waits for later ones"
                )

    def _is_noise(self, begin: Offsets, newest: Offsets) -> bool:
        """Whether there is nothing to read but announcements, and not for long."""
        for server, _ in _pending(begin, newest):
            params = after(server, begin.get(server))
            params = msgspec.structs.replace(params, max_results=limits.MAX_NOISE_EVENTS)
            result = next(self._gateways.ask(partial(GatewayClient.query, params=params)), None)
            if result is not None and (
                result.more_follows or not all(map(_is_announcement, result.events))
            ):
                return False
        return True

    def _limit(self, begin: Offsets, newest: Offsets, max_events: int) -> dict[int, EventId]:
        """Offsets with at most so many events before them, the same share of each server.

        Where it is not enough for all of them, another server comes first in each batch.
        """
        pending = list(_pending(begin, newest))
        if pending:
            self._turn = (self._turn + 1) % len(pending)
            pending = pending[self._turn :] + pending[: self._turn]
        patience = Backoff()
        reached: dict[int, EventId] = {}
        n_left = max_events
        for i, (server, last) in enumerate(pending):
            n_events = -(-n_left // (len(pending) - i))
            walk = partial(
                take, server=server, start=begin.get(server), end=last, n_events=n_events
            )
            taken = next(self._gateways.ask(walk), None)
            while taken is None and n_events and self._target is not None:
                # with nothing to read the query would end before its target
                patience.wait(self._gateways.reasons or f"no gateway has server {server}'s events")
                taken = next(self._gateways.ask(walk), None)
            if taken is not None:
                reached[server], n_taken = taken
                n_left -= n_taken
        return reached


def _pending(begin: Offsets, end: Offsets) -> Iterator[tuple[int, EventId]]:
    """Servers with events behind ``begin``, and the last of these."""
    for server in sorted(end):
        if server not in begin or begin[server] < end[server]:
            yield server, end[server]


def _is_announcement(event: Event) -> bool:
    """Whether it tells of a connection, and is young."""
    age_s = time.time() - event.timestamp.s
    return _ANNOUNCEMENTS.matches(event.type) and age_s < limits.ANNOUNCEMENTS_WAIT_S
