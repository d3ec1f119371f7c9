"""Check of the write-ahead log before RocksDB replays it: a torn end, or damage?

A power cut, ``kill -9`` or a full disk can tear the write that was under way: the last
record of the last log, which nobody was told of. It is cut off here, and the log says so.
Whatever else is wrong with the log is damage of what was acknowledged. RocksDB itself does
not tell the two apart where it matters: a damaged length near the end of the log, and a
log that misses its end although another follows it, lose rows silently there.

This works because the store has one commit under way at a time, and because every commit
goes through the log (``Store``): the sequence numbers of the records have no gap.

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

from eventer_bridge.errors import StoreDamagedError

mlog = logging.getLogger(__name__)

_BLOCK_BYTES: Final = 32 << 10
_PAGE_BYTES: Final = 4096
_FRAGMENT: Final = Struct("<IHB")
_BATCH: Final = Struct("<QI")
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)

_Data: TypeAlias = mmap.mmap | bytes


class _Records(NamedTuple):
    """Whole records at the beginning of a log.

    Attributes:
        first: sequence number of the first one; None where there is none.
        following: sequence number that follows the last one.
        last: offset of the last one.
        end: offset behind the last one.
        broken: offset of the fragment that cannot be right, or the size of the log.
    """

    first: int | None
    following: int
    last: int
    end: int
    broken: int


def check_log(path: Path, *, is_repaired: bool) -> None:
    """Check the log of a store that nobody has open.

    Args:
        path: directory of the store.
        is_repaired: cut off a torn write at its end.

    Raises:
        StoreDamagedError: the log is damaged.
        OSError: it cannot be read or written.
    """
    logs = [i for i in sorted(path.glob("*.log"), key=_number) if i.stat().st_size]
    following: int | None = None
    for log in logs:
        records = _check(log, is_last=log is logs[-1], is_repaired=is_repaired)
        if records.first is None:
            continue
        if following is not None and records.first > following:
            n_missing = records.first - following
            raise _damaged(log, f"{n_missing} operations are missing before it")
        following = records.following


def _number(log: Path) -> int:
    return int(log.stem) if log.stem.isdigit() else -1


def _check(log: Path, *, is_last: bool, is_repaired: bool) -> _Records:
    with (
        log.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        size = len(data)
        records = _walk(data)
        end = records.end
        if not _is_zero(data, end, size):  # RocksDB reads zeros as an end, and rightly so
            if not is_last:
                raise _damaged(log, f"it ends within a record, at {end}, but another log follows")
            if not _is_torn(data, records.broken):
                raise _damaged(log, f"no record at {records.broken}")
        elif is_last and _has_hole(data, records.last, end):
            end = records.last
        else:
            return records
    if is_repaired:
        _cut_off(log, end, size)
    return records


def _cut_off(log: Path, end: int, size: int) -> None:
    mlog.warning(
        "the event store's log ends in a torn write, which nobody was told is stored:"
        " it is cut off",
        extra={"path": str(log), "bytes": size - end},
    )
    with log.open("r+b") as writable:
        writable.truncate(end)
        os.fsync(writable.fileno())


def _walk(data: _Data) -> _Records:
    """Follow lengths and types; checksums are RocksDB's work."""
    size = len(data)
    first: int | None = None
    following = last = end = offset = 0
    begin: int | None = None  # of the record that the fragment at offset belongs to
    head = b""
    while offset < size:
        left = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left < _FRAGMENT.size:
            offset += left
            continue
        if offset + _FRAGMENT.size > size:
            break
        _, length, kind = _FRAGMENT.unpack_from(data, offset)
        stop = offset + _FRAGMENT.size + length
        expected = (_FULL, _FIRST) if begin is None else (_MIDDLE, _LAST)
        if kind not in expected or _FRAGMENT.size + length > left or stop > size:
            break
        if begin is None:
            begin, head = offset, b""
        if len(head) < _BATCH.size:
            head += data[stop - length : min(stop, stop - length + _BATCH.size - len(head))]
        if kind in (_FULL, _LAST):
            if len(head) < _BATCH.size:
                break
            sequence, n_operations = _BATCH.unpack(head)
            first = sequence if first is None else first
            following = sequence + n_operations
            last, end, begin = begin, stop, None
        offset = stop
    return _Records(first, following, last, end, min(offset, size))


def _is_torn(data: _Data, broken: int) -> bool:
    """Whether the fragment at ``broken`` was only written in part.

    It is longer than the file, or in pages that never reached the disk. A fragment that is
    all there, and whose length is damaged, has the right checksum for another length.
    """
    size = len(data)
    if broken + _FRAGMENT.size > size:
        return True
    if _is_zero(data, broken, _next_page(broken)):
        return True
    checksum, length, kind = _FRAGMENT.unpack_from(data, broken)
    left = _BLOCK_BYTES - broken % _BLOCK_BYTES
    if not _FULL <= kind <= _LAST or _FRAGMENT.size + length > left:
        return False
    if broken + _FRAGMENT.size + length <= size:
        return False  # it fits, but does not belong there
    fragment = data[broken + _FRAGMENT.size - 1 : broken + _FRAGMENT.size + length]
    return checksum not in _checksums(fragment)


def _has_hole(data: _Data, begin: int, end: int) -> bool:
    """Whether a page of this record never reached the disk.

    The file system writes pages in its own order. Zeros that were registered have the
    right checksum.
    """
    page = begin
    while page < end and not _is_zero(data, page, min(_next_page(page), end)):
        page = _next_page(page)
    return page < end and not _is_intact(data, begin, end)


def _is_intact(data: _Data, begin: int, end: int) -> bool:
    offset = begin
    while offset < end:
        left = _BLOCK_BYTES - offset % _BLOCK_BYTES
        if left < _FRAGMENT.size:
            offset += left
            continue
        expected, length, _ = _FRAGMENT.unpack_from(data, offset)
        stop = offset + _FRAGMENT.size + length
        *_, checksum = _checksums(data[offset + _FRAGMENT.size - 1 : stop])
        if checksum != expected:
            return False
        offset = stop
    return True


def _next_page(offset: int) -> int:
    return (offset // _PAGE_BYTES + 1) * _PAGE_BYTES


def _is_zero(data: _Data, begin: int, end: int) -> bool:
    return not data[begin:end].strip(b"\0")


def _damaged(log: Path, why: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{log.parent}: the event store is damaged: its log {log.name} is not as it was"
        f" written: {why}"
    )


def _checksum_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return tuple(table)


_CHECKSUMS: Final = _checksum_table()


def _checksums(data: bytes) -> Iterator[int]:
    """The masked CRC-32C of every beginning of some bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CHECKSUMS[(value ^ byte) & 0xFF] ^ value >> 8
        crc = value ^ 0xFFFFFFFF
        yield ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
