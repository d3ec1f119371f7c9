"""Batch reads with Python arguments: :func:`read`.

Arguments that are options of the data source are checked before Spark is called. A lake is read by
Spark's own Parquet source; no Delta jar is needed. The files of a table are chosen when it is read,
by the statistics in its log, so a data frame shows the lake of that moment, however often it is
computed, until a vacuum deletes the files. Where Spark lacks the file system of an object store,
tasks read the files with deltalake (``lake.spark_files``).
"""

import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import EventType
from mariner_spark import conditions, schema, times, values
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake import rollups, sql
from mariner_spark.lake.parquet import files_of
from mariner_spark.lake.spark_files import read_files
from mariner_spark.lake.tables import (
    EVENTS,
    FILES_DELETED,
    ROLLUPS,
    TABLES,
    Lake,
    columns_of,
)
from mariner_spark.source import kinds, options
from mariner_spark.source.options import Selection
from mariner_spark.times import Interval

Moment: TypeAlias = str | date | float
"""A moment: ``datetime`` (UTC if it is naive), ``date``, a string as the options take it (ISO 8601,
UTC if it names no zone), or seconds since 1970."""

EVERYTHING: Final = Selection()


@options.documented
def read(
    spark: SparkSession,
    *,
    store: str | Path | None = None,
    gateway: str | None = None,
    lake: str | Path | None = None,
    version: int | None = None,
    as_of: Moment | None = None,
    every: str | timedelta | None = None,
    types: str | Iterable[str | EventType] | None = None,
    from_: Moment | None = None,
    to: Moment | None = None,
    servers: int | Iterable[int] | None = None,
    source_from: Moment | None = None,
    source_to: Moment | None = None,
    source_out_of_range: str | None = None,
    columns: Iterable[str] | None = None,
    partitions: int | None = None,
    value_path: str | None = None,
    client_name: str | None = None,
    token: str | None = None,
    tls: bool | None = None,
    tls_ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
) -> DataFrame:
    """Read events from a store, a gateway or a lake; only the selected ones are read.

    ``read(spark, store="data/events", types="machine/cpu/?", from_=date(2025, 1, 1))``

    The session comes from ``get_session``, or has the data source from ``register``. ``columns``
    are the names of the columns to read, in order, of ``schema.SCHEMA`` and ``schema.FIGURES``;
    None: all of the former.

    A data frame of a store stays at its moment, until the driver has made ``limits.MAX_SNAPSHOTS``
    newer reads of the store without using it: after that, an action raises SnapshotError.

    ``lake`` is a folder, or a location in an object store, which also has the column ``value``, and
    those that its ingestion named. It takes ``columns``, ``source_out_of_range``, and those
    arguments that select events. ``version`` is that of its table ``events``, and ``as_of`` the
    moment of one; None: the latest.

    ``every`` reads a lake's rollups instead: a row for each type and bucket of that width, which
    begins from ``from_`` to ``to``, with the columns of ``lake.sql.buckets``. It is a timedelta or
    a text: ``15m``, ``1h``, ``7d``; buckets of weeks begin on Mondays. Rollups have what was
    ingested until the last ingestion updated them.

    Raises:
        OptionError: an argument is wrong; the text begins with its name.
        LakeError: there is no such lake or version, or it cannot be read.
    """
    arguments = dict(locals())
    given = options.to_options({i: arguments[i] for i in options.ARGUMENTS})
    if lake is not None:
        at = _version(version, as_of)
        parsed = options.parse_arguments(given, is_lake=True)
        if every is None:
            rows = read_events(spark, str(lake), parsed.selection, version=at)
            rows = rows if parsed.keeps_all_times else without_out_of_range(rows)
        elif at is None:
            rows = read_rollups(spark, str(lake), every, parsed.selection)
        else:
            raise OptionError("every", "cannot be combined with version or as_of")
        return rows if columns is None else rows.select(*_schema(columns, rows.schema).names)
    for_lake = {"version": version, "as_of": as_of, "every": every}
    for name in (name for name, value in for_lake.items() if value is not None):
        raise OptionError(name, "is for a lake")
    options.parse_arguments(given)
    reader = spark.read.format("mariner").options(**given)
    return reader.schema(schema.SCHEMA if columns is None else _schema(columns)).load()


