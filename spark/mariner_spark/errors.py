"""Errors of the Spark side.

::

    MarinerSparkError
    ├── JavaError                no Java that Spark could run on
    ├── LakeError                a lake, or its file system
    │   └── NoLakeError          there is no lake
    ├── OptionError              an option of the data source; the text begins with its name
    │   └── GatewayAwayError     the gateway cannot be reached (host, port)
    ├── SchemaError              a schema that the user gave
    ├── SnapshotError            the snapshot of a read is not there any more
    └── SourceError              the gateway's answers cannot be used
        ├── DataLossError        events that a stream did not read are gone
        └── HistoryError         they do not go on from what a stream read

What goes wrong in the store is a ``StorageError`` of ``eventer_bridge``, what goes wrong on
the way to the gateway a ``MarinerError`` of ``mariner``. Spark wraps all of them in errors of
its own, which hold the text.
"""

from typing import Any


class MarinerSparkError(Exception):
    """Root of the tree."""


class JavaError(MarinerSparkError):
    """There is no Java that Spark could run on; the text says what to install."""


class LakeError(MarinerSparkError):
    """A lake is not there, is damaged, or cannot be written; the text names it."""


class NoLakeError(LakeError):
    """There is no lake; the text names where."""


class OptionError(MarinerSparkError):
    """An option of the data source is wrong; the text begins with its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionError, (self.option, self.reason)  # it crosses processes


class GatewayAwayError(OptionError):
    """The gateway cannot be reached, or the connection was lost: it is away, or not there."""

    def __init__(self, reason: str) -> None:
        super().__init__("host, port", reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return GatewayAwayError, (self.reason,)


class SchemaError(MarinerSparkError):
    """The schema that the user gave names a column that there is not, or another type of it."""


class SnapshotError(MarinerSparkError):
    """The snapshot of a read is not there any more; the text says why and what to do."""


class SourceError(MarinerSparkError):
    """The answers of the gateway cannot be used; the text says why."""


class DataLossError(SourceError):
    """Events that a stream did not read were deleted; the text says what to do."""


class HistoryError(SourceError):
    """The gateway's store is of another history than what was read; the text says what to do."""
