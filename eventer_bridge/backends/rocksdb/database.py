"""Opening the RocksDB database: directory, options, format, errors.

Runs on a thread that may block. How damage is detected:

- sorted files (``.sst``): by RocksDB, missing or short ones at opening, damaged blocks (by
  checksum) at reading. Files of large values (``.blob``): by RocksDB, at reading.
- after a clean shutdown, everything else: by the clean-shutdown marker (``markers``).
- after a crash, the log: by ``log_files`` and RocksDB, and missing parts by the mark of the last
  acknowledged commit (``log_tail``). That the list of files (MANIFEST) lost its end exactly
  between two records cannot be detected.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import contents, directories, log_tail
from eventer_bridge.backends.rocksdb.contents import FAMILIES, FORMAT, is_known_format, undo
from eventer_bridge.backends.rocksdb.holder import holder
from eventer_bridge.backends.rocksdb.keys import (
    FORMAT_KEY,
    GROUP_KEY,
    LOG_KEY,
    RESERVED_KEY,
    decode_int,
)
from eventer_bridge.backends.rocksdb.log_files import TornWrite, check_log, truncate
from eventer_bridge.backends.rocksdb.markers import check_marker, remove_marker
from eventer_bridge.errors import StorageError, StoreDamagedError, StoreLockedError

mlog = logging.getLogger(__name__)

COMMIT: Final = "commit failed"
"""Operation, for :func:`explain`."""

_MUTABLE_OPTIONS: Final = {"bottommost_file_compaction_delay": str(365 * 24 * 3600)}
"""In seconds. Otherwise RocksDB needlessly rewrites files whenever a snapshot that is younger than
they are is released, which is at the end of every query. It must be set after opening."""

_CREATION = ("IDENTITY", "LOCK", "LOG", "MANIFEST-", "OPTIONS-", "rocksdict-", "lost+found")
"""Prefixes of the names of files in a new store before CURRENT exists."""


def lock_directory(path: Path) -> int:
    """Create the directory of a store if there is none, and lock it; closing the result unlocks it.

    RocksDB locks it as well, but only at opening; the checks come before that. Raises
    ``StoreLockedError`` (it is locked already) or ``StorageError`` (it cannot be used).
    """
    try:
        if not (path / "CURRENT").exists():
            directories.refuse_unfinished(path)
            directories.refuse_within_store(path)
        _make_directory(path)
        directories.refuse_blocking(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        raise StorageError(f"{path}: cannot be used as an event store: {e.strerror}") from e
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(descriptor)
        if isinstance(e, BlockingIOError):
            raise StoreLockedError(f"{path}: the event store is in use by {holder(path)}") from e
        raise StorageError(f"{path}: cannot be locked: {e.strerror}") from e
    return descriptor


def _make_private(path: Path) -> None:
    """Make the files private, as copied ones may not be."""
    try:
        n_files = directories.make_private(path)
    except OSError as e:
        extra: dict[str, object] = {"path": str(path), "reason": e.strerror}
        mlog.warning("others than its owner can access the event store", extra=extra)
        return
    if n_files:
        extra = {"path": str(path), "files": n_files}
        mlog.info("others than its owner can no longer access the event store", extra=extra)


def open_database(path: Path, *, create: bool = True, is_volatile: bool = False) -> Rdict:
    """Open the database of a locked directory; all checks come before the first change.

    ``create``: a new one if there is none; ``is_volatile``: it is soon removed (``Database``).
    ``StoreLockedError``: another program has it open. ``StoreFormatError``: its format is not
    supported. ``StoreDamagedError``: it is damaged, or not an event store. ``StorageError``: it
    cannot be opened or created for another reason.
    """
    try:
        exists = (path / "CURRENT").exists()
        if exists:
            torn = check(path)
            remove_marker(path)
            if torn is not None:
                truncate(torn)
        elif create:
            check_marker(path)
            refuse_strange_files(path)
        else:
            raise StorageError(f"{path}: the event store no longer exists")
    except OSError as e:
        raise StorageError(f"{path}: cannot be used as an event store: {e.strerror}") from e
    if create:
        _make_private(path)
    found = _family_names(path) if exists else ()
    names = [*dict.fromkeys(("default", *FAMILIES, *found))]
    db = _open(path, names, AccessType.read_write(), DBRecoveryMode.absolute_consistency())
    with _ClosedIfItFails(path, db):
        is_known_format(path, db, names)
        _begin_log(db)
        undo(db)
        if not is_volatile:  # 3 ms each
            for family in (db, *(db.get_column_family(name) for name in FAMILIES)):
                family.set_options(_MUTABLE_OPTIONS)
    return db


class StorageErrors:
    """Context manager: turns what RocksDB raises (bare exceptions, panics) into ``StorageError``.

    No generator: its frame and the exception would refer to each other (seen with Python 3.12), and
    the traceback's frames to iterators, which hold RocksDB's lock until the garbage is
    collected.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit | StorageError):
            return
        raise explain(self._path, self._what, error) from None


