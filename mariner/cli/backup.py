"""``mariner backup`` and ``mariner restore``."""

import time
from pathlib import Path
from typing import Final

import click

from eventer_bridge import limits, moments
from eventer_bridge.backends.rocksdb import control, database, directories
from eventer_bridge.backends.rocksdb.info import ext_info
from eventer_bridge.backends.rocksdb.restoring import Restored, ext_go_on
from eventer_bridge.backends.rocksdb.rewinding import ext_rewind
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Timestamp
from mariner.cli import output
from mariner.cli.store_path import store_errors, store_option, take
from mariner.cli.values import value_option

_BACKUP: Final = ("STORE", "TARGET")
_RESTORE: Final = ("BACKUP", "STORE")

_FOLLOWERS: Final = """\
Who followed the server of this store further than that has events which are gone here:
- replicas refuse to go on, and say so in their log. So that nothing is lost: start this store with
  another server_id, have it replicate its old one from the replica, and list the new one there. Or
  restore replicas, too, from backups that are older than this one.
- relays disconnect their clients once, and go on.
- streams of Spark and lakes refuse to go on: begin new ones, with a new checkpoint or folder.
- cursors that clients keep (the last id they have seen) stay right: no id is given twice.
Who has not come so far notices nothing."""
"""Printed by a restore."""


@click.command()
@store_option(*_BACKUP)
def backup(conf: Path | None, paths: tuple[Path, ...]) -> None:
    """Make a backup of a store, while the gateway runs or not.

    TARGET is a new directory, in one that exists and is not part of a store. It becomes an
    ordinary store, with all that was acknowledged before. A running gateway makes it itself:
    its user must have the right to write there. On the same file system it takes next to no
    time and space at first: copy it elsewhere to have it safe.

    Exit code 0: made; 1: it failed, and nothing is left of it; 2: wrong usage.
    """
    store, target = take(_BACKUP, conf, paths)
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
    help="Leave out events with later timestamps, where the clock of the gateway was wrong. Of a"
    " date, its whole day is restored.",
)
def restore(conf: Path | None, paths: tuple[Path, ...], until: Timestamp | None) -> None:
    """Copy a backup to where a store is to be.

    STORE must not exist, or be an empty directory; run this as the gateway's user. BACKUP may
    also be the store of a running gateway, of which a checkpoint is copied then.
    Restoring goes back in time: events that were registered after the backup are gone. Their ids
    are not given again, and the store has another history from now on, by which replicas, relays,
    streams and lakes that have seen such events notice it. What that means is printed.

    Exit code 0: restored; 1: it failed, and nothing is left of it; 2: wrong usage.
    """
    source, store = take(_RESTORE, conf, paths)
    started = time.monotonic()
    with store_errors():
        if store.is_dir() and control.is_served(store):
            raise StorageError(f"{store}: is in use by a running gateway")
        database.check_exists(source)
        with directories.new_directory(store) as path:
            with control.reading(source) as opened:  # it is a store, and complete
                try:
                    directories.copy(opened.path, path)
                except OSError as e:
                    raise StorageError(f"{store}: cannot be written: {e.strerror}") from e
            n_left_out = 0 if until is None else ext_rewind(path, until)
            restored = ext_go_on(path)
    _print_summary("restored", source, store, started)
    if until is not None:
        output.write_text(f"{n_left_out} events after {until.to_iso()} are left out")
    output.write_text(_consequences(restored))


def _print_summary(what: str, source: Path, target: Path, started: float) -> None:
    seconds = time.monotonic() - started
    with store_errors(), control.reading(target) as made:
        info = ext_info(made)
    output.write_text(
        f"{what} {source}: {target}: about {info.events} events,"
        f" {info.disk_bytes} bytes, {seconds:.1f} s"
    )


def _consequences(restored: Restored) -> str:
    """What it means for those who have seen more than was restored."""
    lines = [f"history {restored.history_id} begins: of what was registered after the backup,"]
    lines += (
        f"  server {i.server_id} has nothing behind session {i.last_session or 0};"
        f" new ids have sessions above {i.mark}"
        for i in restored.servers[: limits.MAX_LISTED]
    )
    return "\n".join([*lines, _FOLLOWERS])
