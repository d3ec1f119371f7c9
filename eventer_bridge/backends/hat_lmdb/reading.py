"""Reading the database of a hat-event server through a subprocess (``process``).

LMDB trusts its pages: on a damaged one it aborts, or reads invalid memory. That kills only the
subprocess, and is reported here as damage.

Runs on a thread that may block.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from eventer_bridge.backends.hat_lmdb.database import Row, Unreadable, decode_row
from eventer_bridge.backends.hat_lmdb.process import LENGTH_BYTES, Failed, OpenedDatabase
from eventer_bridge.errors import StorageError, StoreDamagedError, StoreFormatError
from eventer_bridge.model import Event

_MODULE: Final = "eventer_bridge.backends.hat_lmdb.process"

_ERRORS: Final = {i.__name__: i for i in (StorageError, StoreDamagedError, StoreFormatError)}

_decode_opening: Final = msgspec.msgpack.Decoder(OpenedDatabase | Failed).decode
_decode_rows: Final = msgspec.msgpack.Decoder(list[Row] | Failed).decode


@contextlib.contextmanager
def open_database(path: Path) -> Iterator["HatDatabase"]:
    """Open a database to read its current contents.

    Raises:
        StoreFormatError: its format is not supported.
        StoreDamagedError: it is damaged, or not a hat-event database.
        StorageError: it cannot be opened for another reason.
    """
    # the same modules can be imported as here, and none from the current directory
    modules = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    with subprocess.Popen(  # noqa: S603 (the operator's own path is all that is part of it)
        [sys.executable, "-m", _MODULE, str(path.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": modules},
    ) as process:
        try:
            yield HatDatabase(path, process)
        finally:
            process.kill()


class HatDatabase:
    """See the module. Made by :func:`open_database`.

    Attributes:
        n_events: number of events in the database's own list.
        last_sessions: the greatest allocated session id by server; its events may be deleted.
    """

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self._path = path
        self._process = process
        opened = _decode_opening(self._receive())
        if isinstance(opened, Failed):
            raise _ERRORS[opened.kind](opened.text)
        self.n_events = opened.n_events
        self.last_sessions = opened.last_sessions

    def events(self) -> Iterator[Event | Unreadable]:
        """Every event once, ordered by server, session and instance.

        Raises:
            StorageError: the database cannot be read to its end.
        """
        last: tuple[int, ...] = ()
        while message := self._receive():
            rows = _decode_rows(message)
            if isinstance(rows, Failed):
                raise _ERRORS[rows.kind](rows.text)
            for row in rows:
                if row.id <= last:  # damaged pages can form a cycle
                    raise StoreDamagedError(f"{self._path}: damaged: events are not in order")
                last = row.id
                yield decode_row(row)

    def _receive(self) -> bytes:
        """The next message; empty at the end."""
        head = self._read(LENGTH_BYTES)
        return self._read(int.from_bytes(head))

    def _read(self, n_bytes: int) -> bytes:
        pipe: Any = self._process.stdout
        data: bytes = pipe.read(n_bytes)
        if len(data) < n_bytes:
            code = self._process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            raise StoreDamagedError(
                f"{self._path}: damaged, or not a hat-event database: the process that read it"
                f" was ended {how}"
            )
        return data
