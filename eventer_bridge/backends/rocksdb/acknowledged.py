"""How far the log was acknowledged: a mark beside it, by which a loss is noticed.

After a crash RocksDB takes the log as it finds it. One that is gone, empty, another store's, or
that ends early is as good to it as one that had no more to say. So the file ``ACKNOWLEDGED`` notes
the logs that there are: how each begins, with a checksum by which it is told from any other, and
up to where it was synced and acknowledged::

    bytes of the last log (8, big-endian)
    JSON: [[number, bytes, what it begins with, in hexadecimal digits], …]

So that no two logs begin alike, whoever opens a store writes a random row first
(``keys.LOG_KEY``). The mark is written (``log_tail``) after the log was synced, never before: it
may be behind, but not ahead. ``kill -9`` leaves it exact; a power cut may leave one of some seconds
before (``limits.MARK_SYNC_PERIOD_S``), which notices less. A store of before has none; a gateway of
before does not look at it, and what that leaves is no damage: logs that are not needed any more may
be gone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final, NamedTuple, TypeAlias

import msgspec

from eventer_bridge.backends.rocksdb.log_files import HEAD_BYTES
from eventer_bridge.errors import StoreDamagedError, StoreLossError

FILE: Final = "ACKNOWLEDGED"

POSITION: Final = Struct(">Q")
"""What the file begins with."""

_Rows: TypeAlias = list[tuple[int, int, str]]


class Log(NamedTuple):
    """What is known of a log.

    Attributes:
        number: in its name.
        n_bytes: up to where it was acknowledged.
        head: what it begins with.
    """

    number: int
    n_bytes: int
    head: bytes

    @property
    def name(self) -> str:
        """Its file."""
        return f"{self.number:06}.log"


def check_logs(path: Path, ends: Mapping[int, int]) -> list[Log]:
    """Compare the logs that there are with the mark, if there is one.

    Args:
        path: directory of a store that nobody has open.
        ends: where each log ends that is not empty, by its number.

    Returns:
        Those that are missing: damage, if RocksDB still needs them (:func:`check_missing`).

    Raises:
        StoreLossError: one is not the store's own, or ends too early.
        StoreDamagedError: the mark cannot be read.
        OSError: a file cannot be read.
    """
    missing: list[Log] = []
    for log in read(path):
        file = path / log.name
        if not file.exists():
            missing.append(log)
            continue
        end = ends.get(log.number, 0)
        if end and log.n_bytes and read_head(file) != log.head:
            raise _lost(path, log.number, 0, f"its log {log.name} is not its own")
        if end < log.n_bytes:
            what = f"its log {log.name} ends at {end}, but was acknowledged up to {log.n_bytes}"
            raise _lost(path, log.number, end, what)
    return missing


def check_missing(path: Path, missing: list[Log], first_needed: int) -> None:
    """Refuse a store without a log that it needs.

    Args:
        path: directory of the store.
        missing: what :func:`check_logs` found.
        first_needed: number of the first log that has rows which are in no sorted file.

    Raises:
        StoreLossError: it is so.
    """
    for log in missing:
        if log.number >= first_needed:
            raise _lost(
                path, log.number, 0, f"it was not closed, and its log {log.name} is missing"
            )


def read_head(file: Path) -> bytes:
    """What a log begins with; raises ``OSError``."""
    with file.open("rb") as stream:
        return stream.read(HEAD_BYTES)


def encode(logs: Sequence[Log]) -> bytes:
    """The file that says this of logs, one at least."""
    rows: _Rows = [(i.number, i.n_bytes, i.head.hex()) for i in logs]
    return POSITION.pack(logs[-1].n_bytes) + msgspec.json.encode(rows)


def read(path: Path) -> list[Log]:
    """What the mark of a store says; empty where there is none.

    Raises:
        StoreDamagedError: it cannot be read.
        OSError: the same.
    """
    try:
        data = (path / FILE).read_bytes()
    except FileNotFoundError:
        return []
    try:
        rows = msgspec.json.decode(data[POSITION.size :], type=_Rows)
        logs = [Log(number, n_bytes, bytes.fromhex(head)) for number, n_bytes, head in rows]
        return [*logs[:-1], logs[-1]._replace(n_bytes=POSITION.unpack_from(data)[0])]
    except (msgspec.DecodeError, StructError, ValueError, IndexError) as e:
        raise StoreDamagedError(
            f"{path}: the event store is damaged: its file {FILE} is not as it was written"
        ) from e


def _lost(path: Path, number: int, good_bytes: int, what: str) -> StoreLossError:
    text = f"{path}: the event store is damaged: {what}: events that were acknowledged are lost"
    return StoreLossError(text, number, good_bytes)


def forget(path: Path) -> None:
    """Remove the mark of a store that nobody has open.

    Raises:
        OSError: it cannot be removed.
    """
    (path / FILE).unlink(missing_ok=True)
