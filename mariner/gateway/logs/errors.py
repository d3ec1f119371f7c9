"""The last errors, for who asks what is wrong."""

import logging
from collections import deque
from datetime import UTC, datetime
from typing import Any

from mariner import limits
from mariner.gateway.logs.shorten import extra_of, shorten


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
