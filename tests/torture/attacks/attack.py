"""What an attack is: a function that a process of the attacker runs, and what it may cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

HOST: Final = "127.0.0.1"

BYTES_PER_MB: Final = 1 << 20


class Target(NamedTuple):
    """Where an attack goes, and how much of it.

    Attributes:
        mariner: port of Mariner clients.
        eventer: port of Eventer clients.
        rsb: port of the RSB bus.
        http: port of health and metrics.
        scale: 1 for all of it; tests do less.
    """

    mariner: int
    eventer: int
    rsb: int
    http: int
    scale: float

    def count(self, n: int, at_least: int = 1) -> int:
        """So many times, to scale."""
        return max(at_least, round(n * self.scale))

    def duration(self, seconds: float) -> float:
        """So long, to scale; not so much shorter, for what takes its time."""
        return seconds * min(1.0, 10 * self.scale)


Facts: TypeAlias = dict[str, float]
"""What an attack counted, by name."""


@dataclass(frozen=True)
class Limits:
    """What an attack may cost the others. The defaults are what the gateway promises.

    Attributes:
        ping_p99_s: of the observer's pings.
        query_p99_s: of the observer's small queries; None where they may wait: storage fails.
        register_p99_s: of the observer's small registrations; None: they may wait.
        memory_bytes: that the process may take more than before.
        log_bytes: that may be written to the log.
        is_registering: whether all registrations of the observer must succeed.
        is_connecting: whether all new connections of the observer must succeed.
        at_most: bounds of the attack's own facts.
        at_least: the same, the other way.
    """

    ping_p99_s: float = 0.050
    query_p99_s: float | None = 0.250
    register_p99_s: float | None = None
    memory_bytes: int = 300 * BYTES_PER_MB
    log_bytes: int = BYTES_PER_MB
    is_registering: bool = True
    is_connecting: bool = True
    at_most: Mapping[str, float] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Attack:
    """An attack.

    Attributes:
        run: what the attacker's process does; returns what it counted.
        prepare: what it does before anything is measured.
        is_tls: whether Mariner clients connect over TLS.
        max_files: limit of descriptors of the gateway (``ulimit -n``); None: as it is.
        fault: what else is wrong with the gateway's machine meanwhile: its disk fails, or
            nobody reads its standard error.
        limits: what the attack may cost.
        timeout_s: what it may take at the most; it ends by itself long before.
    """

    run: Callable[[Target], Facts]
    prepare: Callable[[Target], None] | None = None
    is_tls: bool = False
    max_files: int | None = None
    fault: Literal["disk", "stderr"] | None = None
    limits: Limits = field(default_factory=Limits)
    timeout_s: float = 120.0
