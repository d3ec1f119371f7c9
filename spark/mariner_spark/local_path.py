"""Local paths, as users write them and as Spark and Hadoop print them."""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from eventer_bridge.errors import StorageError
from mariner_spark.errors import MarinerSparkError

_SCHEME: Final = re.compile(r"^file:(//)?")


def local_path(text: str) -> Path:
    """An absolute path.

    Args:
        text: a path, ``file:/path`` or ``file:///path``.
    """
    # tasks may run in another directory
    return Path(os.path.abspath(_SCHEME.sub("", text)))  # noqa: PTH100  # no links


def refuse_within_store(path: Path) -> None:
    """Refuse to create a file inside an event store.

    Raises:
        MarinerSparkError: the path is inside one.
    """
    # slow to import, and only needed here
    from eventer_bridge.backends.rocksdb import directories  # noqa: PLC0415

    try:
        directories.refuse_within_store(path)
    except StorageError as e:
        raise MarinerSparkError(str(e)) from e


def sync(*paths: Path) -> None:
    """Make files and folders durable; those that are gone are left out.

    Raises:
        OSError: one cannot be synced.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
