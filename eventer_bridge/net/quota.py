"""Limits on the number of connections: per address, in total, and by the limit of open files.

An address is a unit that a peer cannot easily multiply: an IPv4 address, or an IPv6 network
(/64), since each host can use all its 2**64 addresses.
"""

import ipaddress
import resource
import sys
from typing import NamedTuple

from typing_extensions import override

from eventer_bridge.errors import LimitError
from eventer_bridge.net import limits


def address_of(host: str) -> str:
    """The address by which connections from this numeric host are counted."""
    ip = ipaddress.ip_address(host)
    if ip.version == 4:
        return host
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(ip) >> 64 << 64)}/64"


class Bounds(NamedTuple):
    """Limits on a process' new connections (before ``init``) and known ones."""

    new: int
    new_per_address: int
    known: int
    known_per_address: int

    @classmethod
    def usual(cls) -> "Bounds":
        """The bounds in ``limits``."""
        return cls(
            limits.MAX_NEW_CONNECTIONS,
            limits.MAX_NEW_CONNECTIONS_PER_ADDRESS,
            limits.MAX_CONNECTIONS,
            limits.MAX_CONNECTIONS_PER_ADDRESS,
        )

    def fitting(self, connections: int) -> "Bounds":
        """These bounds if their sum fits, else all of them scaled down."""
        if connections >= self.new + self.known:
            return self
        new = min(self.new, connections // 4)
        known = connections - new
        return Bounds(
            new,
            min(self.new_per_address, -(-new // 2)),
            known,
            min(self.known_per_address, -(-known // 2)),
        )


class Quota:
    """Counts connections against a total and a bound per address."""

    def __init__(self, max_connections: int, max_per_address: int) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._by_address: dict[str, int] = {}
        self._count = 0

    def take(self, address: str) -> bool:
        """Count one more; False if the bound is reached."""
        count = self._by_address.get(address, 0)
        if self._count >= self._max_connections or count >= self._max_per_address:
            return False
        self._count += 1
        self._by_address[address] = count + 1
        return True

    def give_back(self, address: str) -> None:
        """Count one less."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def raise_file_limit() -> None:
    """Raise this process' limit of open files as far as permitted."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # refused where "unlimited" exceeds the kernel's limit: the limit stays as it is
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return


def file_limit() -> int:
    """How many files this process may have open; a number that is never reached, if any."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Descriptors(NamedTuple):
    """The limit of open files, and the connections it allows with a reserve for the store."""

    limit: int
    bounds: Bounds

    @classmethod
    def find(cls) -> "Descriptors":
        """Read the limit of this process; ``LimitError``: too low for a store and connections."""
        soft = file_limit()
        least = limits.RESERVED_DESCRIPTORS + limits.MIN_CONNECTIONS
        usual = Bounds.usual()
        if soft == sys.maxsize:
            return cls(limits.RESERVED_DESCRIPTORS + usual.new + usual.known, usual)
        if soft < least:
            raise LimitError(
                f"open files are limited to {soft} (ulimit -n): the store and a few connections"
                f" need {least} at least"
            )
        return cls(soft, usual.fitting(soft - limits.RESERVED_DESCRIPTORS))

    @property
    def are_enough(self) -> bool:
        """Whether the usual number of connections fits."""
        return self.bounds == Bounds.usual()

    @override
    def __str__(self) -> str:
        bounds = self.bounds
        return (
            f"open files are limited to {self.limit} (ulimit -n): at most {bounds.known} clients"
            f" and {bounds.new} connections before init"
        )
