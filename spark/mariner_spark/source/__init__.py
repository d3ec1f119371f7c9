"""The data source ``mariner``: events of a store, or of gateways over the network, as rows.

:func:`register` adds it to a session. A read is planned in a Python process beside the driver,
which checks the options (``options``) and queries the gateway or takes a snapshot of the store
(``snapshots``). Tasks then read the partitions: ``store``, ``network``, ``stream``.

It supports no filter push-down (``pushFilters``): Spark 4.3 plans a data frame once, so rows that
one query filtered out would be missing in the next one.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote
from typing_extensions import override

from mariner_spark import schema as schemas
from mariner_spark.source import network, options, snapshots, store
from mariner_spark.source.options import Options
from mariner_spark.source.rows import Columns, without_out_of_range
from mariner_spark.source.snapshots import DriverProcess
from mariner_spark.source.stream import StreamReader


def register(spark: SparkSession) -> SparkSession:
    """Add ``spark.read.format("mariner")`` to a session, which is returned.

    Workers on this machine use this Python: that of ``PATH``, which PySpark takes by default, lacks
    our packages where the environment is not activated.
    """
    if not is_remote() and "PYSPARK_PYTHON" not in os.environ:
        context = spark.sparkContext
        if (context.master or "").startswith("local"):
            context.pythonExec = sys.executable
    # a subclass, which Spark copies to its workers together with its attributes
    attributes = {"driver": snapshots.this_driver()}
    source = type(MarinerDataSource.__name__, (MarinerDataSource,), attributes)
    spark.dataSource.register(source)
    return spark


class MarinerDataSource(DataSource):
    """``spark.read.format("mariner")``: its methods raise OptionError if an option is wrong.

    ``register`` sets the process of the driver, which owns snapshots.
    """

    driver: ClassVar[DriverProcess]

    @classmethod
    @override
    def name(cls) -> str:
        return "mariner"

    @override
    def schema(self) -> StructType:
        options.parse(self.options)
        return schemas.SCHEMA

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        parsed = options.parse(self.options)
        parsed.check_batch()
        schemas.check(schema)
        return BatchReader(parsed, schema, self.driver)

    @override
    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(options.parse(self.options), schema)


class BatchReader(DataSourceReader):
    """Reads those columns of the events that the options select."""

    def __init__(self, parsed: Options, schema: StructType, driver: DriverProcess) -> None:
        self._options = parsed
        self._schema = schema
        self._driver = driver

    @override
    def partitions(self) -> Sequence[InputPartition]:
        parsed = self._options
        planned: Sequence[InputPartition]
        if parsed.path is not None:
            planned = store.plan(parsed.path, self._driver, parsed.selection, parsed.partitions)
        else:
            planned = network.plan(parsed.gateway, parsed.selection, parsed.partitions)
        # given no partitions, Spark would create one of its own class
        return list(planned) or [EmptyPartition(None)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = Columns(schemas.arrow_schema(self._schema), self._options.value_path)
        batches = self._read(partition, columns)
        return batches if self._options.keeps_all_times else without_out_of_range(batches)

    def _read(self, partition: InputPartition, columns: Columns) -> Iterator[pa.RecordBatch]:
        parsed = self._options
        if isinstance(partition, store.StorePartition):
            yield from store.read(partition, parsed.selection, columns)
        elif isinstance(partition, network.NetworkPartition):
            yield from network.read(parsed.gateway, partition, parsed.selection, columns)


class EmptyPartition(InputPartition):
    """The only partition of a read that selects no events."""
