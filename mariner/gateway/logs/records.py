"""What becomes of a log record before it is queued: whether it is kept, and how much of it.

:class:`LogRate`: peers can cause only so many lines per second. A line has a source: the address of
its ``peer``, if it has one (all addresses together are one more source), or else the code that logs
it. A source has a bucket of tokens, one for each line; lines without one are counted, and left out.
Lines of level DEBUG are not limited: turning them on asks for all of them.
"""

import copy
import logging
import threading
import time
import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from eventer_bridge import limits as core_limits
from mariner import limits

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
"""Attributes that every record has; all others came as ``extra``."""


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that came as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def shorten(record: logging.LogRecord) -> logging.LogRecord:
    """A copy of a record that is complete, short, and keeps nothing else alive.

    Its message includes its arguments, its exception is a text; strings have at most
    ``core_limits.MAX_LOG_CHARACTERS``. Call it on the thread that logs.
    """
    short = copy.copy(record)
    if isinstance(record.msg, dict):  # the JSON formatter takes it for fields
        short.msg = _cut_value(record.msg)
    else:
        short.msg, short.args = _cut(_message(record)), None
    if record.exc_info:
        short.exc_text = _traceback(record.exc_info[1])
        short.exc_info = None
    for name, value in extra_of(record).items():
        setattr(short, name, _cut_value(value))
    return short


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError) as e:  # a mistake of the caller, which must not stop it
        return f"{record.msg} ({e})"


def _traceback(error: BaseException | None) -> str:
    if error is None:
        return "no exception"
    lines = [_cut(line) for line in traceback.format_exception(error)]
    if len(lines) > limits.MAX_LOG_ITEMS:
        half = limits.MAX_LOG_ITEMS // 2
        lines[half:-half] = ["  …\n"]
    return "".join(lines).rstrip()


def _cut(text: str) -> str:
    if len(text) <= core_limits.MAX_LOG_CHARACTERS:
        return text
    return f"{text[: core_limits.MAX_LOG_CHARACTERS - 1]}…"


def _cut_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping):
        items = list(value.items())[: limits.MAX_LOG_ITEMS]
        return {_cut(str(key)): _cut_value(i) for key, i in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_cut_value(i) for i in list(value)[: limits.MAX_LOG_ITEMS]]
    return _cut(str(value))


class LastErrors(logging.Handler):
    """Keeps the last lines of level ERROR and above; see ``limits.MAX_STATUS_ERRORS``."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._last: deque[dict[str, Any]] = deque(maxlen=limits.MAX_STATUS_ERRORS)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by :mod:`logging`, on the thread that logs."""
        short = shorten(record)
        fields = {name: i for name, i in extra_of(short).items() if not name.startswith("_")}
        if short.exc_text:
            fields["exception"] = short.exc_text.splitlines()[-1]
        self._last.append(
            {
                "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
                "level": record.levelname,
                "logger": record.name,
                "message": str(short.msg),
                **fields,
            }
        )

    def last(self) -> list[dict[str, Any]]:
        """The lines, oldest first."""
        return list(self._last)


_ADDRESS: Final = limits.LOG_ADDRESS_BURST_LINES, limits.LOG_ADDRESS_LINES_PER_S
_OTHERS: Final = limits.LOG_BURST_LINES, limits.LOG_LINES_PER_S


class _Bucket:
    __slots__ = ("_allowance", "_filled_s", "_tokens")

    def __init__(self, allowance: tuple[int, float], now_s: float) -> None:
        self._allowance = allowance
        self._tokens = float(allowance[0])
        self._filled_s = now_s

    def take(self, now_s: float) -> bool:
        burst_lines, lines_per_s = self._allowance
        filled = self._tokens + (now_s - self._filled_s) * lines_per_s
        self._tokens, self._filled_s = min(filled, burst_lines), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class LogRate:
    """See the module. May be used on any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.n_left_out = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # least recently used first
        self._all_addresses = _Bucket(_OTHERS, clock())
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
                bucket = self._bucket(source, _ADDRESS, now_s)
                is_admitted = bucket.take(now_s) and self._all_addresses.take(now_s)
            else:
                source = f"{record.name}:{record.lineno}"
                is_admitted = self._bucket(source, _OTHERS, now_s).take(now_s)
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

    def _bucket(self, source: str, allowance: tuple[int, float], now_s: float) -> _Bucket:
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = _Bucket(allowance, now_s)
            if len(self._buckets) > limits.MAX_LOG_SOURCES:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(source)
        return bucket
