"""Files of a lake for a Spark that lacks the file system of the object store.

Tasks read them with deltalake. It is a data source because PySpark's ``mapInArrow`` needs pandas.
"""

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from mariner_spark import schema as schemas
from mariner_spark.lake.parquet import fitting
from mariner_spark.lake.tables import Lake


def read_files(
    spark: SparkSession, lake: Lake, table: str, paths: Sequence[str], columns: StructType
) -> DataFrame:
    """Rows of files, given by their paths below a table; a task reads each."""
    spark.dataSource.register(LakeFiles)
    reader = spark.read.format(LakeFiles.name()).schema(columns)
    listed = msgspec.json.encode(paths).decode()
    return reader.options(root=lake.root, table=table, paths=listed).load()


class LakeFiles(DataSource):
    """See the module. Options: ``root`` of the lake, ``table``, and a JSON array of ``paths``."""

    @classmethod
    @override
    def name(cls) -> str:
        return "mariner_lake_files"

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        paths = msgspec.json.decode(self.options["paths"], type=list[str])
        return FilesReader(self.options["root"], self.options["table"], paths, schema)


class FilesReader(DataSourceReader):
    """Reads files of a table."""

    def __init__(self, root: str, table: str, paths: Sequence[str], schema: StructType) -> None:
        self._root = root
        self._table = table
        self._paths = paths
        self._schema = schema

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(i) for i in self._paths]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        files, schema = Lake(self._root).files(self._table), schemas.arrow_schema(self._schema)
        for part in pq.ParquetFile(partition.value, filesystem=files).iter_batches():
            yield from fitting(pa.Table.from_batches([part]), schema).to_batches()
