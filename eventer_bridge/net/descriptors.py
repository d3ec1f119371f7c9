"""File descriptors: every connection takes one, and so does every file of the store."""

import resource
import sys
from typing import NamedTuple

from eventer_bridge.errors import LimitError
from eventer_bridge.net import limits
from eventer_bridge.net.quota import Bounds


def raise_limit() -> None:
    """Raise this process' limit of open files as far as permitted."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # refused where "unlimited" exceeds the kernel's limit: the limit stays as it is
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return


def limit() -> int:
    """How many files this process may have open; a number that is never reached, if any."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Descriptors(NamedTuple):
    """The limit of open files, and the connections it allows.

    Attributes:
        limit: descriptors that this process may open.
        bounds: connections that fit, with a reserve for the store.
    """

    limit: int
    bounds: Bounds

    @property
    def are_enough(self) -> bool:
        """Whether the usual number of connections fits."""
        return self.bounds == Bounds.usual()

    def __str__(self) -> str:
        bounds = self.bounds
        return (
            f"open files are limited to {self.limit} (ulimit -n): at most {bounds.known} clients"
            f" and {bounds.new} connections before init"
        )


def find() -> Descriptors:
    """Read the limit of this process.

    Raises:
        LimitError: it is too low for a store and a few connections.
    """
    soft = limit()
    least = limits.RESERVED_DESCRIPTORS + limits.MIN_CONNECTIONS
    usual = Bounds.usual()
    if soft == sys.maxsize:
        return Descriptors(limits.RESERVED_DESCRIPTORS + usual.new + usual.known, usual)
    if soft < least:
        raise LimitError(
            f"open files are limited to {soft} (ulimit -n): the store and a few connections"
            f" need {least} at least"
        )
    return Descriptors(soft, usual.fitting(soft - limits.RESERVED_DESCRIPTORS))
