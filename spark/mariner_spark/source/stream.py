"""``spark.readStream.format("mariner")``: offsets and batches of a stream, and reading them.

Spark keeps the reader in a process beside the driver, asks it for the latest offsets, and has it
plan the batches between them, which tasks read. Offsets are in the query's checkpoint before their
batch is read, so that the same batch is read again after a crash: the events between two offsets
never change.

A batch has the events of each server after its start offset, up to and including its end offset.
With several gateways, each server is read from one that has the event at the end offset, or a later
one, and so all of them: events of a server reach other gateways in their order. Events that several
gateways have (replication) are read once. The query waits for unavailable gateways. Only a new
query, and one that reads what is available now, needs one at its start. Connection events do not
start a batch for ``limits.CONNECTION_EVENTS_WAIT_S``, because reading causes some itself.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource
from pyspark.sql.types import StructType
from typing_extensions import override

from eventer_bridge.backends.history import History
from eventer_bridge.model import INT64_MAX, Event, EventId, EventType, Timestamp
from eventer_bridge.subscription import Subscription
from mariner_spark import limits
from mariner_spark import schema as schemas
from mariner_spark.errors import DataLossError, GatewayUnavailableError, HistoryError, OptionError
from mariner_spark.source import server_events
from mariner_spark.source.gateway import Backoff, GatewayClient, GatewayPool, Pages, ReplayRequest
from mariner_spark.source.offsets import Offsets, decode_offsets, encode_offsets
from mariner_spark.source.options import Options
from mariner_spark.source.rows import Columns, event_batches, without_out_of_range
from mariner_spark.source.server_events import ServerHistory, after, from_event

mlog = logging.getLogger(__name__)

_CONNECTION_EVENTS: Final = Subscription(
    [("event", "communication", "*"), ("event", "?", "eventer", "*")]
)


class _GatewayState(NamedTuple):
    """A gateway: its name, and the histories and last events of its servers."""

    gateway: str
    histories: Mapping[int, History]
    last_events: Mapping[int, EventId | None]


class StreamReader(DataSourceStreamReader, datasource.SupportsTriggerAvailableNow):
    """Reads those columns of the events that the options select.

    Its methods raise OptionError (no gateway can be reached at the start, one refuses this client,
    none shows a server, or two have different events of one), DataLossError (a gateway no longer
    has events that are to be read) and HistoryError (its events do not continue those that were
    read).
    """

    def __init__(self, parsed: Options, schema: StructType) -> None:
        self._options = parsed
        self._schema = schema
        self._gateways = GatewayPool(parsed.gateways)
        self._target: Offsets | None = None  # where the query ends
        self._servers = set(parsed.servers or ())
        self._compared: dict[int, int] = {}  # server to the number of gateways that agree on it
        self._turn = -1  # which server comes first in a limited batch
        self._is_idle = False
        self._histories: dict[int, ServerHistory] = {}

    @override
    def initialOffset(self) -> dict[str, Any]:
        newest = self._require_latest()
        starting = self._options.starting_offsets
        if starting == "latest":
            return self._encode(newest, {})
        return {} if isinstance(starting, str) else dict(starting)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._require_latest()

    @override
    def getDefaultReadLimit(self) -> datasource.ReadLimit:
        # Spark calls this first, and hides an error of the constructor behind one of its own
        self._options.check_stream()
        schemas.check(self._schema)
        max_events = self._options.max_events
        if max_events is None:
            return datasource.ReadAllAvailable()
        return datasource.ReadMaxRows(max_events)

    @override
    def latestOffset(self, start: dict[str, Any], limit: datasource.ReadLimit) -> dict[str, Any]:
        if self._is_idle:
            time.sleep(limits.POLL_PERIOD_S)
        begin, history_ids = decode_offsets(start)
        newest = self._find_latest(begin) if self._target is None else self._target
        self._check_histories(begin, history_ids)
        self._check_start(begin, newest)
        if self._target is None and self._has_only_connection_events(begin, newest):
            newest = begin
        if isinstance(limit, datasource.ReadMaxRows):
            newest = self._limit(begin, newest, limit.max_rows)
        end = {**begin, **dict(_pending(begin, newest))}
        self._is_idle = end == begin
        return start if end == begin else self._encode(end, history_ids)

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, _ = decode_offsets(start)
        last_events, history_ids = decode_offsets(end)
        pending = _pending(begin, last_events)
        batches = [StreamPartition(i, begin.get(i), j, history_ids.get(i)) for i, j in pending]
        return [part for i in batches for part in plan(self._gateways, self._options, i)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        columns = Columns(schemas.arrow_schema(self._schema), self._options.value_path)
        batches = read(self._options, partition, columns)
        return batches if self._options.keeps_all_times else without_out_of_range(batches)

    def batches(self, start: dict[str, Any], *, ends: bool) -> Iterator[Sequence[InputPartition]]:
        """The partitions of one batch after the other, after the offsets ``start``; without Spark.

        It ``ends`` at the events that were the latest at :meth:`initialOffset`; else, a batch may
        be empty.
        """
        limit = self.getDefaultReadLimit()
        while (end := self.latestOffset(start, limit)) != start or not ends:
            yield self.partitions(start, end)
            start = end

    @override
    def stop(self) -> None:
        self._gateways.close()

    @property
    def servers(self) -> Set[int]:
        """Servers that are read, as far as they are known."""
        return self._servers

    @property
    def histories(self) -> dict[int, History]:
        """Histories of the servers, as the gateways reported them last."""
        return {server: found.history for server, found in self._histories.items()}

    def session_times(self, server: int, session: int) -> list[tuple[str, Timestamp]]:
        """Names of the gateways that have a session, with its timestamp there."""

        def find(gateway: GatewayClient) -> tuple[str, Timestamp] | None:
            moment = server_events.session_time(gateway, server, session)
            return None if moment is None else (repr(gateway), moment)

        return list(self._gateways.query_each(find))

    def _require_latest(self) -> dict[int, EventId]:
        """Last events of all servers; needs at least one gateway."""
        are_named = self._options.servers is not None
        if not are_named:
            find = partial(server_events.find_servers, event_types=[server_events.ANY_TYPE])
            for found in self._gateways.query_each(find):
                self._servers |= found
        newest = self._find_latest({})
        if self._gateways.are_all_unavailable:
            raise GatewayUnavailableError(self._gateways.reasons)
        if not newest and not self._gateways.is_any_unavailable and not are_named:
            raise OptionError(
                "servers",
                "there are no events that this client may see, which would tell the servers:"
                " name their ids",
            )
        return newest

    def _find_latest(self, begin: Offsets) -> dict[int, EventId]:
        """Last events of all servers, from the gateways that can be reached."""

        def find(gateway: GatewayClient) -> _GatewayState:
            if self._options.servers is None:
                self._servers |= server_events.find_servers(gateway) | begin.keys()
            known, servers = server_events.find_histories(gateway), sorted(self._servers)
            last = {i: server_events.find_last(gateway, i, begin.get(i)) for i in servers}
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
                    server_events.merge_histories(self._histories, server, history)
        for server, found_events in last_events.items():
            self._compare(server, found_events)
        return {server: max(found_events) for server, found_events in last_events.items()}

    def _check_histories(self, begin: Offsets, history_ids: Mapping[int, str]) -> None:
        """Refuse events that do not continue those that were read."""
        for server in begin.keys() & self._histories.keys():
            gateway, history, _ = self._histories[server]
            known, session = history_ids.get(server), begin[server].session
            if error := server_events.history_error(gateway, server, known, history, session):
                raise error

    def _encode(self, events: Offsets, history_ids: Mapping[int, str]) -> dict[str, Any]:
        """Offsets as Spark stores them, with the current histories, or else the known ones."""
        current = server_events.history_ids(self._histories)
        return encode_offsets(events, {**history_ids, **current})

    def _compare(self, server: int, last_events: Sequence[EventId]) -> None:
        """Refuse gateways with different events of a server; checked once per number of gateways.

        All gateways should have the earliest of their last events of the server.
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
        if not self._options.fails_on_loss or self._gateways.is_any_unavailable:
            return
        for server in self._servers & begin.keys():
            last = begin[server]
            if server not in newest or newest[server] < last:
                raise DataLossError(
                    f"server {server}: event {_text(last)}, which was read before, is not there,"
                    " nor any later one: another store, or a backup? With failOnDataLoss=false the"
                    " query waits for later ones"
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
                server_events.advance,
                server=server,
                start=begin.get(server),
                end=last,
                n_events=n_events,
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
    age_s = time.time() - event.timestamp.s
    return _CONNECTION_EVENTS.matches(event.type) and age_s < limits.CONNECTION_EVENTS_WAIT_S


def _text(event_id: EventId) -> str:
    return f"{event_id.session}/{event_id.instance}"


# --- batches ------------------------------------------------------------------------------


@dataclass
class StreamPartition(InputPartition):
    """Events of a server: those of a batch, or of a part of it that one task reads.

    ``start``: offset to start after; None: from the first event. ``end`` is included; an event with
    this id or a later one exists. ``history_id``: history of the events; None: unknown.
    """

    server: int
    start: EventId | None
    end: EventId
    history_id: str | None = None

    def check(self, gateway: GatewayClient) -> HistoryError | None:
        """The error of a gateway with another history; another one may have the right history."""
        current = server_events.find_histories(gateway).get(self.server)
        return server_events.history_error(
            repr(gateway), self.server, self.history_id, current, self.end.session
        )


class _Availability(NamedTuple):
    """The events of a batch on a gateway."""

    first_session: int
    is_complete: bool


def plan(
    gateways: GatewayPool, options: Options, batch: StreamPartition
) -> Sequence[StreamPartition]:
    """Plan the partitions of a server; waits for a gateway that has its events.

    Raises OptionError if a gateway refuses this client, DataLossError if events were deleted,
    HistoryError if a gateway has another history.
    """
    server, start, end = batch.server, batch.start, batch.end
    refused: list[HistoryError] = []

    def find(gateway: GatewayClient) -> _Availability | None:
        if (error := batch.check(gateway)) is not None:
            refused.append(error)
            return None
        if gateway.first(from_event(end)) is None:
            return None  # not replicated yet
        if start is not None:
            is_complete = not server_events.is_any_lost(gateway, start, end)
            return _Availability(start.session, is_complete)
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
    slices = server_events.split_sessions(best.first_session, end.session, n_slices)
    inner = [EventId(server, last_session, INT64_MAX) for _, last_session in slices[:-1]]
    edges = zip([start, *inner], [*inner, end], strict=True)
    return [dataclasses.replace(batch, start=i, end=j) for i, j in edges]


def read(options: Options, batch: StreamPartition, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Read a partition; resumes on another gateway if need be, until it is complete.

    Raises OptionError if a gateway refuses this client, MarinerError or SourceError if one violated
    the protocol, or has another history.
    """
    gateways = GatewayPool(options.gateways)
    backoff = Backoff()
    with closing(_PartitionReader(batch, options.types)) as reader:
        while not reader.is_done:
            events = next(gateways.query_each(reader.next_events), None)
            if events is None:
                if reader.refused is not None and not gateways.is_any_unavailable:
                    raise reader.refused
                backoff.wait(gateways.reasons or f"no gateway has all up to {_text(batch.end)}")
                continue
            backoff = Backoff()
            yield from event_batches(events, columns)


class _PartitionReader:
    """Reads a partition page by page, and remembers its offset.

    A page has events of all types. If few of them are selected, the gateway replays the rest of the
    partition, of the selected types only. That takes another connection, whose events are stored,
    too: a partition of one page or two does without. ``refused``: a gateway has another history.
    """

    def __init__(self, batch: StreamPartition, types: tuple[EventType, ...] | None) -> None:
        self._batch = batch
        self._types = types
        self._accept = _make_filter(types)
        self._offset = batch.start
        self._gateway: GatewayClient | None = None
        self.refused: HistoryError | None = None
        self._pages: Pages | None = None
        self._is_replaying = False
        self._may_replay = types is not None

    @property
    def is_done(self) -> bool:
        """Whether the whole partition was read."""
        return self._offset is not None and self._offset >= self._batch.end

    def close(self) -> None:
        """End what is under way."""
        if self._pages is not None:
            self._pages.close()

    def next_events(self, gateway: GatewayClient) -> Sequence[Event] | None:
        """The next selected events, from this gateway; None: it has no more of any type."""
        end = self._batch.end
        if gateway is not self._gateway:
            if (error := self._batch.check(gateway)) is not None:
                self.refused = error
                return None
            params = after(self._batch.server, self._offset)
            self._begin(gateway.pages(params, lambda last: last.id >= end))
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
            self._offset = end
            return ()
        self._offset = page[-1].id
        events = [i for i in page if i.id <= end and self._accept(i.type)]
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
        if gateway.first(from_event(self._batch.end)) is None:
            return
        assert self._offset is not None
        assert self._types is not None
        rest = gateway.replay(ReplayRequest(self._offset, self._types))
        self._begin(rest, is_replaying=True)


def _until_complete(answers: Iterable[_Availability]) -> list[_Availability]:
    found: list[_Availability] = []
    for answer in answers:
        found.append(answer)
        if answer.is_complete:
            break
    return found


def _report(options: Options, reason: str) -> None:
    """Report lost events; raises DataLossError if the option ``failOnDataLoss`` is set."""
    if options.fails_on_loss:
        raise DataLossError(f"{reason}; failOnDataLoss=false goes on with what there is")
    mlog.warning("going on with what there is: %s", reason)


def _make_filter(types: tuple[EventType, ...] | None) -> Callable[[EventType], bool]:
    if types is None:
        return lambda event_type: True
    return lru_cache(limits.NAMED_TYPES)(Subscription(types).matches)
