"""The data source ``mariner``: events of a store, or of a gateway over the network, as rows.

:func:`register` adds it to a session; ``options`` and ``schema`` describe its input and output.
A read is planned in a Python process beside the driver, which checks the options and queries the
gateway or takes a snapshot of the store. Tasks then read the partitions.

Modules: ``selection`` (which events), ``batch`` and ``stream`` (the readers that Spark calls),
``store`` and ``network`` (planning and reading partitions), ``store_rows`` and ``event_rows``
(rows as Arrow columns).
"""

from pyspark.sql import SparkSession

from mariner_spark.source import driver_process
from mariner_spark.source.batch import MarinerDataSource

__all__ = ["MarinerDataSource", "register"]


def register(spark: SparkSession) -> SparkSession:
    """Add ``spark.read.format("mariner")`` to a session.

    Args:
        spark: any session; its configuration stays unchanged.

    Returns:
        The same session.
    """
    # a subclass, which Spark copies to its workers together with its attributes
    attributes = {"driver": driver_process.of_this_process()}
    source = type(MarinerDataSource.__name__, (MarinerDataSource,), attributes)
    spark.dataSource.register(source)
    return spark
