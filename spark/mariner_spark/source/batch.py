"""The data source and its batch reader (Python Data Source API).

Spark creates the reader in a process beside the driver, asks it for the partitions, and sends it
to the tasks, each of which reads one partition.

The reader supports no filter push-down (``pushFilters``): Spark 4.3 plans a data frame once, so
rows that one query filtered out would be missing in the next one.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from mariner_spark import schema as schemas
from mariner_spark.source import network, options, store
from mariner_spark.source.driver_process import DriverProcess
from mariner_spark.source.options import Options
from mariner_spark.source.stream import StreamReader


class MarinerDataSource(DataSource):
    """``spark.read.format("mariner")``; see ``options`` and ``schema``.

    Attributes:
        driver: process of the driver; set by ``register``.
    """

    driver: ClassVar[DriverProcess]

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "mariner"

    def schema(self) -> StructType:
        """All columns.

        Raises:
            OptionError: an option is wrong.
        """
        options.parse(self.options)
        return schemas.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of a batch.

        Args:
            schema: the columns to read.

        Raises:
            OptionError: an option is wrong.
            SchemaError: a column is not one of :data:`schema.SCHEMA`.
        """
        parsed = options.parse(self.options)
        parsed.check_batch()
        schemas.check(schema)
        return BatchReader(parsed, schema, self.driver)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """Reader of a stream.

        Args:
            schema: the columns to read.

        Raises:
            OptionError: an option is wrong.
        """
        return StreamReader(options.parse(self.options), schema)


class BatchReader(DataSourceReader):
    """Reads the events that the options select.

    Args:
        parsed: options.
        schema: columns to read.
        driver: process of the driver, which the snapshot is for.
    """

    def __init__(self, parsed: Options, schema: StructType, driver: DriverProcess) -> None:
        self._options = parsed
        self._schema = schema
        self._driver = driver

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: query the gateway, or take a snapshot of the store.

        Raises:
            OptionError: the store or the gateway rejects an option.
            StorageError, MarinerError: it failed for another reason.
        """
        parsed = self._options
        if parsed.path is not None:
            planned: Sequence[InputPartition] = store.plan(
                parsed.path, self._driver, parsed.selection, parsed.partitions
            )
        else:
            planned = network.plan(parsed.gateway, parsed.selection, parsed.partitions)
        # given no partitions, Spark would create one of its own class
        return list(planned) or [EmptyPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition; runs in a task.

        Yields:
            Arrow batches with the columns of the schema.
        """
        parsed = self._options
        arrow_schema = schemas.arrow_schema(self._schema)
        if isinstance(partition, store.StorePartition):
            yield from store.read(partition, parsed.selection, arrow_schema)
        elif isinstance(partition, network.NetworkPartition):
            yield from network.read(parsed.gateway, partition, parsed.selection, arrow_schema)


class EmptyPartition(InputPartition):
    """The only partition of a read that selects no events."""
