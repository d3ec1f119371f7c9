"""Reading a store: planning partitions by time and type, and reading them in tasks.

Every task opens the same snapshot and scans ranges of keys (``keys`` of the backend): a range
for each type and slice of time, or one for all types if the whole time is selected.
"""

import contextlib
import heapq
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.info import ServerInfo, ext_servers
from eventer_bridge.backends.rocksdb.keys import SessionBlock, TypeId
from eventer_bridge.backends.rocksdb.query import Timeseries
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import EveryType
from eventer_bridge.errors import StorageError, StoreDamagedError
from eventer_bridge.model import EventType, Order, QueryTimeseriesParams, Timestamp
from mariner_spark import limits
from mariner_spark.errors import OptionError
from mariner_spark.source import snapshots
from mariner_spark.source.options import Selection
from mariner_spark.source.rows import Columns, StoreRows, make_batch
from mariner_spark.source.snapshots import DriverProcess
from mariner_spark.times import Interval


@dataclass
class StorePartition(InputPartition):
    """The rows that one task reads: of runs of type numbers, from ``start`` up to before ``stop``.

    A run is its first and last one. ``start`` and ``stop`` are encoded timestamps; empty: no bound.
    """

    snapshot: Path
    types: Sequence[tuple[int, int]]
    start: bytes = b""
    stop: bytes = b""

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """Ranges of keys in ``event``, in order: start, and stop, which is not included."""
        for first, last in self.types:
            if not self.start and not self.stop:
                yield keys.encode_type_id(first), keys.encode_type_id(last) + keys.KEY_MAX
                continue
            for number in range(first, last + 1):
                type_id = keys.encode_type_id(number)
                yield type_id + self.start, type_id + (self.stop or keys.KEY_MAX)


@contextlib.contextmanager
def _opened(snapshot: Path) -> Iterator[Store]:
    store = Store(snapshot, read_only=True)
    try:
        yield store
    finally:
        store.ext_close()


@contextlib.contextmanager
def _new_snapshot(path: Path, driver: DriverProcess) -> Iterator[tuple[Path, Store]]:
    """A new snapshot of a store, open in the block; raises as :func:`plan`."""
    try:
        snapshot = snapshots.create(path, driver)
        with _opened(snapshot) as store:
            yield snapshot, store
    except StorageError as e:
        raise OptionError("path", str(e)) from e


def plan(
    path: Path, driver: DriverProcess, selection: Selection, n_partitions: int | None
) -> list[StorePartition]:
    """Plan a read, of at most so many partitions; creates the snapshot, which the driver owns.

    Raises OptionError if ``path`` is no store, or cannot be read.
    """
    n_partitions = n_partitions or os.cpu_count() or 1
    with _new_snapshot(path, driver) as (snapshot, store):
        numbers = selection.select_types(
            (number, event_type) for number, (_, event_type) in enumerate(store.ext_types())
        )
        if not numbers:
            return []
        start, stop = _encoded(selection)
        if len(numbers) * n_partitions > limits.MAX_RANGES:
            shares = np.array_split(np.array(numbers), n_partitions)
            return [
                StorePartition(snapshot, _runs(i.tolist()), start, stop) for i in shares if len(i)
            ]
        runs = _runs(numbers)
        slices = split(store, start, stop, n_partitions)
        return [StorePartition(snapshot, runs, begin, end) for begin, end in slices]


def count(path: Path, driver: DriverProcess) -> int:
    """Number of events in a store, an estimate; raises as :func:`plan`."""
    with _new_snapshot(path, driver) as (_, store):
        return store.n_events()


