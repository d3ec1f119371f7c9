"""Paths of this machine, as people write them and as Spark and Hadoop print them."""

import os
import re
from pathlib import Path
from typing import Final

_SCHEME: Final = re.compile(r"^file:(//)?")


def local_path(text: str) -> Path:
    """An absolute path.

    Args:
        text: a path, ``file:/path`` or ``file:///path``.
    """
    # tasks may run in another directory
    return Path(os.path.abspath(_SCHEME.sub("", text)))  # noqa: PTH100  # no links
