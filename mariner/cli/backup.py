"""``mariner backup`` and ``mariner restore``."""

import time
from pathlib import Path
from typing import Final

import click

from eventer_bridge import limits, moments
from eventer_bridge.backends.rocksdb import control, database, directories
from eventer_bridge.backends.rocksdb.restoring import Restored, ext_begin_history
from eventer_bridge.backends.rocksdb.rewinding import ext_rewind
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Timestamp
from mariner.cli import output
from mariner.cli.store_path import resolve, store_errors, store_option
from mariner.cli.values import value_option

_BACKUP: Final = ("STORE", "TARGET")
_RESTORE: Final = ("BACKUP", "STORE")

_FOLLOWERS: Final = """\
Followers that have read more than that have events which are gone here:
- replicas refuse to go on, and say so in their log. To lose nothing, start this store with another
  server_id, have it replicate its old one from the replica, and list the new one there. Or restore
  the replicas, too, from backups older than this one.
- relays disconnect their clients once, and go on.
- Spark's streams and lakes refuse to go on: begin new ones, with a new checkpoint or folder.
- cursors that clients keep (the last id they have seen) stay valid: ids are never reused.
Followers that have read less notice nothing."""
"""Printed by a restore."""


@click.command()
@store_option(*_BACKUP)
def backup(conf: Path | None, paths: tuple[Path, ...]) -> None:
    """Back up a store, whether the gateway is running or not.

    TARGET is a new directory; its parent must exist and not be part of a store. It becomes an
    ordinary store, with everything acknowledged before. A running gateway makes it itself: its
    user must be allowed to write there. On the same file system a backup takes next to no time
    and space at first: copy it elsewhere to be safe.

    Exit code 0: made; 1: it failed, and nothing is left of it; 2: wrong usage.
    """
    store, target = resolve(_BACKUP, conf, paths)
    started = time.monotonic()
    with store_errors():
        directories.refuse_within_store(target)
        control.checkpoint(store, target)
    _print_summary("backup of", store, target, started)


@click.command()
@store_option(*_RESTORE)
@click.option(
    "--until",
    metavar="TIME",
    callback=value_option(moments.parse_last),
    help="Leave out events with later timestamps, for a gateway whose clock was wrong. A date"
    " includes its whole day.",
)
def restore(conf: Path | None, paths: tuple[Path, ...], until: Timestamp | None) -> None:
    """Make a store from a backup.

    STORE must not exist, or be an empty directory; run this as the gateway's user. BACKUP may
    also be the store of a running gateway: then a checkpoint of it is copied.

    Restoring goes back in time: events that were registered after the backup are gone. Their ids
    are never reused, and the store begins a new history, by which replicas, relays, streams and
    lakes that have seen such events notice it. The command prints what that means for them.

    Exit code 0: restored; 1: it failed, and nothing is left of it; 2: wrong usage.
    """
    source, store = resolve(_RESTORE, conf, paths)
    started = time.monotonic()
    with store_errors():
        if store.is_dir() and control.is_served(store):
            raise StorageError(f"{store}: is in use by a running gateway")
        database.check_exists(source)
        with directories.new_directory(store) as path:
            with control.open_read_only(source) as opened:  # it is a store, and complete
                try:
                    directories.copy(opened.path, path)
                except OSError as e:
                    raise StorageError(f"{store}: cannot be written: {e.strerror}") from e
            n_left_out = 0 if until is None else ext_rewind(path, until)
            restored = ext_begin_history(path)
    _print_summary("restored", source, store, started)
    if until is not None:
        output.write_text(f"{n_left_out} events after {until.to_iso()} are left out")
    output.write_text(_consequences(restored))


def _print_summary(what: str, source: Path, target: Path, started: float) -> None:
    seconds = time.monotonic() - started
    with store_errors(), control.open_read_only(target) as opened:
        n_events, disk_bytes = opened.n_events(), opened.disk_bytes()
    output.write_text(
        f"{what} {source}: {target}: about {n_events} events, {disk_bytes} bytes, {seconds:.1f} s"
    )


def _consequences(restored: Restored) -> str:
    """Consequences of a restore for replicas, relays, streams and clients."""
    lines = [f"history {restored.history_id} begins: of what was registered after the backup,"]
    lines += (
        f"  server {i.server_id} has nothing behind session {i.last_session or 0};"
        f" new ids have sessions above {i.mark}"
        for i in restored.servers[: limits.MAX_LISTED]
    )
    return "\n".join([*lines, _FOLLOWERS])