def read(
    partition: StorePartition, selection: Selection, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Read a partition; raises SnapshotError if the snapshot is gone, StorageError."""
    snapshots.touch(partition.snapshot)
    with _opened(partition.snapshot) as store:
        names = TypeNames(store)
        found = _scan(store, partition.ranges())
        if (unfinished := store.unfinished_session()) is not None:
            found = _without(unfinished, found)
        for row_keys, values in found:
            rows = StoreRows(row_keys, values, names.of)
            if (wanted := rows.wanted(selection)) is not None:
                if not wanted.any():
                    continue
                rows = StoreRows(
                    list(compress(row_keys, wanted)), list(compress(values, wanted)), names.of
                )
            yield make_batch(rows, columns)


class TypeNames:
    """Types by their ids, read from the store on demand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[TypeId, EventType] = {}

    def of(self, type_ids: Sequence[TypeId]) -> list[EventType]:
        """Types with these ids; raises StoreDamagedError if there is none with one of them."""
        if missing := [i for i in type_ids if i not in self._known]:
            if len(self._known) > limits.NAMED_TYPES:
                self._known.clear()
                missing = list(type_ids)
            for type_id, data in zip(missing, self._store.values("type", missing), strict=True):
                if data is None:
                    raise StoreDamagedError(
                        f"{self._store.path}: the event store is damaged: there is no type"
                        f" {type_id.hex()}"
                    )
                self._known[type_id] = keys.decode_type(data)
        return [self._known[i] for i in type_ids]


def last_timestamp(path: Path, driver: DriverProcess, time: Interval) -> Timestamp | None:
    """Timestamp of the last event in an interval, of any type; raises as :func:`plan`."""
    first, last = time.timestamps()
    params = QueryTimeseriesParams(t_from=first, t_to=last, order=Order.DESCENDING)
    with _new_snapshot(path, driver) as (_, store):
        every_type = EveryType(len(store.ext_types()))
        key = Timeseries(store.snapshot(), params, every_type).first()
    return None if key is None else keys.decode_timestamp(key, keys.TYPE_BYTES)


def _scan(
    store: Store, ranges: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values of ordered ranges, a batch at a time.

    An iterator that ends may have reached a damaged block: its status shows it.
    """
    iterator = store.iterator("event")
    row_keys: list[bytes] = []
    values: list[bytes] = []
    n_bytes = 0
    key = b""
    for start, stop in ranges:
        if key < start:  # else the previous range already reached this one
            iterator.seek(start)
        while iterator.valid() and (key := iterator.key()) < stop:
            value = iterator.value()
            row_keys.append(key)
            values.append(value)
            n_bytes += len(value)
            iterator.next()
            if len(values) == limits.BATCH_ROWS or n_bytes > limits.BATCH_BYTES:
                yield row_keys, values
                row_keys, values, n_bytes = [], [], 0
        if not iterator.valid():
            with store.errors():
                iterator.status()
            break
    if values:
        yield row_keys, values


def _without(
    session_key: bytes, rows: Iterable[tuple[list[bytes], list[bytes]]]
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Rows of :func:`_scan`, without a session that was only written in part (``contents``)."""
    for row_keys, values in rows:
        wanted = [keys.session_of(key) != session_key for key in row_keys]
        if any(wanted):
            yield list(compress(row_keys, wanted)), list(compress(values, wanted))


def _encoded(selection: Selection) -> tuple[bytes, bytes]:
    """Bounds of the timestamp, encoded as in keys: start and stop; empty: no bound."""
    first, last = selection.time.timestamps()
    return (
        keys.encode_timestamp(first) if first else b"",
        keys.encode_timestamp(last) + keys.KEY_MAX if last else b"",
    )


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    array = np.array(numbers)
    parts = np.split(array, np.flatnonzero(np.diff(array) != 1) + 1)
    return [(int(i[0]), int(i[-1])) for i in parts]


# --- slices of time -----------------------------------------------------------------------


def split(store: Store, start: bytes, stop: bytes, n_slices: int) -> list[tuple[bytes, bytes]]:
    """Split a range of timestamps into slices with about the same number of events each.

    Session ids of a server rise with time, so that a few look-ups find where its sessions are,
    however unevenly they are spread. But they jump: after a crash by ``RESERVED_SESSIONS``. So the
    stretch of ids that may have most events is halved, again and again, until none matters; a jump
    in its middle drops out. ``start`` and ``stop``, which is not included, are encoded; empty: no
    bound. The slices, at most ``n_slices``, are ranges in order.
    """
    stretches: list[tuple[float, int, _Stretch]] = []  # a heap; the second is unique
    events = 0.0  # at most
    counter = itertools.count(1)

    def add(stretch: _Stretch) -> None:
        nonlocal events
        events += stretch.n_known + stretch.max_unknown
        heapq.heappush(stretches, (-stretch.max_unknown, next(counter), stretch))

    snapshot = store.snapshot()
    for server in ext_servers(store) if n_slices > 1 else ():
        first, last = server.first_session, server.last_session
        prefix = keys.encode_int(server.server_id)
        if start:
            first = _bisect(snapshot, prefix, first, last, start)
        if stop:
            last = _bisect(snapshot, prefix, first, last, stop)
        if (stretch := _read_stretch(store, prefix, first, last)) is not None:
            add(stretch)
    n_parts = limits.PROBES * n_slices
    for _ in range(n_parts + limits.MAX_JUMPS if stretches else 0):
        if -stretches[0][0] * n_parts <= events:
            break
        _, _, longest = heapq.heappop(stretches)
        events -= longest.n_known + longest.max_unknown
        for half in _halves(store, longest):
            add(half)
    samples = [sample for _, _, i in stretches for sample in i.samples()]
    within = [i for i in samples if not stop or i[0] < stop]
    edges = [start, *_quantiles(within, n_slices, start), stop]
    return list(pairwise(edges))


class _Stretch(NamedTuple):
    """Sessions of a server from one that exists, ``first``, to ``stop``.

    Its first blocks were read, up to the one of session ``last``: their timestamps, and the number
    of events of each. Of those after it only the ids are known.
    """

    server: bytes
    first: int
    last: int
    stop: int
    timestamps: Sequence[bytes]
    sizes: Sequence[int]

    @property
    def n_known(self) -> int:
        """Number of events that were counted."""
        return sum(self.sizes)

    @property
    def max_unknown(self) -> float:
        """Number of events after these, if no id is missing and they are of the same size."""
        return (self.stop - self.last) * self.n_known / len(self.sizes)

    def samples(self) -> Iterator[tuple[bytes, float]]:
        """Timestamps, each with the number of events from then until the next, an estimate."""
        *before, (timestamp, size) = zip(self.timestamps, self.sizes, strict=True)
        yield from before
        # ids are missing as often as up to here
        density = self.n_known / (self.last - self.first + 1)
        yield timestamp, size + (self.stop - self.last) * density


def _read_stretch(store: Store, server: bytes, first: int, stop: int) -> _Stretch | None:
    """The stretch of the sessions from ``first`` to ``stop``; None: there are none."""
    iterator = store.snapshot().iterator("server")
    iterator.seek(server + keys.encode_int(first))
    end = server + keys.encode_int(stop)
    found: list[tuple[bytes, bytes]] = []
    while len(found) < limits.PROBE_BLOCKS and iterator.valid() and (key := iterator.key()) <= end:
        found.append((key, iterator.value()))
        iterator.next()
    with store.errors():
        iterator.status()
    if not found:
        return None
    blocks = store.values("session", [timestamp + key for key, timestamp in found])
    return _Stretch(
        server,
        keys.decode_int(found[0][0][keys.INT_BYTES :]),
        keys.decode_int(found[-1][0][keys.INT_BYTES :]),
        stop,
        [timestamp for _, timestamp in found],
        [SessionBlock(b"", entries or b"").n_events for entries in blocks],
    )


def _halves(store: Store, stretch: _Stretch) -> Iterator[_Stretch]:
    """Both halves of what is unknown of a stretch, without ids that are missing between them."""
    middle = (stretch.last + stretch.stop) // 2 + 1
    if (second := _read_stretch(store, stretch.server, middle, stretch.stop)) is not None:
        yield second
    before = _find_before(store.snapshot(), stretch.server, middle - 1)
    assert before is not None  # at least those of the stretch itself
    stop = keys.decode_int(before[0][keys.INT_BYTES :])
    yield stretch._replace(stop=max(stop, stretch.last))


def _quantiles(samples: list[tuple[bytes, float]], n_slices: int, start: bytes) -> list[bytes]:
    """Timestamps after ``start`` that split weighted ones into parts of about the same weight."""
    samples.sort()
    share = sum(weight for _, weight in samples) / n_slices
    found: list[bytes] = []
    passed = 0.0
    for timestamp, weight in samples:
        is_due = passed >= share * (len(found) + 1) and len(found) < n_slices - 1
        if is_due and timestamp > (found[-1] if found else start):
            found.append(timestamp)
        passed += weight
    return found


def _bisect(snapshot: Snapshot, server: bytes, first: int, last: int, timestamp: bytes) -> int:
    """First session of a server in ``first`` to ``last`` that is not before a timestamp."""
    while first < last:
        middle = (first + last) // 2
        found = _timestamp(snapshot, server, middle)
        if found is not None and found < timestamp:
            first = middle + 1
        else:
            last = middle
    return first


def _timestamp(snapshot: Snapshot, server: bytes, session: int) -> bytes | None:
    """Timestamp of a server's session with this id, or of those before it."""
    found = _find_before(snapshot, server, session)
    return None if found is None else found[1]


def _find_before(snapshot: Snapshot, server: bytes, session: int) -> tuple[bytes, bytes] | None:
    """Key and timestamp of the last block of a server whose first session is at most this one.

    Passes over all that was deleted in between: unlike a query's look-up (``Snapshot.find_block``),
    it needs the session before it, and delays no other client.
    """
    iterator = snapshot.iterator("server")
    iterator.seek_for_prev(server + keys.encode_int(session))
    key: bytes | None = iterator.key()
    if key is not None and key.startswith(server):
        return key, iterator.value()
    with snapshot.errors():
        iterator.status()
    return None


# --- servers ------------------------------------------------------------------------------


class StoreServers(NamedTuple):
    """Servers of a store at one moment, for readers that continue after events that they have.

    ``events``: their number, an estimate; ``servers``: sessions of each; ``histories``: the last
    that each registered; ``timestamps``: of the requested sessions, if they are there.
    """

    events: int
    servers: Mapping[int, ServerInfo]
    histories: Mapping[int, History]
    timestamps: Mapping[int, Timestamp]

    def events_after(self, sessions: Mapping[int, int]) -> int:
        """Number of events after a session of each server, an estimate."""
        n_all = sum(i.last_session - i.first_session + 1 for i in self.servers.values())
        n_after = sum(
            max(0, i.last_session - max(sessions.get(server, 0), i.first_session - 1))
            for server, i in self.servers.items()
        )
        return -(-self.events * n_after // max(n_all, 1))

    def time_after(self, timestamps: Mapping[int, int]) -> Interval:
        """Time of the events after a timestamp of each server, in microseconds.

        Timestamps of a server never go back.
        """
        if not self.servers.keys() <= timestamps.keys():
            return Interval()
        return Interval(min((timestamps[i] for i in self.servers), default=None))


def find_servers(path: Path, driver: DriverProcess, sessions: Mapping[int, int]) -> StoreServers:
    """Find the servers of a store, and the time of a session of each; raises as :func:`plan`."""
    with _new_snapshot(path, driver) as (_, store):
        type_ids = {i: name for i, name in store.ext_types() if history.is_history(name)}
        events = [keys.decode_event(*row, type_ids) for _, row in store.ext_latest(type_ids)]
        snapshot = store.snapshot()
        stored = {i: snapshot.find_session(i, session) for i, session in sessions.items()}
        return StoreServers(
            store.n_events(),
            {i.server_id: i for i in ext_servers(store)},
            history.read_all(events),
            {i: keys.decode_timestamp(key) for i, key in stored.items() if key is not None},
        )
