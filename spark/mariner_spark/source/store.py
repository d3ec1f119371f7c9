"""Reading a store: planning partitions by time and type, and reading them in tasks.

Every task opens the same snapshot and scans ranges of keys (``keys`` of the backend): a range
for each type and slice of time, or one for all types if the whole time is selected.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.timeseries import Timeseries
from eventer_bridge.backends.rocksdb.wanted import EveryType
from eventer_bridge.errors import StorageError, StoreDamagedError
from eventer_bridge.model import EventType, Order, QueryTimeseriesParams, Timestamp
from mariner_spark import limits
from mariner_spark.errors import OptionError
from mariner_spark.source import slicing, snapshots
from mariner_spark.source.columns import make_batch
from mariner_spark.source.driver_process import DriverProcess
from mariner_spark.source.selection import Selection
from mariner_spark.source.store_rows import StoreRows
from mariner_spark.times import Interval


class TypeRun(NamedTuple):
    """Types with consecutive numbers, from ``first`` to ``last``, both included."""

    first: int
    last: int


class StorePartition(InputPartition):
    """The rows that one task reads.

    Args:
        snapshot: directory of the snapshot.
        types: its types.
        start: its first timestamp, encoded; empty: no bound.
        stop: end of its timestamps, not included; empty: no bound.
    """

    def __init__(
        self, snapshot: Path, types: Sequence[TypeRun], start: bytes = b"", stop: bytes = b""
    ) -> None:
        super().__init__(None)
        self.snapshot = snapshot
        self.types = types
        self.start = start
        self.stop = stop

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """Ranges of keys in ``event``, in order: start, and stop, which is not included."""
        for first, last in self.types:
            if not self.start and not self.stop:
                yield keys.encode_type_id(first), keys.encode_type_id(last) + keys.KEY_MAX
                continue
            for number in range(first, last + 1):
                type_id = keys.encode_type_id(number)
                yield type_id + self.start, type_id + (self.stop or keys.KEY_MAX)


def plan(
    path: Path, driver: DriverProcess, selection: Selection, n_partitions: int | None
) -> list[StorePartition]:
    """Plan a read; creates the snapshot.

    Args:
        path: the store.
        driver: process of the driver, which owns the snapshot.
        selection: which events.
        n_partitions: how many partitions at most; None: one for each processor.

    Raises:
        OptionError: ``path`` is no store, or cannot be read.
    """
    n_partitions = n_partitions or os.cpu_count() or 1
    try:
        snapshot = snapshots.create(path, driver)
        store = Store(snapshot, read_only=True)
        try:
            numbers = selection.select_types(
                (number, event_type) for number, (_, event_type) in enumerate(store.ext_types())
            )
            if not numbers:
                return []
            if len(numbers) * n_partitions > limits.MAX_RANGES:
                start, stop = _encoded(selection)
                shares = np.array_split(np.array(numbers), n_partitions)
                return [
                    StorePartition(snapshot, _runs(i.tolist()), start, stop)
                    for i in shares
                    if len(i)
                ]
            runs = _runs(numbers)
            slices = slicing.split(store, *_encoded(selection), n_partitions)
            return [StorePartition(snapshot, runs, start, stop) for start, stop in slices]
        finally:
            store.ext_close()
    except StorageError as e:
        raise OptionError("path", str(e)) from e


def read(
    partition: StorePartition, selection: Selection, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read a partition.

    Raises:
        SnapshotError: the snapshot no longer exists.
        StorageError: it cannot be read.
    """
    snapshots.touch(partition.snapshot)
    store = Store(partition.snapshot, read_only=True)
    try:
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
            yield make_batch(rows, schema)
    finally:
        store.ext_close()


class TypeNames:
    """Types by their ids, read from the store on demand.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[TypeId, EventType] = {}

    def of(self, type_ids: Sequence[TypeId]) -> list[EventType]:
        """Types with these ids.

        Raises:
            StoreDamagedError: there is none with one of them.
        """
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
    """Timestamp of the last event in an interval, of any type; None: there is none.

    Raises:
        OptionError: as :func:`plan`.
    """
    first, last = time.timestamps()
    params = QueryTimeseriesParams(t_from=first, t_to=last, order=Order.DESCENDING)
    try:
        store = Store(snapshots.create(path, driver), read_only=True)
        try:
            every_type = EveryType(len(store.ext_types()))
            key = Timeseries(store.snapshot(), params, every_type).first()
        finally:
            store.ext_close()
    except StorageError as e:
        raise OptionError("path", str(e)) from e
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
    """Rows of :func:`_scan`, without a session that was only written in part (``unfinished``)."""
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


def _runs(numbers: Sequence[int]) -> list[TypeRun]:
    """Ascending type numbers as runs."""
    array = np.array(numbers)
    parts = np.split(array, np.flatnonzero(np.diff(array) != 1) + 1)
    return [TypeRun(int(i[0]), int(i[-1])) for i in parts]
