"""Reading a lake with Spark's own Parquet source.

The files are chosen when :func:`read` is called, so a data frame shows the lake of that moment,
however often it is computed, until the grace period of a compaction is over.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls them

from mariner_spark import times
from mariner_spark.lake import manifest, segments
from mariner_spark.lake.files import Files
from mariner_spark.times import Interval

ALL_TIME: Final = Interval()


def read(spark: SparkSession, path: str, *, time: Interval = ALL_TIME) -> DataFrame:
    """Events of a lake.

    Args:
        spark: the session.
        path: the lake.
        time: bounds of ``timestamp``; files that lie outside are not opened.

    Returns:
        A row an event, with the columns of ``segments.SCHEMA``.

    Raises:
        LakeError: there is no lake, or its manifest cannot be read.
    """
    files = Files(path)
    chosen = [
        files.for_spark(segment.path)
        for segment in manifest.load(files).segments
        if not time.intersection(Interval(segment.first, segment.last)).is_empty
    ]
    if not chosen:
        return spark.createDataFrame([], segments.SCHEMA)
    events = spark.read.schema(segments.SCHEMA).parquet(*chosen)
    for bound in _bounds(time):
        events = events.where(bound)
    return events.select(*segments.SCHEMA.names)


def _bounds(time: Interval) -> list[Column]:
    column = F.col("timestamp")
    bounds = []
    if time.first is not None and time.first > times.MIN_US:
        bounds.append(column >= F.timestamp_micros(F.lit(time.first)))
    if time.last is not None and time.last < times.MAX_US:
        bounds.append(column <= F.timestamp_micros(F.lit(time.last)))
    return bounds
