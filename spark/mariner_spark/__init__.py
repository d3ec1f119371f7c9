"""Spark on top of what the gateway stored: :func:`get_session`, :func:`read`, :func:`register`.

::

    spark = mariner_spark.get_session()
    events = mariner_spark.read(spark, store="data/events", types="machine/*")

Everything needs the extra ``spark`` of the distribution. ``spark/README.md`` tells more.
"""

from mariner_spark.reader import read
from mariner_spark.session import get_session
from mariner_spark.source import register

__all__ = ["get_session", "read", "register"]
