"""Rollups: what the events of a type were in each minute, hour and day (UTC), in table ``rollups``.

A row is computed from the events of its bucket alone, so that an event changes three rows, however
late it comes. Minutes are computed from events, hours from minutes, and days from hours, all by
:func:`roll`, which joins pieces of time: an event is one, a rollup is another. What a number holds
beyond its bucket follows from the rows before and after (``sql.buckets``).

An update computes the minutes anew that new events are in, and what is made of them; in order of
time, and of days with minutes of very many events some types after others, so that it holds about
``limits.ROLLED_ROWS`` events and rollups, and a row of each type. All widths are in one table, and
change with one commit.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from numpy.typing import NDArray

from eventer_bridge.model import EventType
from mariner_spark import conditions, limits
from mariner_spark.errors import OptionError
from mariner_spark.lake import parquet, tables
from mariner_spark.lake.parquet import TableFile
from mariner_spark.lake.sql import ORIGIN_US, WIDTHS_US
from mariner_spark.lake.tables import EVENTS, ORDER, ROLLUPS, Lake
from mariner_spark.times import EVER, Interval

_WIDTH: Final = re.compile("([1-9][0-9]{0,6})([mhd])")
_MINUTE: Final = timedelta(minutes=1)
_WIDEST: Final = timedelta(days=9_999_999)
"""Of more, Spark's integers do not hold the microseconds."""

_SCHEMA: Final = tables.arrow_schema(ROLLUPS)
_END: Final = 1 << 62
"""After all moments."""

_Longs: TypeAlias = NDArray[np.int64]
_Rows: TypeAlias = Iterator[tuple[pa.Table, int]]
"""Rollups in order of time, each with the moment before which there are no others to come."""


def parse_width(every: str | timedelta) -> int:
    """Microseconds of a width of buckets: ``5m``, ``1h``, ``7d`` and the like, or a timedelta.

    Raises OptionError if it is neither, or no multiple of a minute.
    """
    text = every
    if isinstance(every, str) and (match := _WIDTH.fullmatch(every)):
        every = int(match[1]) * timedelta(microseconds=WIDTHS_US[f"1{match[2]}"])
    if not isinstance(every, timedelta) or every % _MINUTE or not _MINUTE <= every <= _WIDEST:
        raise OptionError("every", f"{text!r}: expected some minutes, hours or days, as '15m'")
    return every // timedelta(microseconds=1)


class RollupFiles(NamedTuple):
    """Rollups for a query: files that have them, and may have others as well.

    They are those of width ``every`` (of ``sql.WIDTHS_US``) with their ``bucket`` in ``time``.
    """

    every: str
    time: Interval
    files: list[TableFile]

    def paths(self, types: Sequence[EventType] | None) -> list[str]:
        """Of files that may have rollups of some types."""
        has_type = conditions.type_bounds(types)
        return [i.path for i in self.files if has_type(i.first_type, i.last_type)]

    def where(
        self, types: Sequence[EventType] | None, quote: conditions.Quote = conditions.spark_text
    ) -> list[str]:
        """Conditions in SQL that rollups of these types must all satisfy."""
        found = conditions.within("bucket", self.time)
        return found if types is None else [*found, conditions.matches(types, quote)]


