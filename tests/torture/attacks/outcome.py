"""What an attack did, and the verdicts on it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.torture.attacks.attack import BYTES_PER_MB, Facts, Limits
from tests.torture.attacks.observer import Observation

BASELINE_FACTOR: Final = 2.0
"""Where the baseline itself is slow, pings may take so many times as long as it."""

RECOVERY_S: Final = 15.0
"""After the attack, until all is as before: deadlines of peers that are silent are 10 s."""

STOP_S: Final = 30.0
"""From SIGTERM to the end: sessions under way get 20 s, clients 10 s."""


@dataclass
class Outcome:
    """What an attack did.

    Attributes:
        facts: what the attacker counted.
        baseline: what the observer saw before.
        seen: what it saw meanwhile.
        more_memory_mb: at the most.
        left_memory_mb: afterwards.
        n_files: descriptors at the most.
        n_threads: threads at the most.
        starved_s: that the gateway's loop waited for a processor: others had it.
        log_bytes: that were logged.
        disk_mb: that the store takes more than before.
        recovered_s: until the gateway served everybody again; None: it did not.
        quiet_s: until it worked for nobody any more.
        stopped_s: from SIGTERM until it had ended; None: it did not.
    """

    facts: Facts
    baseline: Observation
    seen: Observation = field(default_factory=Observation)
    more_memory_mb: float = 0.0
    left_memory_mb: float = 0.0
    n_files: int = 0
    n_threads: int = 0
    starved_s: float = 0.0
    log_bytes: int = 0
    disk_mb: float = 0.0
    recovered_s: float | None = None
    quiet_s: float = 0.0
    stopped_s: float | None = None

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {value:,.6g}" for name, value in self.facts.items())
        recovered, stopped = (
            "never" if i is None else f"{i:.1f} s" for i in (self.recovered_s, self.stopped_s)
        )
        seen = ", ".join(f"{kind} {self.seen.times(kind)}" for kind in sorted(self.seen.times_s))
        return (
            f"{facts or 'nothing'}; median/p99/max: {seen} (ping before:"
            f" {self.baseline.times('ping')}; starved {self.starved_s:.1f} s);"
            f" memory +{self.more_memory_mb:.0f} MB, left +{self.left_memory_mb:.0f};"
            f" {self.n_files} descriptors, {self.n_threads} threads;"
            f" log {self.log_bytes / 1000:,.0f} kB, store +{self.disk_mb:.0f} MB;"
            f" recovered {recovered}, quiet {self.quiet_s:.1f} s, stopped {stopped}"
        )


def slowness(limits: Limits, outcome: Outcome) -> Iterator[str]:
    """What took the honest client too long. How much that is also depends on the machine."""
    for kind, limit_s in (
        ("ping", limits.ping_p99_s),
        ("query", limits.query_p99_s),
        ("register", limits.register_p99_s),
    ):
        if limit_s is None:
            continue
        allowed_ms = max(limit_s * 1000, BASELINE_FACTOR * outcome.baseline.times(kind).p99_ms)
        if (p99_ms := outcome.seen.times(kind).p99_ms) > allowed_ms:
            yield f"{kind} p99 {p99_ms:.0f} ms, at most {allowed_ms:.0f}"


def violations(limits: Limits, outcome: Outcome) -> Iterator[str]:
    """What must not be, however slow the machine."""
    yield from _lost(limits, outcome.seen)
    if outcome.more_memory_mb * BYTES_PER_MB > limits.memory_bytes:
        allowed_mb = limits.memory_bytes // BYTES_PER_MB
        yield f"memory +{outcome.more_memory_mb:.0f} MB, at most +{allowed_mb}"
    if outcome.log_bytes > limits.log_bytes:
        yield f"log +{outcome.log_bytes:,} bytes, at most {limits.log_bytes:,}"
    for name, most in limits.at_most.items():
        if (value := outcome.facts[name]) > most:
            yield f"{name}: {value:,.6g}, at most {most:,.6g}"
    for name, least in limits.at_least.items():
        if (value := outcome.facts[name]) < least:
            yield f"{name}: {value:,.6g}, at least {least:,.6g}"
    if outcome.recovered_s is None:
        yield f"not as before {RECOVERY_S:.0f} s after the attack"


def ending(outcome: Outcome) -> Iterator[str]:
    """Whether it came to rest, and ended when it was told to."""
    if outcome.quiet_s >= RECOVERY_S:
        yield f"still at work {RECOVERY_S:.0f} s after the attack"
    if outcome.stopped_s is None:
        yield f"SIGTERM did not end it with exit code 0 within {STOP_S:.0f} s"


def _lost(limits: Limits, seen: Observation) -> Iterator[str]:
    must_succeed = {
        "ping": True,
        "query": limits.query_p99_s is not None,
        "register": limits.is_registering,
        "connect": limits.is_connecting,
    }
    for (kind, reason), n in seen.lost.items():
        if must_succeed[kind]:
            yield f"{kind}: {n} of {seen.times(kind).n} lost: {reason}"
