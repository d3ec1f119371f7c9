"""Events to report about: of a store, a lake or a gateway."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventType
from mariner_spark import reader, type_path
from mariner_spark.errors import OptionError
from mariner_spark.lake import manifest
from mariner_spark.lake.files import Files
from mariner_spark.lake.read import read as read_lake
from mariner_spark.reader import to_options
from mariner_spark.schema import SCHEMA
from mariner_spark.source import options
from mariner_spark.source.options import Options

_NEEDED: Final = [name for name in SCHEMA.names if name not in {"type", "payload_type"}]


class Source(NamedTuple):
    """Where events are.

    Attributes:
        title: what people call it; nothing secret.
        place: arguments of ``reader.read``: a store, or a gateway and who we are to it.
        lake: or the place of a lake.
    """

    title: str
    place: Mapping[str, Any] | None = None
    lake: str | None = None


class Selection(NamedTuple):
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


def check(source: Source, selection: Selection) -> None:
    """Find mistakes before anything is started.

    Raises:
        OptionError: an option is wrong, or there is no such store.
        LakeError: there is no such lake, or it cannot be read.
    """
    path = _options(source, selection).path
    if source.lake is not None:
        manifest.load(Files(source.lake))
    elif path is not None:
        try:
            database.check_exists(path)
        except StorageError as e:
            raise OptionError("path", str(e)) from e


def _options(source: Source, selection: Selection) -> Options:
    """Options of the data source; those of a lake have its time and types."""
    place = {"store": "/"} if source.place is None else source.place
    return options.parse(to_options({**place, **selection.arguments}))


def read(spark: SparkSession, source: Source, selection: Selection) -> DataFrame:
    """Events with the columns that ``prepare`` needs; of a lake, ``value`` besides.

    Raises:
        LakeError: there is no lake, or it cannot be read.
    """
    if source.lake is None:
        place = source.place or {}
        return reader.read(spark, **place, **selection.arguments, columns=_NEEDED)
    events = read_lake(spark, source.lake, time=_options(source, selection).selection.time)
    return events if selection.types is None else events.where(matches(selection.types))


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