def find(table: DeltaTable, width_us: int, time: Interval) -> RollupFiles:
    """What rollups of a width are made of: the widest ones that are there and divide it.

    ``width_us`` is one of :func:`parse_width`; of these the buckets are whole that begin in
    ``time``, so others are left out.
    """
    every = [name for name, us in WIDTHS_US.items() if width_us % us == 0][-1]
    first, last = (None if i is None else i - ORIGIN_US for i in time)
    first = None if first is None else -(-first // width_us) * width_us + ORIGIN_US
    last = None if last is None else (last // width_us + 1) * width_us + ORIGIN_US - 1
    whole = Interval(first, last)
    files = parquet.files_of(table, ROLLUPS)
    chosen = [i for i in files if i.partition == every and not i.time.intersection(whole).is_empty]
    return RollupFiles(every, whole, chosen)


# --- joining pieces of time ---------------------------------------------------------------


def roll(pieces: pa.Table, width_us: int) -> pa.Table:
    """Rollups with buckets of a width, in order of type and time.

    ``pieces`` are rollups of shorter times, which do not overlap: in order of time, or with a
    ``bucket`` each.
    """
    if not pieces.num_rows:
        return pieces
    types, ranks = parquet.rank(pieces.column("type_path"))
    at = _longs(pieces.column("bucket"))
    order = np.argsort(ranks, kind="stable")
    if (at[1:] < at[:-1]).any():
        order = np.lexsort((at, ranks))
    ranks, buckets = ranks[order], at[order] // width_us * width_us
    is_first = np.ones(len(order), bool)
    is_first[1:] = (ranks[1:] != ranks[:-1]) | (buckets[1:] != buckets[:-1])
    [firsts] = np.nonzero(is_first)
    numbers = _longs(pieces.column("numbers"))[order]
    columns = {
        "type_path": types.take(pa.array(ranks[firsts])),
        "bucket": buckets[firsts],
        "events": np.add.reduceat(_longs(pieces.column("events"))[order], firsts),
        "numbers": np.add.reduceat(numbers, firsts),
    }
    [has_number] = np.nonzero(numbers)
    groups = (np.cumsum(is_first) - 1)[has_number]
    found = _of_numbers(pieces, order[has_number], groups) if len(groups) else {}
    is_null = columns["numbers"] == 0
    for field in list(_SCHEMA)[len(columns) :]:
        values = np.zeros(len(firsts), np.float64 if field.type == pa.float64() else np.int64)
        if field.name in found:
            values[~is_null] = found[field.name]
        mask = is_null | np.isnan(values) if field.name == "held_mean" else is_null
        columns[field.name] = pa.array(values, mask=mask)
    arrays = [pa.array(columns[i.name]).cast(i.type) for i in _SCHEMA]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _of_numbers(pieces: pa.Table, rows: _Longs, groups: _Longs) -> dict[str, NDArray[Any]]:
    """Figures of the numbers of each group, from some rows of pieces, all with numbers."""
    n, first_at, last_at = (
        _longs(pieces.column(i).fill_null(0))[rows] for i in ("numbers", "first_at", "last_at")
    )
    low, high, mean, first, last, held = (
        pieces.column(i).to_numpy()[rows]
        for i in ("min", "max", "mean", "first", "last", "held_mean")
    )
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    sizes = np.diff(starts, append=len(groups))
    ends = starts + sizes - 1
    low, high = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    total, length = np.add.reduceat(n, starts), last_at[ends] - first_at[starts]
    # until the next piece, the last number of this one holds
    wait = np.append(first_at[1:] - last_at[:-1], 0)
    wait[ends] = 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        plain = np.add.reduceat(mean * n, starts) / total
        # by shares, the sum is finite whatever the numbers
        shared = np.add.reduceat(mean * (n / np.repeat(total, sizes)), starts)
        whole = np.repeat(length, sizes)
        parts = np.nan_to_num(held) * ((last_at - first_at) / whole) + last * (wait / whole)
        over_time = np.add.reduceat(parts, starts)
    return {
        "min": low,
        "max": high,
        # rounding may lead beyond the bounds
        "mean": np.clip(np.where(np.isfinite(plain), plain, shared), low, high),
        "first": first[starts],
        "first_at": first_at[starts],
        "last": last[ends],
        "last_at": last_at[ends],
        "held_mean": np.where(length > 0, np.clip(over_time, low, high), np.nan),
    }


def _longs(column: pa.ChunkedArray) -> _Longs:
    """Integers or moments, which are not null."""
    found: _Longs = column.cast(pa.int64()).to_numpy()
    return found


def _pieces(events: pa.Table) -> pa.Table:
    """A piece of time for each event, in order."""
    if not _is_in_order(events):
        events = events.sort_by([(i, "ascending") for i in ORDER])
    at, value = events.column("timestamp"), events.column("value")
    value = pc.if_else(pc.is_finite(value), value, None)  # of another tool
    columns = {
        "type_path": events.column("type_path"),
        "bucket": at,
        "events": np.ones(len(events), np.int64),
        "numbers": value.is_valid().cast(pa.int64()),
        **dict.fromkeys(("min", "max", "mean", "first", "last"), value),
        **dict.fromkeys(("first_at", "last_at"), at),
        "held_mean": pa.nulls(len(events), pa.float64()),
    }
    return pa.table({i: columns[i] for i in _SCHEMA.names}, schema=_SCHEMA)


def _is_in_order(events: pa.Table) -> bool:
    is_equal = np.ones(max(len(events) - 1, 0), bool)  # so far, to the one before
    for name in ORDER:
        values = _longs(events.column(name))
        if (is_equal & (values[1:] < values[:-1])).any():
            return False
        is_equal &= values[1:] == values[:-1]
    return True


# --- bringing the table up to date --------------------------------------------------------


class Renewed(NamedTuple):
    """Files to be added to the table ``rollups``, and those that they replace."""

    added: list[AddAction]
    replaced: list[TableFile]


def renew(lake: Lake, events: DeltaTable, table: DeltaTable | None, paths: list[str]) -> Renewed:
    """Compute the rollups anew that the events of some files are in.

    Args:
        lake: where they are.
        events: its table of events, which has all of them.
        table: the rollups so far; None: there are none, and ``paths`` are all files of events.
        paths: the files, below the table of events.

    Raises:
        LakeError: a file cannot be read or written.
    """
    known = [] if table is None else parquet.files_of(table, ROLLUPS)
    renewal = _Renewal(lake, parquet.files_of(events, EVENTS), known, paths)
    for stretch in renewal.stretches():
        minutes = renewal.written("1m", renewal.minutes(stretch))
        hours = renewal.written("1h", renewal.rolled("1h", "1m", minutes, stretch))
        for _ in renewal.written("1d", renewal.rolled("1d", "1h", hours, stretch)):
            pass
    return renewal.finish()


def _count(lake: Lake, path: str, time: Interval = EVER) -> tuple[_Longs, _Longs]:
    """Minutes with events of a file, in some time, ascending, and how many are in each."""
    at = parquet.read_rows(lake, EVENTS, path, ["timestamp"], time).column(0)
    return np.unique(_start(_longs(at), "1m"), return_counts=True)


def _start(at: _Longs, every: str) -> _Longs:
    return at // WIDTHS_US[every] * WIDTHS_US[every]


def _in_buckets(rows: pa.Table, every: str, buckets: _Longs, *, is_within: bool = True) -> pa.Table:
    """Events or rollups in some buckets, or (if not ``is_within``) in all others."""
    column = "timestamp" if "timestamp" in rows.schema.names else "bucket"
    found = _start(_longs(rows.column(column)), every)
    is_in = np.append(buckets, _END)[np.searchsorted(buckets, found)] == found
    return rows.filter(pa.array(is_in == is_within))


class _Stretch(NamedTuple):
    """What is made anew at a time: whole days, and of these about one in ``n_shares`` types.

    ``minutes``: places of the first of their touched minutes, and of the first one after them;
    ``time``: begin of the first day, and of the next stretch. ``share``: which types, from 0 on.
    """

    minutes: tuple[int, int]
    time: tuple[int, int]
    share: int
    n_shares: int

    def select(self, rows: pa.Table) -> pa.Table:
        """The rows of these types."""
        if self.n_shares == 1 or not rows.num_rows:
            return rows
        types, ranks = parquet.rank(rows.column("type_path"))
        shares = [zlib.crc32(i.encode()) % self.n_shares for i in types.to_pylist()]
        return rows.filter(pa.array((np.array(shares) == self.share)[ranks]))


class _Span(NamedTuple):
    """A file, and the touched buckets that it may have rows of: from place ``begin`` to ``end``."""

    begin: int
    end: int
    file: TableFile


class _Renewal:
    """Rollups that take the place of others.

    ``events``: all files of events, of which those at ``paths`` are new; ``known``: all files of
    rollups. ``touched`` are the buckets of the new events, by width.
    """

    def __init__(
        self, lake: Lake, events: list[TableFile], known: list[TableFile], paths: list[str]
    ) -> None:
        self._lake, self._known = lake, known
        counted = [(np.zeros(0, np.int64),) * 2, *(_count(lake, i) for i in paths)]
        found, counts = (np.concatenate(i) for i in zip(*counted, strict=True))
        minutes, places = np.unique(found, return_inverse=True)
        self.touched = {every: np.unique(_start(minutes, every)) for every in WIDTHS_US}
        self._events = self._spans("1m", events)
        # how many rows are read of each minute: of rollups about
        self._rows = np.bincount(places, counts, len(minutes)).astype(np.int64)
        self._count_known({*paths})
        for finer, every in pairwise(WIDTHS_US):
            n_rows = self._estimate(every, self._overlapping(finer, every))
            self._rows[np.searchsorted(minutes, self.touched[every])] += n_rows
        self._added: list[AddAction] = []
        self._waiting: dict[str, list[pa.Table]] = {every: [] for every in WIDTHS_US}

    def _spans(self, every: str, files: list[TableFile], time: Interval = EVER) -> list[_Span]:
        """Files that may have rows in touched buckets, in some time."""
        buckets, found = self.touched[every], []
        for file in files:
            first, last = file.time.intersection(time)
            first = -_END if first is None else first - WIDTHS_US[every]
            begin = int(np.searchsorted(buckets, first, "right"))
            end = int(np.searchsorted(buckets, _END if last is None else last, "right"))
            if begin < end:
                found.append(_Span(begin, end, file))
        return found

    def _overlapping(self, finer: str, every: str, time: Interval = EVER) -> list[_Span]:
        """Files of finer rollups that may be in some time, and in buckets that are touched."""
        return self._spans(every, [i for i in self._known if i.partition == finer], time)

    def _count_known(self, new: set[str]) -> None:
        """Add the events of the touched minutes that are not new."""
        minutes = self.touched["1m"]
        for begin, end, file in self._events:
            if file.path not in new:
                time = Interval(int(minutes[begin]), int(minutes[end - 1]) + WIDTHS_US["1m"] - 1)
                found, counts = _count(self._lake, file.path, time)
                places = np.searchsorted(minutes, found)
                is_in = minutes[np.minimum(places, len(minutes) - 1)] == found
                self._rows[places[is_in]] += counts[is_in]

    def _estimate(self, every: str, spans: list[_Span]) -> _Longs:
        """About how many rollups files have in each touched bucket, if they are spread evenly."""
        changes = np.zeros(len(self.touched[every]) + 1)
        for begin, end, file in spans:
            n_buckets = end - begin
            if file.time.first is not None and file.time.last is not None:
                n_buckets = max((file.time.last - file.time.first) // WIDTHS_US[every], n_buckets)
            changes[begin] += file.rows / n_buckets
            changes[end] -= file.rows / n_buckets
        return np.ceil(np.cumsum(changes)[:-1]).astype(np.int64)

    def stretches(self) -> Iterator[_Stretch]:
        """All that is touched, with as many shares as it takes to hold the rows of one minute."""
        days, minutes = self.touched["1d"], self.touched["1m"]
        if not len(days):
            return
        begins = np.searchsorted(minutes, days)
        n_shares = 1 + np.maximum.reduceat(self._rows, begins) // limits.ROLLED_ROWS
        edges = [0, *(np.flatnonzero(np.diff(n_shares)) + 1).tolist(), len(days)]
        for i, j in pairwise(edges):
            is_last = j == len(days)
            places = int(begins[i]), len(minutes) if is_last else int(begins[j])
            time = int(days[i]), _END if is_last else int(days[j])
            for share in range(int(n_shares[i])):
                yield _Stretch(places, time, share, int(n_shares[i]))

    def minutes(self, stretch: _Stretch) -> _Rows:
        """Rollups of the touched minutes, made of events, in parts that are held at a time."""
        minutes, width = self.touched["1m"], WIDTHS_US["1m"]
        begin, end = stretch.minutes
        numbers = np.cumsum(-(-self._rows[begin:end] // stretch.n_shares)) // limits.ROLLED_ROWS
        edges = [begin, *(np.flatnonzero(np.diff(numbers)) + 1 + begin).tolist(), end]
        names = ["type_path", "value", *ORDER]
        for i, j in pairwise(edges):
            part = minutes[i:j]
            time = Interval(int(part[0]), int(part[-1]) + width - 1)
            found = [
                stretch.select(
                    _in_buckets(
                        parquet.read_rows(self._lake, EVENTS, file.path, names, time), "1m", part
                    )
                )
                for first, last, file in self._events
                if first < j and i < last
            ]
            rows = roll(_pieces(pa.concat_tables(found)), width)
            yield rows, stretch.time[1] if j == end else int(minutes[j])

    def written(self, every: str, found: _Rows) -> _Rows:
        """The same rollups, which are also written to files."""
        waiting = self._waiting[every]
        for rows, end in found:
            waiting.append(rows)
            if sum(i.num_rows for i in waiting) >= limits.FILE_ROWS:
                self._write(every)
            yield rows, end

    def rolled(self, every: str, finer: str, found: _Rows, stretch: _Stretch) -> _Rows:
        """Rollups made of finer ones: of those found, and of those that stay as they are."""
        pending, begin = _SCHEMA.empty_table(), stretch.time[0]
        for new, end in found:
            kept = stretch.select(self._kept(finer, every, Interval(begin, end - 1)))
            rows = roll(pa.concat_tables([pending, kept, new]), WIDTHS_US[every])
            edge = end // WIDTHS_US[every] * WIDTHS_US[every]
            is_whole = pa.array(_longs(rows.column("bucket")) < edge)
            yield rows.filter(is_whole), edge
            pending, begin = rows.filter(pc.invert(is_whole)), end

    def _kept(self, finer: str, every: str, time: Interval) -> pa.Table:
        """Finer rollups that stay, in buckets that are touched."""
        found = [_SCHEMA.empty_table()]
        for *_, file in self._overlapping(finer, every, time):
            rows = _in_buckets(self._read(file, time), every, self.touched[every])
            found.append(_in_buckets(rows, finer, self.touched[finer], is_within=False))
        return pa.concat_tables(found)

    def _read(self, file: TableFile, time: Interval = EVER) -> pa.Table:
        return parquet.read_rows(self._lake, ROLLUPS, file.path, time=time)

    def finish(self) -> Renewed:
        """Write the rest, and what else was in the files with rollups that are made anew."""
        replaced = []
        for every, buckets in self.touched.items():
            self._write(every)
            for *_, file in self._overlapping(every, every):
                rows = self._read(file)
                rest = _in_buckets(rows, every, buckets, is_within=False)
                if rest.num_rows < rows.num_rows:
                    replaced.append(file)
                    self._waiting[every].append(rest)
                    self._write(every)
        return Renewed(self._added, replaced)

    def _write(self, every: str) -> None:
        rows = pa.concat_tables([_SCHEMA.empty_table(), *self._waiting[every]])
        self._waiting[every].clear()
        for begin in range(0, rows.num_rows, limits.FILE_ROWS):
            part = rows.slice(begin, limits.FILE_ROWS)
            self._added.append(parquet.write_rollups(self._lake, every, part))
