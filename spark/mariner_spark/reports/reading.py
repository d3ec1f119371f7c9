"""Reading the events for reports from a store, a lake or a gateway."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventType
from mariner_spark import reader, times, values
from mariner_spark.errors import OptionError
from mariner_spark.lake.tables import Lake, value_path_of
from mariner_spark.lake_reader import read_events as read_lake
from mariner_spark.reader import to_options
from mariner_spark.reports.events import span_of
from mariner_spark.schema import SCHEMA
from mariner_spark.source import driver_process, network, options, store
from mariner_spark.source.options import Options
from mariner_spark.source.selection import Selection

_NEEDED: Final = [name for name in SCHEMA.names if name not in {"type", "payload_type"}]


class EventSource(NamedTuple):
    """A source of events: ``arguments`` or ``lake``.

    Attributes:
        title: its name on the page; contains no secret.
        arguments: arguments of ``reader.read``: a store, or a gateway and the credentials.
        lake: path of a lake.
    """

    title: str
    arguments: Mapping[str, Any] | None = None
    lake: str | None = None


class ReportFilter(NamedTuple):
    """Selection of events.

    Attributes:
        types: event types with ``?`` and ``*``; None: all.
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
    """Check the options before anything is started.

    Args:
        source: source of the events.
        selection: selection of events.
        value_path: path of the number in a payload.

    Raises:
        OptionError: an option is wrong, the store does not exist, or a lake has the numbers of
            another path.
        LakeError: the lake does not exist, or cannot be read.
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
    """Path in payloads of the numbers in a lake; None: the source is no lake.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
    """
    return None if source.lake is None else value_path_of(Lake(source.lake).open())


def _options(source: EventSource, selection: ReportFilter) -> Options:
    """Options of the data source; for a lake, only its time and types count."""
    arguments = {"store": "/"} if source.arguments is None else source.arguments
    return options.parse(to_options({**arguments, **selection.arguments}))


def read(spark: SparkSession, source: EventSource, selection: ReportFilter) -> DataFrame:
    """Events with the columns that ``prepare`` needs, and the numbers of a lake.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
    """
    if source.lake is None:
        arguments = source.arguments or {}
        return reader.read(spark, **arguments, **selection.arguments, columns=_NEEDED)
    events = read_lake(spark, source.lake, _options(source, selection).selection)
    return values.with_unread(events, path_of_lake(source) or values.DEFAULT_PATH)


def last_us(spark: SparkSession, source: EventSource, selection: ReportFilter) -> int:
    """Timestamp in microseconds of the last event in the time of a selection, of any type.

    It is needed to find types that fell silent. For a store or a gateway it takes one look-up.

    Raises:
        MarinerSparkError: as :func:`read`, or the store or the gateway cannot be used.
    """
    chosen = _options(source, selection)
    time = chosen.selection.time
    if source.lake is not None:
        return span_of(read_lake(spark, source.lake, Selection(time=time))).last
    if chosen.path is not None:
        found = store.last_timestamp(chosen.path, driver_process.of_this_process(), time)
    else:
        found = network.last_timestamp(chosen.gateway, time)
    return times.MIN_US if found is None else times.to_us(found)