def _version(version: int | None, as_of: Moment | None) -> int | datetime | None:
    if as_of is None:
        if version is None or kinds.integer(version) is not None:
            return None if version is None else int(version)
        raise OptionError("version", f"expected a number, not {type(version).__name__}")
    if version is not None:
        raise OptionError("as_of", "cannot be combined with version")
    text = kinds.moment(as_of)
    if text is None:
        raise OptionError("as_of", f"expected {kinds.MOMENT}, not {type(as_of).__name__}")
    try:
        return times.to_datetime(times.parse_last(text))
    except InvalidEventError as e:
        raise OptionError("as_of", str(e)) from e


def _schema(columns: Iterable[str], known: StructType = schema.KNOWN) -> StructType:
    """The schema of some columns; raises OptionError if one is unknown or repeated, or for none."""
    names = [] if isinstance(columns, str) else list(columns)
    if not names:
        raise OptionError("columns", f"expected a list of names, not {columns!r}")
    for index, name in enumerate(names):
        if name not in known.names:
            text = f"no column {name!r}, expected some of {', '.join(known.names)}"
            raise OptionError("columns", text)
        if name in names[:index]:
            raise OptionError("columns", f"names {name!r} twice")
    return StructType([known[name] for name in names])


def with_value(events: DataFrame, path: str = values.DEFAULT_PATH) -> DataFrame:
    """Add the numbers of events, which have a column ``payload_json``; see ``values``.

    ``value`` (double) is null if an event has none; ``value_unread``: whether it cannot be read.
    Raises OptionError if the path is invalid.
    """
    values.parse(path)

    @arrow_udf("value double, value_unread boolean")  # type: ignore[call-overload, untyped-decorator]
    def find(payloads: pa.Array) -> pa.Array:
        found = values.find(payloads, path)
        return pa.StructArray.from_arrays(list(found), ["value", "value_unread"])

    numbers = find("payload_json")
    return events.withColumns(
        {i: numbers.getField(i) for i in ("value", "value_unread")},
    )


# --- tables of a lake ---------------------------------------------------------------------

_ONE_PROCESS: Final = re.compile(r"local(\[.*\])?")
"""Masters of a Spark that runs all tasks itself."""

_GLOB: Final = str.maketrans({i: f"\\{i}" for i in "\\{}[]*?"})


def read_events(
    spark: SparkSession,
    path: str,
    selection: Selection = EVERYTHING,
    *,
    version: int | datetime | None = None,
) -> DataFrame:
    """Events of a lake, with the columns of ``schema.LAKE_SCHEMA`` and its named ones.

    Files that have no selected events, by their time and types, are not opened. ``version`` is that
    of the table, or the moment of one; None: the latest. Raises LakeError without that.
    """
    lake = Lake(path)
    events = lake.open(EVENTS, version)
    chosen = select_files(lake, events, selection)
    rows = _rows(spark, lake, EVENTS, chosen, _columns(events))
    return reduce(DataFrame.where, conditions.of_selection(selection), rows)


def _columns(events: DeltaTable) -> StructType:
    """Columns of events in a lake."""
    named = [i.spark_field for i in columns_of(events)]
    return StructType([*schema.LAKE_SCHEMA.fields, *named])


def select_files(lake: Lake, events: DeltaTable, selection: Selection) -> list[str]:
    """The files of a table that may have selected events, by their paths below it."""
    has_type, time = conditions.type_bounds(selection.types), Interval(*selection.time)
    with lake.errors():
        return [
            file.path
            for file in files_of(events, EVENTS)
            if has_type(file.first_type, file.last_type)
            and not time.intersection(file.time).is_empty
        ]


def read_rollups(
    spark: SparkSession, path: str, every: str | timedelta, selection: Selection = EVERYTHING
) -> DataFrame:
    """Rollups of a lake, with the columns of ``lake.sql.buckets``; as ``every`` of :func:`read`.

    Raises OptionError for a width that rollups cannot have, and for what they do not know of
    events; LakeError if there are none.
    """
    width_us = rollups.parse_width(every)
    if selection.servers is not None:
        raise OptionError("servers", "cannot be combined with every: a rollup has no server")
    if selection.source is not None:
        reason = "cannot be combined with every: a rollup has no source timestamps"
        raise OptionError("source_from, source_to", reason)
    lake = Lake(path)
    with lake.errors():
        found = rollups.find(lake.open(ROLLUPS), width_us, selection.time)
    rows = pieces(spark, lake, found, selection.types)
    return spark.sql(sql.buckets("{rows}", width_us, sql.DIALECTS["spark"]), rows=rows)


