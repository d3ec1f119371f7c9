"""The data source ``mariner``: events of a store, or of a gateway over the network, as rows.

:func:`register` makes it known to a session; ``options`` and ``schema`` say what it takes and
gives. A read is planned in a Python process beside the driver (options are checked, the
gateway is asked, a snapshot of the store is made), and done by tasks.

What a read is made of: ``selection`` (which events), ``batch`` (the
reader that Spark talks to), ``store`` and ``network`` (where the events come from),
``store_rows`` and ``event_rows`` (rows as columns of Arrow).
"""

from pyspark.sql import SparkSession

from mariner_spark.source import driver_process
from mariner_spark.source.batch import MarinerDataSource

__all__ = ["MarinerDataSource", "register"]


def register(spark: SparkSession) -> SparkSession:
    """Make ``spark.read.format("mariner")`` known to a session.

    Args:
        spark: any session; its configuration is left as it is.

    Returns:
        The same session.
    """
    # a class of its own, which Spark copies to its workers together with what it holds
    attributes = {"owner": driver_process.of_this_process()}
    source = type(MarinerDataSource.__name__, (MarinerDataSource,), attributes)
    spark.dataSource.register(source)
    return spark
