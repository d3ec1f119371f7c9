"""Reading the database of a hat-event server through a process of its own (``hat_process``).

LMDB trusts what is in its pages: where one is damaged it aborts, or reads what is not there. That
ends the process that reads, and is told here as what it is.

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
    """Open a database, to read it as it is at this moment.

    Raises:
        StoreFormatError: it has a format that is not known.
        StoreDamagedError: it is damaged, or something else.
        StorageError: it cannot be opened for another reason.
    """
    # what can be imported here can be there, and nothing else: not from where it is started
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
        n_events: number of events that the database's own list knows.
        last_sessions: the greatest session id that was given, by server; its events may be gone.
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
                if row.id <= last:  # damaged pages can lead in a circle
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