class _ClosedIfItFails(StorageErrors):
    """As :class:`StorageErrors`; also closes the database on failure."""

    def __init__(self, path: Path, db: Rdict) -> None:
        super().__init__(path, "cannot be opened")
        self._db = db

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            _close_quietly(self._db)
        super().__exit__(error_type, error, traceback)


class _Reading(_ClosedIfItFails):
    """As :class:`StorageErrors`; closes the database in any case."""

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        super().__exit__(error_type, error, traceback)
        _close_quietly(self._db)


def _close_quietly(db: Rdict) -> None:
    with contextlib.suppress(Exception):  # an earlier failure makes it fail again
        db.close()


def check(path: Path) -> TornWrite | None:
    """Refuse a store that cannot be opened, without changing anything; as :func:`open_database`.

    Returns a torn write at the end of its log, which was not acknowledged.
    """
    db, names, torn = _open_unchanged(path)
    with _Reading(path, db):
        contents.check(path, db, names)
    return torn


def refuse_other_format(path: Path) -> None:
    """Refuse a store of another format (``StoreFormatError``), even a damaged one."""
    access, mode = AccessType.read_only(False), DBRecoveryMode.point_in_time()
    try:
        names = _family_names(path)
        db = _open(path, names, access, mode)
    except StorageError:
        return
    # damage is known already
    with _Reading(path, db), contextlib.suppress(StoreDamagedError):
        is_known_format(path, db, names)


def servers_with_ids(path: Path) -> set[int]:
    """The servers that gave ids in a store; none if it cannot be read. Changes nothing.

    It may be open elsewhere: what was written just now may be missing.
    """
    access, mode = AccessType.read_only(False), DBRecoveryMode.point_in_time()
    with contextlib.suppress(StorageError, ValueError, struct.error):
        directories.refuse_blocking(path)
        db = _open(path, _family_names(path), access, mode)
        with _Reading(path, db):
            reserved = contents.rows(db, RESERVED_KEY)
            return {decode_int(key.removeprefix(RESERVED_KEY)) for key, _ in reserved}
    return set()


def has_group(path: Path) -> bool:
    """Whether a store is that of a member of a group, as far as it can be read; changes nothing."""
    access, mode = AccessType.read_only(False), DBRecoveryMode.point_in_time()
    with contextlib.suppress(StorageError):
        db = _open(path, _family_names(path), access, mode)
        with _Reading(path, db):
            return db.get(GROUP_KEY) is not None
    return False


def _open_unchanged(path: Path) -> tuple[Rdict, list[str], TornWrite | None]:
    """Open a database for reading; returns also its column families and its torn write."""
    with directories.os_errors(path, "cannot be read"):
        check_marker(path)
        ends, torn = check_log(path)
        missing = log_tail.check_logs(path, ends)
    names = _family_names(path)
    # rows that are only in the log are read into memory; a torn end is left there
    access, mode = AccessType.read_only(False), DBRecoveryMode.tolerate_corrupted_tail_records()
    if torn is not None:  # RocksDB does not always recognise one
        mode = DBRecoveryMode.point_in_time()
    db = _open(path, names, access, mode)
    with _ClosedIfItFails(path, db):
        first_needed = db.property_int_value("rocksdb.min-log-number-to-keep")
        log_tail.check_missing(path, missing, first_needed or 0)
        if torn is not None and db.latest_sequence_number() < torn.sequence:
            raise StoreDamagedError(f"{path}: the event store is damaged: a checksum of its log")
    return db, names, torn


def make_durable(db: Rdict, families: Iterable[Rdict]) -> None:
    """Write rows that were read from the log to new, synced files; checks that writing works.

    After a failed sync, the kernel may return rows of the log that are not on the disk. RocksDB's
    exceptions are for :func:`explain`.
    """
    for family in (db, *families):
        family.flush(True)
    _begin_log(db)


def open_for_reading(path: Path) -> Rdict:
    """Open a store that no process has open, without changing or locking it."""
    check_exists(path)
    db, names, _ = _open_unchanged(path)
    with _ClosedIfItFails(path, db):
        if not is_known_format(path, db, names):
            raise StoreDamagedError(f"{path}: an event store whose creation was interrupted")
    return db


def check_exists(path: Path) -> None:
    """Refuse a path that does not exist, or is not an event store, by ``StorageError``."""
    with directories.os_errors(path, "cannot be inspected"):
        is_directory, has_current = path.is_dir(), (path / "CURRENT").exists()
        if is_directory:
            directories.refuse_blocking(path)
    if not is_directory:
        raise StorageError(f"{path}: not an event store: no such directory")
    if not has_current:
        raise StoreDamagedError(f"{path}: damaged, or not an event store: no file CURRENT")


