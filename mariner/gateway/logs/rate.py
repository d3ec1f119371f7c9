"""Rate limit of log lines: peers can cause only so many per second.

A line has a source: the address of its ``peer``, if it has one (all addresses together are one
more source), or else the code that logs it. A source has a bucket of tokens, one for each line.
Lines without a token are counted, and left out.

Lines of level DEBUG are not limited: turning them on asks for all of them.
"""

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from mariner import limits


class _Allowance(NamedTuple):
    burst_lines: int
    lines_per_s: float


class _Bucket:
    __slots__ = ("_allowance", "_filled_s", "_tokens")

    def __init__(self, allowance: _Allowance, now_s: float) -> None:
        self._allowance = allowance
        self._tokens = float(allowance.burst_lines)
        self._filled_s = now_s

    def take(self, now_s: float) -> bool:
        filled = self._tokens + (now_s - self._filled_s) * self._allowance.lines_per_s
        self._tokens, self._filled_s = min(filled, self._allowance.burst_lines), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class LogRate:
    """See the module. May be used on any thread.

    Args:
        clock: seconds that never go back.

    Attributes:
        n_left_out: lines that were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.n_left_out = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # least recently used first
        self._of_address = _Allowance(
            limits.LOG_ADDRESS_BURST_LINES, limits.LOG_ADDRESS_LINES_PER_S
        )
        self._of_others = _Allowance(limits.LOG_BURST_LINES, limits.LOG_LINES_PER_S)
        self._all_addresses = _Bucket(self._of_others, clock())
        self._left_out: Counter[str] = Counter()

    def admits(self, record: logging.LogRecord) -> bool:
        """Whether a line is admitted; if not, it is counted."""
        if record.levelno < logging.INFO:
            return True
        peer = vars(record).get("peer")
        with self._lock:
            now_s = self._clock()
            if isinstance(peer, str):
                source = peer.rpartition(":")[0] or peer
                bucket = self._bucket(source, self._of_address, now_s)
                is_admitted = bucket.take(now_s) and self._all_addresses.take(now_s)
            else:
                source = f"{record.name}:{record.lineno}"
                is_admitted = self._bucket(source, self._of_others, now_s).take(now_s)
            if not is_admitted:
                self.n_left_out += 1
                if source not in self._left_out and len(self._left_out) >= limits.MAX_LOG_ITEMS:
                    source = "others"
                self._left_out[source] += 1
        return is_admitted

    def take_left_out(self) -> dict[str, int]:
        """Lines left out since the last call, by source."""
        with self._lock:
            left_out, self._left_out = self._left_out, Counter()
        return dict(left_out)

    def _bucket(self, source: str, allowance: _Allowance, now_s: float) -> _Bucket:
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = _Bucket(allowance, now_s)
            if len(self._buckets) > limits.MAX_LOG_SOURCES:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(source)
        return bucket
