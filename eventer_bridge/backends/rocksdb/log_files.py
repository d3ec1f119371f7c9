"""Check of the write-ahead log before RocksDB replays it: a torn end, or damage?

A power cut, ``kill -9`` or a full disk can tear the write in progress: the last record of the last
log, which was not acknowledged. It is truncated here, and logged. Anything else wrong with the log
is damage of acknowledged commits. RocksDB does not distinguish the two where it matters: with a
damaged length near the end of the log, or a log without its end before another one, it silently
loses rows.

This works because the store has one commit in progress at a time, and because every commit goes
through the log (``Store``): the sequence numbers of the records have no gap.

Format (RocksDB wiki, "Write Ahead Log File Format"): blocks of 32 KiB, of fragments that
never cross them: masked CRC-32C of type and data (4), length (2), type (1), data. One FULL
fragment, or FIRST, MIDDLE…, LAST make a record, which begins with the sequence number of
its first operation (8) and the number of operations (4). All are little-endian.
"""

import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from eventer_bridge.errors import StoreLossError

mlog = logging.getLogger(__name__)

BLOCK_BYTES: Final = 32 << 10

FRAGMENT: Final = Struct("<IHB")
"""Header of a fragment: checksum, length, type."""

_SECTOR_BYTES: Final = 512
"""What a disk writes all of, or nothing."""

_FEW_ZEROS: Final = 16
"""No record that was written to its end ends in so many."""

_BATCH: Final = Struct("<QI")
FULL, _FIRST, _MIDDLE, LAST = range(1, 5)
"""Types of fragments, the least and the greatest of them public."""

HEAD_BYTES: Final = FRAGMENT.size + _BATCH.size
"""Begin of a log: checksum, length and type of its first fragment, and sequence number and number
of operations of its first record."""

_Data: TypeAlias = mmap.mmap | bytes


class _Records(NamedTuple):
    """Complete records at the begin of a log.

    ``first`` is the sequence number of the first one (None: there is none), ``following`` the one
    after the last one; ``last`` and ``last_sequence`` are of the last one, whose end is ``end``;
    ``broken`` is the offset of the first invalid fragment, or the size of the log.
    """

    first: int | None
    following: int
    last: int
    last_sequence: int
    end: int
    broken: int


class TornWrite(NamedTuple):
    """An incomplete write at the end of a log, from ``end`` to ``size`` (the rest is zero).

    ``sequence`` is that of the last complete operation.
    """

    log: Path
    end: int
    size: int
    sequence: int


class CheckedLog(NamedTuple):
    """End of the complete records of each non-empty log, by number; a torn write, if any."""

    ends: dict[int, int]
    torn: TornWrite | None


def list_logs(path: Path) -> list[Path]:
    """The log files of a store, in order."""
    return sorted((i for i in path.glob("*.log") if i.stem.isdigit()), key=log_number)


def log_number(log: Path) -> int:
    """Number of a log file, from its name."""
    return int(log.stem)


def check_log(path: Path) -> CheckedLog:
    """Check the log of a store that no process has open; ``StoreLossError``: it is damaged."""
    logs = [i for i in list_logs(path) if i.stat().st_size]
    following: int | None = None
    ends: dict[int, int] = {}
    torn = None
    for log in logs:
        records, torn = _check(log, is_last=log is logs[-1])
        ends[log_number(log)] = records.end if torn is None else torn.end
        if records.first is None:
            continue
        if following is not None and records.first != following:
            n_missing = records.first - following
            what = f"{n_missing} operations are missing before it"
            raise _damaged(log, 0, what if n_missing > 0 else "it begins before the last one ended")
        following = records.following
    return CheckedLog(ends, torn)


def truncate(torn: TornWrite) -> None:
    """Truncate a log before its torn write, and log it; raises ``OSError``."""
    mlog.warning(
        "the event store's log ends in a torn write, which was never acknowledged: it is cut off",
        extra={"path": str(torn.log), "bytes": torn.size - torn.end},
    )
    with torn.log.open("r+b") as writable:
        writable.truncate(torn.end)
        os.fsync(writable.fileno())


def _check(log: Path, *, is_last: bool) -> tuple[_Records, TornWrite | None]:
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        records = _walk(data)
        end, following = records.end, records.following
        if not _is_zero(data, end, size):  # RocksDB reads zeros as the end, rightly
            if not is_last:
                raise _damaged(
                    log, end, f"it ends within a record, at {end}, but another log follows"
                )
            if not _is_torn(data, records.broken):
                raise _damaged(log, end, f"no record at {records.broken}")
        elif is_last and _has_hole(data, records.last, end):
            end, following = records.last, records.last_sequence
        elif not (is_last and _ends_in_header(end, size)):  # the usual case
            return records, None
        written = end + len(data[end:].rstrip(b"\0"))
    return records, TornWrite(log, end, written, following - 1)