def pieces(
    spark: SparkSession, lake: Lake, found: rollups.RollupFiles, types: Sequence[EventType] | None
) -> DataFrame:
    """Rollups as the lake has them, with the columns of ``schema.ROLLUP_SCHEMA``."""
    rows = _rows(spark, lake, ROLLUPS, found.paths(types), schema.ROLLUP_SCHEMA)
    return reduce(DataFrame.where, found.where(types), rows)


def create_views(spark: SparkSession, lake: str | Path) -> None:
    """Make the tables of a lake temporary views of a session, with those of ``lake.sql.views``.

    They are ``events``, ``latest``, ``rollups``, ``numbers``, ``minutes``, ``hours`` and ``days``;
    views of these names are replaced. All show the lake of this moment, until a vacuum deletes its
    files. Raises LakeError.
    """
    there = Lake(str(lake))
    of_events = _columns(there.open())
    for name in TABLES:
        columns = schema.ROLLUP_SCHEMA if name == ROLLUPS else of_events
        files = files_of(there.open(name), name)
        if name == ROLLUPS:
            parts = [
                _rows(
                    spark, there, name, [i.path for i in files if i.partition == every], columns
                ).withColumn("every", sf.lit(every))
                for every in sql.WIDTHS_US
            ]
            rows = reduce(DataFrame.union, parts)
        else:
            rows = _rows(spark, there, name, [i.path for i in files], columns)
        rows.createOrReplaceTempView(name)
    for name, query in sql.views("spark").items():
        spark.sql(query).createOrReplaceTempView(name)


def _rows(
    spark: SparkSession, lake: Lake, table: str, paths: list[str], columns: StructType
) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], columns)
    if lake.is_local:
        _check_everywhere(spark, lake)
    if lake.is_local or _has_file_system(spark, lake.root):
        root = f"file://{lake.uri(table)}" if lake.is_local else lake.uri(table)
        root = root.replace("s3://", "s3a://", 1)
        full = [f"{root}/{i}".translate(_GLOB) for i in paths]
        # not by the partition column: it is not needed
        try:
            return spark.read.schema(columns).parquet(*full).select(*columns.names)
        except AnalysisException as e:
            if e.getCondition() != "PATH_NOT_FOUND":
                raise
            raise LakeError(f"{lake}: table {table}: {FILES_DELETED}") from e
    return read_files(spark, lake, table, paths, columns)


def _check_everywhere(spark: SparkSession, lake: Lake) -> None:
    """Raise LakeError if a machine of a cluster lacks a local lake.

    Of a file that is not there, Spark says that it may have been updated.
    """
    if is_remote() or _ONE_PROCESS.fullmatch(spark.sparkContext.master or ""):
        return
    if nodes := _nodes_without(spark, lake.root):
        raise LakeError(
            f"{lake}: is not on machine {min(nodes)}, which is to read it: every machine of a"
            " cluster needs the lake there; or keep it in an object store"
        )


def _nodes_without(spark: SparkSession, path: str) -> set[str]:
    """Machines that lack a path, of those that run a task for each processor."""

    def look(_: Iterable[int]) -> Iterator[str]:
        if not os.path.exists(path):  # noqa: PTH110  # workers need nothing of ours
            yield platform.node()

    context = spark.sparkContext
    n_tasks = context.defaultParallelism
    return set(context.parallelize(range(n_tasks), n_tasks).mapPartitions(look).collect())


def _has_file_system(spark: SparkSession, uri: str) -> bool:
    """Whether Spark itself can read an object store."""
    if is_remote():
        return True
    assert spark._jvm is not None
    scheme = uri.partition("://")[0]
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    systems = spark._jvm.org.apache.hadoop.fs.FileSystem
    try:
        systems.getFileSystemClass({"s3": "s3a"}.get(scheme, scheme), configuration)
    except Py4JJavaError:
        return False
    return True


def without_out_of_range(events: DataFrame) -> DataFrame:
    """Events with null for each source timestamp that is not in ``times.SAFE``."""
    is_safe = " AND ".join(conditions.within("source_timestamp", times.SAFE))
    safe = sf.expr(f"CASE WHEN {is_safe} THEN source_timestamp END")
    return events.withColumn("source_timestamp", safe)
