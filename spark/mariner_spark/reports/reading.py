"""Events to report about: of a store, a lake or a gateway."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventType
from mariner_spark import reader, times, type_path, values
from mariner_spark.errors import OptionError
from mariner_spark.lake import manifest
from mariner_spark.lake.files import Files
from mariner_spark.lake.read import read as read_lake
from mariner_spark.reader import to_options
from mariner_spark.reports.events import span_of
from mariner_spark.schema import SCHEMA
from mariner_spark.source import driver_process, network, options, store
from mariner_spark.source.options import Options

_NEEDED: Final = [name for name in SCHEMA.names if name not in {"type", "payload_type"}]


class EventSource(NamedTuple):
    """Where events are.

    Attributes:
        title: what people call it; nothing secret.
        place: arguments of ``reader.read``: a store, or a gateway and who we are to it.
        lake: or the place of a lake.
    """

    title: str
    place: Mapping[str, Any] | None = None
    lake: str | None = None


class ReportFilter(NamedTuple):
    """Which events.

    Attributes:
        types: with ``?`` and ``*``; None: all.
        first: first moment, as ``reader.read`` takes it; None: no bound.
        last: last moment, included.
    """

    types: Sequence[EventType] | None = None
    first: str | None = None
    last: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``reader.read`` that select these events."""
        return {"types": self.types, "from_": self.first, "to": self.last}


def check(source: EventSource, selection: ReportFilter, value_path: str | None) -> None:
    """Find mistakes before anything is started.

    Args:
        source: where the events are.
        selection: which of them.
        value_path: where the number of a payload is asked for.

    Raises:
        OptionError: an option is wrong, or there is no such store, or a lake has the numbers of
            another path.
        LakeError: there is no such lake, or it cannot be read.
    """
    path = _options(source, selection).path
    of_lake = path_of_lake(source)
    if of_lake is not None:
        if value_path is not None and values.parse(value_path) != values.parse(of_lake):
            raise OptionError(
                "value_path", f"{value_path}: the numbers of this lake are those at {of_lake}"
            )
    elif path is not None:
        try:
            database.check_exists(path)
        except StorageError as e:
            raise OptionError("path", str(e)) from e


def path_of_lake(source: EventSource) -> str | None:
    """Where in payloads the numbers of a lake are from; None: it is no lake.

    Raises:
        LakeError: there is no such lake, or it cannot be read.
    """
    return None if source.lake is None else manifest.load(Files(source.lake)).value_path


def _options(source: EventSource, selection: ReportFilter) -> Options:
    """Options of the data source; those of a lake have its time and types."""
    place = {"store": "/"} if source.place is None else source.place
    return options.parse(to_options({**place, **selection.arguments}))


def read(spark: SparkSession, source: EventSource, selection: ReportFilter) -> DataFrame:
    """Events with the columns that ``prepare`` needs; and of a lake its numbers.

    Raises:
        LakeError: there is no lake, or it cannot be read.
    """
    if source.lake is None:
        place = source.place or {}
        return reader.read(spark, **place, **selection.arguments, columns=_NEEDED)
    time = _options(source, selection).selection.time
    events = read_lake(spark, source.lake, time=time)
    events = values.with_unread(events, path_of_lake(source) or values.DEFAULT_PATH)
    return events if selection.types is None else events.where(matches(selection.types))


def last_us(spark: SparkSession, source: EventSource, selection: ReportFilter) -> int:
    """Microseconds of the last event in the time of a selection, whatever its type.

    It is there to tell which types fell silent. Of a store and a gateway a look-up tells it.

    Raises:
        MarinerSparkError: as :func:`read`, or the store or the gateway cannot be used.
    """
    chosen = _options(source, selection)
    time = chosen.selection.time
    if source.lake is not None:
        return span_of(read_lake(spark, source.lake, time=time)).last
    if chosen.path is not None:
        found = store.last_timestamp(chosen.path, driver_process.of_this_process(), time)
    else:
        found = network.last_timestamp(chosen.gateway, time)
    return times.MIN_US if found is None else times.to_us(found)


def matches(types: Sequence[EventType]) -> Column:
    """Whether an event has a type that one of these, with ``?`` and ``*``, stands for."""
    return reduce(lambda one, other: one | other, map(_matches, types))


def _matches(pattern: EventType) -> Column:
    is_open = pattern[-1:] == ("*",)
    segments = pattern[:-1] if is_open else pattern
    if "?" not in segments and segments:
        # of this Parquet knows which parts of files have it
        path = type_path.encode(segments)
        is_same = sf.col("type_path") == path
        return is_same | sf.col("type_path").startswith(f"{path}/") if is_open else is_same
    size = sf.size("type")
    found = size >= len(segments) if is_open else size == len(segments)
    for index, segment in enumerate(segments):
        if segment != "?":
            found = found & (sf.get("type", sf.lit(index)) == segment)
    return found
