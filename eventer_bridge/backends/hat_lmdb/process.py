"""The subprocess of ``reading``: reads the LMDB database of a hat-event server.

It writes messages to its standard output: a length (8 bytes, big-endian), and so many bytes of
MessagePack. The first is an :class:`OpenedDatabase`, each later one a list of rows, and an empty
one is the end. A :class:`Failed` in place of any of them is the last one.

Run as ``python -m eventer_bridge.backends.hat_lmdb.process``, with the path of the database.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from eventer_bridge.backends.hat_lmdb import database as hat_lmdb
from eventer_bridge.backends.hat_lmdb.database import HatStore, Row
from eventer_bridge.errors import StorageError

LENGTH_BYTES: Final = 8
"""Size of the length before a message."""

_ROWS: Final = 1_000
_ROWS_BYTES: Final = 1 << 20
"""Size after which a message ends."""


class OpenedDatabase(msgspec.Struct, tag=True):
    """The database was opened.

    Attributes:
        n_events: see ``HatStore.n_events``.
        last_sessions: see ``HatStore.last_sessions``.
    """

    n_events: int
    last_sessions: dict[int, int]


class Failed(msgspec.Struct, tag=True):
    """The database cannot be read.

    Attributes:
        kind: name of the error, a :class:`StorageError`.
        text: its text.
    """

    kind: str
    text: str


def main() -> None:
    """Read the database."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # LMDB may abort: no core dump
    try:
        with hat_lmdb.open_store(Path(sys.argv[1])) as store:
            _write(OpenedDatabase(store.n_events(), store.last_sessions()))
            for rows in _batches(store):
                _write(rows)
            _write(None)
    except StorageError as e:
        _write(Failed(type(e).__name__, str(e)))


def _batches(store: HatStore) -> Iterator[list[Row]]:
    batch: list[Row] = []
    n_bytes = 0
    for row in store.rows():
        batch.append(row)
        n_bytes += len(row.data or b"")
        if len(batch) == _ROWS or n_bytes > _ROWS_BYTES:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


def _write(message: Any) -> None:
    data = b"" if message is None else msgspec.msgpack.encode(message)
    sys.stdout.buffer.write(len(data).to_bytes(LENGTH_BYTES) + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
