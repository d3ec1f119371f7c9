"""The rows of cursors (``backends.reader_rows``), written with other commits, a little later.

That is some ``limits.CURSOR_PERIOD_S``: after a crash, the last acknowledged events are sent again.
Who reads them here finds what is not written yet, too. Runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Mapping

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.errors import EventerBridgeError

mlog = logging.getLogger("eventer_bridge.core.cursors")  # by which it is configured


class CursorRows:
    """See the module."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._changed: dict[bytes, bytes | None] = {}
        self._n_forgotten = 0
        self._saving: dict[bytes, bytes | None] = {}
        self._is_changed = asyncio.Event()
        self._lock = asyncio.Lock()

    def put(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Put rows, or delete them (None), when they are written next."""
        self._changed.update(rows)
        self._is_changed.set()

    def forget(self) -> None:
        """Do not write what was not written yet."""
        self._changed = {}
        self._n_forgotten += 1

    def find(self, prefix: bytes) -> dict[bytes, bytes]:
        """Rows whose keys begin with ``prefix``, in their order."""
        rows: dict[bytes, bytes | None] = {**self._backend.reader_rows(prefix)}
        for changed in (self._saving, self._changed):
            rows |= {key: value for key, value in changed.items() if key.startswith(prefix)}
        return {key: value for key, value in sorted(rows.items()) if value is not None}

    def has(self, key: bytes) -> bool:
        """Whether there is a row; cheaper than :meth:`find`."""
        for changed in (self._changed, self._saving):
            if key in changed:
                return changed[key] is not None
        return key in self._backend.reader_rows(key)

    async def flush(self) -> None:
        """Write the changes; returns when they are durable, or raises ``EventerBridgeError``."""
        async with self._lock:
            while self._changed:
                self._saving, self._changed = self._changed, {}
                n_forgotten = self._n_forgotten
                try:
                    await asyncio.shield(self._backend.keep_reader_rows(self._saving))
                except BaseException:
                    if n_forgotten == self._n_forgotten:
                        self._changed = self._saving | self._changed
                    raise
                finally:
                    self._saving = {}

    async def run(self) -> None:
        """Write changes periodically."""
        while True:
            await self._is_changed.wait()
            await asyncio.sleep(limits.CURSOR_PERIOD_S)
            self._is_changed.clear()
            try:
                await self.flush()
            except EventerBridgeError as e:
                mlog.warning("cursors are not kept, and will be later", extra={"reason": str(e)})
                self._is_changed.set()
