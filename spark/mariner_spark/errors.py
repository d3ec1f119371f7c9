"""Errors of the Spark side, which Spark wraps in errors of its own that contain the text.

Errors of the store are ``StorageError`` of ``eventer_bridge``, errors of the protocol
``MarinerError`` of ``mariner``.
"""

import reprlib
from typing import Any, Final


class MarinerSparkError(Exception):
    """Root of the tree."""


class JavaError(MarinerSparkError):
    """There is no Java that Spark could run on; the text says what to install."""


class LakeError(MarinerSparkError):
    """A lake is not there, is damaged, or cannot be written; the text names it."""


class NoLakeError(LakeError):
    """There is no lake; the text has its path."""


_repr: Final = reprlib.Repr()
_repr.maxstring = 200


def quoted(text: str) -> str:
    """A user's text in an error: shortened in the middle if it is long."""
    return _repr.repr(text)


class OptionError(MarinerSparkError):
    """An option of the data source is wrong; the text begins with its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionError, (self.option, self.reason)  # it crosses processes


class GatewayUnavailableError(OptionError):
    """The gateway cannot be reached, or the connection was lost."""

    def __init__(self, reason: str) -> None:
        super().__init__("host, port", reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return GatewayUnavailableError, (self.reason,)


class ProcessKilledError(MarinerSparkError):
    """A process that worked beside this one was killed."""


class SchemaError(MarinerSparkError):
    """The user's schema has an unknown column, or another type for a known one."""


class SnapshotError(MarinerSparkError):
    """The snapshot of a read no longer exists; the text says why and what to do."""


class SparkHomeError(MarinerSparkError):
    """``SPARK_HOME`` names no Spark, or one of another version; the text says what to do."""


class SourceError(MarinerSparkError):
    """The answers of the gateway cannot be used; the text says why."""


class DataLossError(SourceError):
    """Events were deleted before a stream read them; the text says what to do."""


class HistoryError(SourceError):
    """The gateway's store has another history than the events read; the text says what to do."""
