"""The data source and its reader, as Spark asks for them (Python Data Source API, batch).

Spark makes the reader in a process beside the driver, asks for the partitions, and sends it to
the tasks, each of which reads one partition.

The reader takes over no filters (``pushFilters``): Spark 4.3 plans a data frame once, and what one
query of it pushed down would be missing in the next one.
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
        owner: the driver; set by ``register``.
    """

    owner: ClassVar[DriverProcess]

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
        """BatchReader of a batch.

        Args:
            schema: the columns to read.

        Raises:
            OptionError: an option is wrong.
            SchemaError: a column is not one of ours.
        """
        parsed = options.parse(self.options)
        parsed.check_batch()
        schemas.check(schema)
        return BatchReader(parsed, schema, self.owner)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """BatchReader of a stream.

        Args:
            schema: the columns to read.

        Raises:
            OptionError: an option is wrong.
        """
        return StreamReader(options.parse(self.options), schema)


class BatchReader(DataSourceReader):
    """Reads what the options ask for.

    Args:
        parsed: options.
        schema: columns to read.
        owner: the driver.
    """

    def __init__(self, parsed: Options, schema: StructType, owner: DriverProcess) -> None:
        self._options = parsed
        self._schema = schema
        self._owner = owner

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: ask the gateway, or make a snapshot of the store.

        Raises:
            OptionError: the store or the gateway refuses what an option says.
            StorageError, MarinerError: it cannot be used for another reason.
        """
        parsed = self._options
        if parsed.path is not None:
            planned: Sequence[InputPartition] = store.plan(
                parsed.path, self._owner, parsed.selection, parsed.partitions
            )
        else:
            planned = network.plan(parsed.gateway, parsed.selection, parsed.partitions)
        # of no partitions Spark would make one that is not ours
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
    """What is left of a read that no event satisfies."""