def _walk(data: _Data) -> _Records:
    """Follow lengths and types; RocksDB verifies the checksums."""
    size = len(data)
    first: int | None = None
    following = last = last_sequence = end = offset = 0
    begin: int | None = None  # of the record that the fragment at offset belongs to
    head = b""
    while offset < size:
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < FRAGMENT.size:
            offset += left
            continue
        if offset + FRAGMENT.size > size:
            break
        checksum, length, kind = FRAGMENT.unpack_from(data, offset)
        if not (checksum or length & 0xFF):
            break  # only the second sector of the header was written
        stop = offset + FRAGMENT.size + length
        expected = (FULL, _FIRST) if begin is None else (_MIDDLE, LAST)
        if kind not in expected or FRAGMENT.size + length > left or stop > size:
            break
        if begin is None:
            begin, head = offset, b""
        if len(head) < _BATCH.size:
            head += data[stop - length : min(stop, stop - length + _BATCH.size - len(head))]
        if kind in (FULL, LAST):
            if len(head) < _BATCH.size:
                break
            sequence, n_operations = _BATCH.unpack(head)
            # the last record may lack its sequence number
            last_sequence = sequence if first is None else following
            first = sequence if first is None else first
            following = sequence + n_operations
            last, end, begin = begin, stop, None
        offset = stop
    return _Records(first, following, last, last_sequence, end, min(offset, size))


def _is_torn(data: _Data, broken: int) -> bool:
    """Whether the fragment at ``broken`` was only written in part.

    It is longer than the file, or in sectors that never reached the disk. A complete fragment with
    a damaged length has the right checksum for another length.
    """
    size = len(data)
    if broken + FRAGMENT.size > size:
        return True
    # its header may be in two sectors
    sectors = [broken, _next_sector(broken)]
    if any(_is_zero(data, i, _next_sector(i)) for i in sectors if i < broken + FRAGMENT.size):
        return True
    if _is_zero(data, broken + FRAGMENT.size, size):  # only some of the header was written
        return True
    _, length, kind = FRAGMENT.unpack_from(data, broken)
    left = BLOCK_BYTES - broken % BLOCK_BYTES
    if not FULL <= kind <= LAST or FRAGMENT.size + length > left:
        return False
    if broken + FRAGMENT.size + length <= size:
        return False  # it fits, but does not belong there
    return not _has_other_length(data, broken)


def _ends_in_header(end: int, size: int) -> bool:
    """Whether the file ends within a header: RocksDB refuses it, also if it is zero so far."""
    return 0 < size - max(end, size - size % BLOCK_BYTES) < FRAGMENT.size


def _has_hole(data: _Data, begin: int, end: int) -> bool:
    """Whether a part of this record never reached the disk, or was not written.

    The file system writes pages in any order, and a disk the sectors of a page. A process that is
    killed leaves the beginning of a record. Missing bytes are zero. Zeros in events have the right
    checksum, and a damaged length the right one for another length.
    """
    sector = begin
    while sector < end and not _is_zero(data, sector, min(_next_sector(sector), end)):
        sector = _next_sector(sector)
    if sector >= end and not _is_zero(data, end - _FEW_ZEROS, end):
        return False
    broken = _find_broken(data, begin, end)
    return broken is not None and not _has_other_length(data, broken)


def _has_other_length(data: _Data, offset: int) -> bool:
    """Whether the checksum of a fragment is right for another length than it says."""
    checksum, length, _ = FRAGMENT.unpack_from(data, offset)
    fragment = data[offset + FRAGMENT.size - 1 : offset + FRAGMENT.size + length]
    return checksum in _checksums(fragment)


def _find_broken(data: _Data, begin: int, end: int) -> int | None:
    """Offset of the first fragment of a record whose checksum is wrong; None: there is none."""
    offset = begin
    while offset < end:
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < FRAGMENT.size:
            offset += left
            continue
        expected, length, _ = FRAGMENT.unpack_from(data, offset)
        stop = offset + FRAGMENT.size + length
        *_, checksum = _checksums(data[offset + FRAGMENT.size - 1 : stop])
        if checksum != expected:
            return offset
        offset = stop
    return None


def _next_sector(offset: int) -> int:
    return (offset // _SECTOR_BYTES + 1) * _SECTOR_BYTES


def _is_zero(data: _Data, begin: int, end: int) -> bool:
    return not data[begin:end].strip(b"\0")


def _damaged(log: Path, good_bytes: int, why: str) -> StoreLossError:
    text = (
        f"{log.parent}: the event store is damaged: its log {log.name} is not as it was"
        f" written: {why}"
    )
    return StoreLossError(text, log_number(log), good_bytes)


def _checksum_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return tuple(table)


_CHECKSUMS: Final = _checksum_table()


def _checksums(data: bytes) -> Iterator[int]:
    """The masked CRC-32C of every prefix of some bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CHECKSUMS[(value ^ byte) & 0xFF] ^ value >> 8
        crc = value ^ 0xFFFFFFFF
        yield ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
