"""How often the same may be told."""

import logging
from typing import Any

import pytest

from mariner import limits
from mariner.gateway.logs.records import LogRate


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rate(clock: Clock) -> LogRate:
    return LogRate(clock)


def record(peer: object = None, line: int = 1, level: int = logging.WARNING) -> logging.LogRecord:
    extra: dict[str, Any] = {} if peer is None else {"peer": peer}
    fields = {"name": "a.b", "levelno": level, "lineno": line, **extra}
    return logging.makeLogRecord(fields)


def admitted(rate: LogRate, n: int, **fields: Any) -> int:
    """How many of ``n`` lines are told."""
    return sum(rate.admits(record(**fields)) for _ in range(n))


def test_an_address_has_a_burst_and_then_its_rate(rate: LogRate, clock: Clock) -> None:
    burst = limits.LOG_ADDRESS_BURST_LINES
    ports = iter(range(1_000, 60_000))
    told = [rate.admits(record(peer=f"10.0.0.1:{next(ports)}")) for _ in range(burst + 7)]
    assert told == [True] * burst + [False] * 7
    assert admitted(rate, 1, peer="10.0.0.2:1") == 1
    assert admitted(rate, 1, peer="fe80::1:1") == 1
    clock.now_s += 1 / limits.LOG_ADDRESS_LINES_PER_S
    assert admitted(rate, 3, peer="10.0.0.1:5") == 1
    clock.now_s += 1e9
    assert admitted(rate, 2 * burst, peer="10.0.0.1:5") == burst
    left_out = 7 + 2 + burst
    assert rate.n_left_out == left_out
    assert rate.take_left_out() == {"10.0.0.1": left_out}
    assert rate.take_left_out() == {}


def test_all_addresses_together_have_one_too(rate: LogRate, clock: Clock) -> None:
    told = sum(rate.admits(record(peer=f"10.0.{i >> 8}.{i & 255}:1")) for i in range(1_000))
    assert told == limits.LOG_BURST_LINES
    clock.now_s += 10
    told = sum(rate.admits(record(peer=f"10.1.{i >> 8}.{i & 255}:1")) for i in range(1_000))
    assert told == 10 * limits.LOG_LINES_PER_S
    left_out = rate.take_left_out()
    assert len(left_out) == limits.MAX_LOG_ITEMS + 1
    assert sum(left_out.values()) == rate.n_left_out == 2_000 - limits.LOG_BURST_LINES - told


def test_memory_is_bounded(rate: LogRate) -> None:
    for i in range(limits.MAX_LOG_SOURCES + 10):
        rate.admits(record(peer=f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}:1"))
    assert len(rate._buckets) == limits.MAX_LOG_SOURCES


def test_lines_without_a_peer_are_counted_by_their_place(rate: LogRate) -> None:
    assert admitted(rate, 2 * limits.LOG_BURST_LINES, line=1) == limits.LOG_BURST_LINES
    assert admitted(rate, 10, line=2) == 10
    assert rate.take_left_out() == {"a.b:1": limits.LOG_BURST_LINES}
    # and those of peers, by their addresses
    assert admitted(rate, 1, line=1, peer="10.0.0.1:1") == 1


def test_who_debugs_wants_all(rate: LogRate) -> None:
    n = 3 * limits.LOG_BURST_LINES
    assert admitted(rate, n, peer="10.0.0.1:1", level=logging.DEBUG) == n
