"""Reading a store's rows for :mod:`verify`, as far as they can be read, and saying what is wrong.

Runs on a thread that may block.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from rocksdict import RdictIter

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.session_block import SessionBlock
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError

ROWS_AT_A_TIME: Final = 128
"""Rows that are looked up together, which is faster than one by one. Rows of the largest sessions
have 1.3 MB each."""

T = TypeVar("T")


class Finding(NamedTuple):
    """An inconsistency.

    Attributes:
        family: column family.
        row: event (``server/session/instance``), session or block that begins with it
            (``server/session``), event type or key (``key …`` in hexadecimal digits).
        text: description.
    """

    family: str
    row: str
    text: str

    def __str__(self) -> str:
        return f"{self.family}: {self.row}: {self.text}"


class VerifiedRows:
    """See the module.

    Args:
        store: the store.
        on_finding: called for each inconsistency.
        on_progress: called at intervals with the number of rows read, and an estimate of all.

    Attributes:
        n_findings: how many there were.
    """

    def __init__(
        self,
        store: Store,
        on_finding: Callable[[Finding], None],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.n_findings = 0
        self._store = store
        self._on_finding = on_finding
        self._on_progress = on_progress
        self._n_done = 0
        self._n_total = sum(map(store.n_rows, store.families))
        self._unfinished = store.unfinished_session()
        self._iterators: dict[str, RdictIter] = {}  # for looking up
        self._block = SessionBlock(b"", b"")  # that was looked up last

    def all(self, family: str, *, is_again: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a column family, as far as they can be read."""
        iterator = self._store.iterator(family)
        iterator.seek_to_first()
        key = b""
        while iterator.valid():
            key = iterator.key()
            if keys.session_of(key) != self._unfinished:
                yield key, iterator.value()
            if not is_again:
                self._n_done += 1
                if self._n_done % ROWS_AT_A_TIME == 0:
                    self._on_progress(self._n_done, max(self._n_done, self._n_total))
            iterator.next()
        if not is_again:
            self._report_unreadable(family, f"{key_text(key)} and behind", iterator.status)

    def values(self, family: str, row_keys: list[bytes]) -> list[bytes | None]:
        """As ``Store.values``; if they cannot be read, that is reported, and there are none."""
        found: list[bytes | None] = []

        def read() -> None:
            found.extend(self._store.values(family, row_keys))

        if row_keys:
            self._report_unreadable(family, f"{key_text(row_keys[0])} and behind", read)
        return found

    def block_of(self, session_key: bytes) -> SessionBlock | None:
        """The block that has a session; without entries if none has.

        Quick for one session after the other. None: it cannot be read, which is reported.
        """
        if not self._block.spans(session_key):
            found = self._last_row("session", session_key)
            if found is None:
                return None
            self._block = SessionBlock(*found)
        block = self._block
        return block if block.spans(session_key) else SessionBlock(session_key, b"")

    def block_of_id(self, server_key: bytes) -> SessionBlock | None:
        """As :meth:`block_of`, by server and session."""
        found = self._last_row("server", server_key)
        if found is None:
            return None
        timestamp = found[1] or bytes(keys.TIMESTAMP_BYTES)  # of whichever server: none else fits
        return self.block_of(timestamp + server_key)

    def _last_row(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last row up to a key; empty where there is none; None: it cannot be read."""
        found: list[tuple[bytes, bytes]] = []
        iterator = self._iterators.get(family)
        if iterator is None:
            iterator = self._iterators[family] = self._store.iterator(family)

        def read() -> None:
            iterator.seek_for_prev(key)
            iterator.status()
            found.append((iterator.key() or b"", iterator.value() or b""))

        self._report_unreadable(family, f"{key_text(key)} and before", read)
        return found[0] if found else None

    def _report_unreadable(self, family: str, row: str, read: Callable[[], None]) -> None:
        try:
            with self._store.errors():
                read()
        except StorageError as e:
            self.report(family, row, f"cannot be read: {e}")

    def report(self, family: str, row: str, text: str) -> None:
        """Tell an inconsistency; see :class:`Finding`."""
        self.n_findings += 1
        self._on_finding(Finding(family, row, text))


def batches(rows: Iterator[T], n_rows: int = ROWS_AT_A_TIME) -> Iterator[list[T]]:
    """Some rows at a time."""
    while batch := list(islice(rows, n_rows)):
        yield batch


def key_text(key: bytes) -> str:
    """A key that cannot be told otherwise."""
    return f"key {key.hex()}"


def id_text(encoded: bytes) -> str:
    """Text of server, session and instance, as far as they are present."""
    size = keys.INT_BYTES
    parts = [encoded[i : i + size] for i in range(0, len(encoded), size)]
    return "/".join(str(keys.decode_int(part)) for part in parts)
