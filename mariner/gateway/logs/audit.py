"""The audit trail: who came, who was turned away, what operators did; one line of JSON each.

Everything is logged by the logger :data:`NAME`, with the action as the message; ``audit`` of the
configuration turns it on, and says where it goes: into a file of its own, or the log.

Peers cannot fill a disk with it. Within a period the first of equal lines (all but the peer's port
is compared) is written, the others are counted, and the count is written at the end of the period
as ``repeats``. Only so many different lines are kept apart, fewer of strangers than of clients, and
few of one address; those beyond are counted by action.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

import msgspec
from pythonjsonlogger.json import JsonFormatter

from mariner import limits
from mariner.gateway.logs.records import extra_of

mlog = logging.getLogger(__name__)

NAME: Final = "audit"

_BY_STRANGERS: Final = frozenset({"declined", "handshake failed", "refused"})


class AuditConfig(msgspec.Struct, frozen=True):
    """Where the audit trail goes; without a file, into the log.

    With ``registrations``, it has how many events each client registered, once a minute.
    """

    file: Path | None = None
    registrations: bool = False


class _Repeated:
    """Equal lines of a period."""

    __slots__ = ("count", "extra", "message")

    def __init__(self, message: str, extra: dict[str, Any]) -> None:
        self.message = message
        self.extra = extra
        self.count = 0


class AuditRate(logging.Filter):
    """Lets the first of equal lines pass; see the module. May be used on any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = clock()
        self._lines: dict[object, _Repeated] = {}
        self._n_kept: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written now."""
        extra = extra_of(record)
        if "repeats" in extra:  # of :meth:`take`
            return True
        message = record.getMessage()
        if isinstance(peer := extra.get("peer"), str):
            extra["peer"] = peer.rpartition(":")[0] or peer
        key = (message, *sorted((name, str(value)) for name, value in extra.items()))
        with self._lock:
            if (line := self._lines.get(key)) is not None:
                line.count += 1
                return False
            if self._has_room(message, extra.get("peer")):
                self._lines[key] = _Repeated(message, extra)
                return True
            self._lines.setdefault(message, _Repeated(message, {"peer": "others"})).count += 1
            return False

    def _has_room(self, message: str, address: object) -> bool:
        """Whether a line is kept apart; then it takes the room."""
        if message in _BY_STRANGERS:
            bounds = {
                "strangers": limits.MAX_AUDITED_STRANGERS,
                f"address {address}": limits.MAX_AUDITED_OF_ADDRESS,
            }
        else:
            bounds = {"others": limits.MAX_AUDITED_LINES}
        if any(self._n_kept[whose] >= most for whose, most in bounds.items()):
            return False
        self._n_kept.update(bounds.keys())
        return True

    def take(self, *, is_last: bool = False) -> list[tuple[str, dict[str, Any]]]:
        """Messages and fields of what was repeated, if a period has ended."""
        with self._lock:
            seconds = self._clock() - self._began_s
            if not self._lines or (seconds < limits.AUDIT_PERIOD_S and not is_last):
                return []
            lines, self._lines = self._lines, {}
            self._n_kept.clear()
            self._began_s += seconds
        return [
            (i.message, {**i.extra, "repeats": i.count, "seconds": round(seconds, 1)})
            for i in lines.values()
            if i.count
        ]


class AuditFile(WatchedFileHandler):
    """Appends to a file, which is opened anew when it was moved away. Of the log's thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(
            JsonFormatter(
                "{asctime}{message}",
                style="{",
                rename_fields={"asctime": "time", "message": "action"},
                datefmt="%Y-%m-%dT%H:%M:%S%z",
            )
        )

    def close(self) -> None:
        """See ``logging``; what cannot be written any more is lost."""
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # of logging
        """A line could not be written: tell the log, not standard error."""
        mlog.error("audit line lost", exc_info=True, extra={"action": record.getMessage()})


def configure(conf: AuditConfig | None) -> AuditRate | None:
    """Turn it on or off; returns the limit, if it is on. Raises OSError."""
    logger = logging.getLogger(NAME)
    added = None if conf is None or conf.file is None else AuditFile(conf.file)
    for handler in tuple(logger.handlers):
        if isinstance(handler, AuditFile):
            logger.removeHandler(handler)
            handler.close()
    for rate in tuple(logger.filters):
        logger.removeFilter(rate)
    logger.disabled = conf is None
    if conf is None:
        return None
    logger.setLevel(logging.INFO)
    logger.propagate = added is None
    if added is not None:
        logger.addHandler(added)
    logger.addFilter(limited := AuditRate())
    return limited
