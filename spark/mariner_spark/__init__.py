"""Spark on top of what the gateway stored: :func:`get_session`, :func:`register`.

::

    spark = mariner_spark.get_session()
    events = spark.read.format("mariner").option("path", "data/events").load()

Everything needs the extra ``spark`` of the distribution. ``spark/README.md`` tells more.
"""

from mariner_spark.session import get_session
from mariner_spark.source import register

__all__ = ["get_session", "register"]
