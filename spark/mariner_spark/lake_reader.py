"""Reading a lake with Spark's own Parquet source; no Delta jar is needed.

The files of the table are chosen when :func:`read` is called, by the statistics in its log, so a
data frame shows the lake of that moment, however often it is computed, until a vacuum deletes the
files. Where Spark lacks the file system of an object store, tasks read the files with deltalake.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from mariner_spark import schema, times
from mariner_spark.conditions import LAST_PATH, conditions, type_bounds
from mariner_spark.errors import LakeError
from mariner_spark.lake.tables import EVENTS, Lake, arrow_schema
from mariner_spark.source.selection import Selection
from mariner_spark.times import Interval

EVERYTHING: Final = Selection()

_ROUNDED_US: Final = 1_000
"""Compaction rounds timestamps in the log to milliseconds."""

_GLOB: Final = str.maketrans({i: f"\\{i}" for i in "\\{}[]*?"})


def read_events(
    spark: SparkSession,
    path: str,
    selection: Selection = EVERYTHING,
    *,
    version: int | datetime | None = None,
) -> DataFrame:
    """Events of a lake.

    Args:
        spark: the session.
        path: the lake.
        selection: of events; files that have none of them, by their time and types, are not opened.
        version: of the table ``events``, or the moment of one; None: the latest.

    Returns:
        A row an event, with the columns of ``schema.LAKE_SCHEMA``.

    Raises:
        NoLakeError: there is no lake.
        LakeError: it cannot be read, or there is no such version.
    """
    return read(spark, path, EVENTS, selection, version=version)


def read(
    spark: SparkSession,
    path: str,
    table: str,
    selection: Selection = EVERYTHING,
    *,
    version: int | datetime | None = None,
) -> DataFrame:
    """Rows of a table of a lake, as :func:`read_events`."""
    lake = Lake(path)
    found = lake.open(table, version)
    has_type = type_bounds(selection.types)
    first, last = selection.time
    time = Interval(
        None if first is None else first - _ROUNDED_US, None if last is None else last + _ROUNDED_US
    )
    with lake.errors():
        chosen = [
            file.path
            for file in list_files(found)
            if has_type(file.first_type, file.last_type)
            and not time.intersection(file.time).is_empty
        ]
    columns = StructType([schema.LAKE_SCHEMA[i.name] for i in arrow_schema(table)])
    rows = _rows(spark, lake, table, chosen, columns)
    for condition in conditions(selection):
        rows = rows.where(condition)
    return rows


class TableFile(NamedTuple):
    """A file of a table, with bounds from the log.

    Attributes:
        path: below the table.
        time: from the first to the last timestamp, perhaps rounded to milliseconds.
        first_type: least type path, or one before.
        last_type: largest type path, or one behind.
    """

    path: str
    time: Interval
    first_type: str
    last_type: str


def list_files(table: DeltaTable) -> list[TableFile]:
    """The files of a table."""
    return [
        TableFile(
            file["path"],
            Interval(_us(file.get("min.timestamp")), _us(file.get("max.timestamp"))),
            file.get("min.type_path") or "",
            file.get("max.type_path") or LAST_PATH,
        )
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else times.from_datetime(moment)


def _rows(
    spark: SparkSession, lake: Lake, table: str, paths: list[str], columns: StructType
) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], columns)
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
            reason = "files of this version are deleted, as by a vacuum: read a later one"
            raise LakeError(f"{lake}: table {table}: {reason}") from e
    path, arrow_schema = lake.root, schema.arrow_schema(columns)

    def read_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = Lake(path).files(table)
        for batch in batches:
            for name in batch.column("path").to_pylist():
                for part in pq.ParquetFile(name, filesystem=files).iter_batches():
                    yield pa.RecordBatch.from_arrays(
                        [part.column(i.name).cast(i.type) for i in arrow_schema],
                        schema=arrow_schema,
                    )

    names = spark.createDataFrame([(i,) for i in paths], "path string")
    return names.repartition(len(paths)).mapInArrow(read_files, columns)


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