def explain(path: Path, what: str, error: BaseException) -> StorageError:
    """Convert an exception of RocksDB, which only has a text, of an operation to an error."""
    reason = str(error)
    if "lock hold by" in reason:
        return StoreLockedError(f"{path}: the event store is in use by this process already")
    if "While lock file" in reason and "temporarily unavailable" in reason:
        return StoreLockedError(f"{path}: the event store is in use by {holder(path)}")
    signs = ["Corruption"] if what == COMMIT else ["Corruption", "No such file", "Invalid argument"]
    if any(i in reason for i in signs):
        return StoreDamagedError(f"{path}: the event store is damaged: {reason}")
    return StorageError(f"{path}: {what}: {reason}")


def _open(path: Path, names: Iterable[str], access: AccessType, mode: DBRecoveryMode) -> Rdict:
    cache = Cache(limits.BLOCK_CACHE_BYTES)
    families = {name: _family_options(name, cache) for name in names}
    try:
        return Rdict(str(path), _options(cache, mode), families, access)
    except Exception as e:
        raise explain(path, "cannot be opened", e) from None


def _make_directory(path: Path) -> None:
    missing = [i for i in (path, *path.parents) if not i.exists()]
    path.mkdir(directories.PRIVATE, parents=True, exist_ok=True)
    for created in missing:  # a power cut must not remove the directory of a synced file
        directories.sync(created.parent)


def refuse_strange_files(path: Path) -> None:
    """Refuse data without CURRENT (damage): a new database writes CURRENT before any data."""
    for file in sorted(path.iterdir()):
        if not file.name.startswith(_CREATION) and file.suffix != ".dbtmp":
            raise StoreDamagedError(
                f"{path}: damaged, or not an event store: no file CURRENT, but {file.name}"
            )


def _family_names(path: Path) -> list[str]:
    try:
        return Rdict.list_cf(str(path))
    except Exception:
        # opening it raises the reason, and first of all whether it is locked
        return ["default", *FAMILIES]


def _begin_log(db: Rdict) -> None:
    """Write the format, and random bytes that make the new log unique."""
    batch = WriteBatch(raw_mode=True)
    batch.put(LOG_KEY, secrets.token_bytes(16))
    batch.put(FORMAT_KEY, str(FORMAT).encode())
    db.write(batch, synced())


def synced() -> WriteOptions:
    """Options of a write that is durable when it returns."""
    options = WriteOptions()
    options.sync = True
    return options


def _options(cache: Cache, mode: DBRecoveryMode) -> Options:
    options = _family_options("default", cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # Acknowledged rows were synced, and are never dropped silently: with any damage of the log,
    # the store does not open. A torn write at its end was truncated before (``log_files``). By
    # default, RocksDB would open without everything after the damage.
    options.set_wal_recovery_mode(mode)
    options.set_max_total_wal_size(limits.MAX_WAL_BYTES)
    options.set_db_write_buffer_size(limits.ALL_WRITE_BUFFERS_BYTES)
    options.set_max_open_files(limits.MAX_OPEN_FILES)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(1 << 20)  # no bursts that would delay the sync of a commit
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    return options


def _family_options(name: str, cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(8 << 10)
    table.set_format_version(5)
    # indexes and filters too are bounded by the cache, however large the store grows
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # Partitions of a few kB are cached as they are used. Whole indexes grow to some MB with their
    # file, more than a shard of the cache: they would not be cached at all, and every read of a row
    # would read one first (1 to 2 ms per row).
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    if name == "request":  # most keys that are looked up are new
        table.set_bloom_filter(10, False)
        options.set_memtable_prefix_bloom_ratio(0.05)
        options.set_memtable_whole_key_filtering(True)
    if name == "event":
        # Values are looked up by keys that exist, in ranges that several files overlap.
        # Other families are scanned, or have ranges by time that do not overlap.
        table.set_bloom_filter(10, False)
        options.set_optimize_filters_for_hits(True)
        options.set_enable_blob_files(True)
        options.set_min_blob_size(limits.MIN_BLOB_BYTES)
        options.set_blob_compression_type(DBCompressionType.lz4())
        options.set_enable_blob_gc(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(limits.WRITE_BUFFER_BYTES)
    options.set_min_write_buffer_number_to_merge(limits.MERGED_BUFFERS)
    options.set_max_write_buffer_number(4 * limits.MERGED_BUFFERS)
    options.set_level_zero_file_num_compaction_trigger(limits.COMPACTED_FILES)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_level_compaction_dynamic_level_bytes(True)
    return options
