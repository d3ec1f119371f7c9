"""Spark for stored events: :func:`get_session`, :func:`read`, :func:`register`.

::

    spark = mariner_spark.get_session()
    events = mariner_spark.read(spark, store="data/events", types="machine/*")

Everything needs the extra ``spark`` of the distribution. See ``spark/README.md``.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mariner_spark.reader import create_views, read
    from mariner_spark.session import get_session
    from mariner_spark.source import register

__all__ = ["create_views", "get_session", "read", "register"]

_MODULES: Final = {
    "create_views": "mariner_spark.reader",
    "get_session": "mariner_spark.session",
    "read": "mariner_spark.reader",
    "register": "mariner_spark.source",
}


def __getattr__(name: str) -> Any:
    # imported on demand: the commands work without PySpark, and do not wait for its import
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
