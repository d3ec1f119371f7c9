"""Events to report about: of a store or a gateway."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eventer_bridge.model import EventType
from mariner_spark.schema import SCHEMA
from mariner_spark.source import options

# the source reads no others
_NEEDED: Final = StructType(
    [field for field in SCHEMA.fields if field.name not in {"type", "payload_type"}]
)


class Source(NamedTuple):
    """Where events are.

    Attributes:
        title: what people call it; nothing secret.
        options: of the data source ``mariner``: a store, or a gateway and who we are to it.
    """

    title: str
    options: Mapping[str, str]


class Selection(NamedTuple):
    """Which events.

    Attributes:
        types: with ``?`` and ``*``; None: all.
        first: first moment, as the data source takes it; None: no bound.
        last: last moment, included.
    """

    types: Sequence[EventType] | None = None
    first: str | None = None
    last: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """Options of the data source that select these events."""
        types = None if self.types is None else msgspec.json.encode(self.types).decode()
        given = {"types": types, "from": self.first, "to": self.last}
        return {name: text for name, text in given.items() if text is not None}


def check(source: Source, selection: Selection) -> None:
    """Check options before anything is started.

    Raises:
        OptionError: one is wrong.
    """
    options.parse({**source.options, **selection.options})


def read(spark: SparkSession, source: Source, selection: Selection) -> DataFrame:
    """Events with the columns that ``prepare`` needs."""
    given = {**source.options, **selection.options}
    return spark.read.format("mariner").schema(_NEEDED).options(**given).load()
