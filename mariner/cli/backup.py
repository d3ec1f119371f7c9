"""``mariner backup`` and ``mariner restore``."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import click

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import control, database, directories
from eventer_bridge.backends.rocksdb.holder import holder
from eventer_bridge.backends.rocksdb.restoring import Restored, ext_begin_history, ext_rewind
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Timestamp
from mariner.cli import backup_places, output
from mariner.cli.backup_places import StoreState
from mariner.cli.run import report
from mariner.cli.target import resolve, store_errors, store_option
from mariner.cli.values import LAST_TIME, TIME_HELP, counted

_BACKUP: Final = ("STORE", "TARGET")
_RESTORE: Final = ("BACKUP", "STORE")

_Source: TypeAlias = tuple[str, Callable[[Path], None]]
"""Its name, and what copies it into a directory."""

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
@click.option(
    "--to",
    "place",
    metavar="PLACE",
    help="In place of TARGET: keep a backup there, named after the time. A directory, or the URL of"
    " a folder in an object store (s3://bucket/folder, gs://…, az://…), with credentials from the"
    " environment. Each gateway needs a place of its own.",
)
@click.option(
    "--keep",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="Then remove the backups of this store in PLACE except the newest: the one just made, and"
    " those with the newest states of the store, whatever the clock said. Backups whose state is"
    " not known, and those of other stores, stay: it warns of them.",
)
def backup(conf: Path, paths: tuple[Path, ...], place: str | None, keep: int | None) -> None:
    """Back up a store, whether the gateway is running or not.

    TARGET is a new directory; its parent must exist and not be part of a store. It becomes an
    ordinary store, with everything acknowledged before. A running gateway makes it itself: its
    user must be allowed to write there. On the same file system a backup takes next to no time
    and space at first: copy it elsewhere to be safe. With `--to` this command copies it,
    and needs the rights of the gateway's user; `restore --from` restores it.

    Exit code 0: made; 1: it failed, and nothing is left of TARGET, or, with `--to`, nothing that is
    taken for a backup; 2: wrong usage.
    """
    if place is not None:
        [store] = resolve(_BACKUP[:1], conf, paths)
        _keep(store, place, keep)
        return
    if keep is not None:
        raise click.UsageError("--keep needs --to.")
    store, target = resolve(_BACKUP, conf, paths)
    started = time.monotonic()
    with store_errors():
        directories.refuse_within_store(target)
        control.checkpoint(store, target)
    _print_summary("backup of", store, target, started)


def _keep(store: Path, where: str, n_kept: int | None) -> None:
    started = time.monotonic()
    with store_errors():
        place = backup_places.find(where)
        name = backup_places.new_name()
        with control.open_read_only(store) as opened:
            position = StoreState(opened.histories(), opened.sequence())
            place.save(name, opened.path, position)
            counts = _counts(opened)
        _print_counts(f"backup of {store}: {place}/{name}", counts, started)
        control.tell(store, "backed_up", f"{place}/{name}")
        removed, told = ([], []) if n_kept is None else place.prune(name, n_kept)
    for old in removed:
        output.write_text(f"removed {old}")
    for line in told:
        report(f"warning: {line}")


@click.command()
@store_option(*_RESTORE)
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    help="In place of BACKUP: restore a backup that `backup --to` keeps there.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Which backup, by its name (20261122T013000Z); else the one with the newest state of the"
    " store.",
)
@click.option(
    "--until",
    **LAST_TIME,
    help="Leave out events with later timestamps, for a gateway whose clock was wrong; a date"
    f" includes its whole day. {TIME_HELP}",
)
@click.option(
    "--member",
    "is_member",
    is_flag=True,
    help="Of a group: nothing is gone, as it goes on from the log of the group; so no history"
    " begins. Without it, the store leaves the group.",
)
def restore(
    conf: Path,
    paths: tuple[Path, ...],
    *,
    place: str | None,
    name: str | None,
    until: Timestamp | None,
    is_member: bool,
) -> None:
    """Make a store from a backup.

    STORE must not exist, or be an empty directory; run this as the gateway's user. BACKUP may
    also be the store of a running gateway: then a checkpoint of it is copied.

    Restoring goes back in time: events that were registered after the backup are gone. Their ids
    are never reused, and the store begins a new history, from which replicas, relays, streams
    and lakes that have seen such events notice it. The command prints what that means for them.

    Exit code 0: restored; 1: it failed, and nothing is left of it; 2: wrong usage.
    """
    if name is not None and place is None:
        raise click.UsageError("--name needs --from.")
    if is_member and until is not None:
        raise click.UsageError("--member and --until exclude each other.")
    *sources, store = resolve(_RESTORE if place is None else _RESTORE[1:], conf, paths)
    started = time.monotonic()
    with store_errors():
        if store.is_dir() and control.is_served(store):
            raise StorageError(f"{store}: the event store is in use by {holder(store)}")
        source, copy = _kept(place, name) if place is not None else _directory(sources[0], store)
        with directories.new_directory(store) as path:
            copy(path)
            if is_member:
                text = _position(path, source)
            else:
                n_left_out = 0 if until is None else ext_rewind(path, until)
                text = _consequences(ext_begin_history(path))
    _print_summary("restored", source, store, started)
    if until is not None:
        output.write_text(f"left out after {until.to_iso()}: {counted(n_left_out, 'event')}")
    output.write_text(text)


def _position(path: Path, source: str) -> str:
    with control.open_read_only(path) as opened:
        row = opened.group_row()
    if row is None:
        raise StorageError(f"{source}: it is not the store of a member of a group")
    return f"it goes on behind position {row.position} of the log of its group"


def _directory(path: Path, store: Path) -> _Source:
    """A backup in a directory, or a store that may be open."""
    database.check_exists(path)

    def copy(target: Path) -> None:
        with control.open_read_only(path) as opened:  # it is a store, and complete
            try:
                directories.copy(opened.path, target)
            except OSError as e:
                raise StorageError(f"{store}: cannot be written: {e.strerror}") from e

    return str(path), copy


def _kept(where: str, name: str | None) -> _Source:
    """A backup that ``backup --to`` keeps."""
    place = backup_places.find(where)
    chosen, told = place.choose(name)
    for line in told:
        report(f"warning: {line}")

    def copy(target: Path) -> None:
        place.load(chosen, target)
        with control.open_read_only(target):  # it is a store, and complete
            pass

    return f"{place}/{chosen}", copy


def _print_summary(what: str, source: object, target: Path, started: float) -> None:
    with store_errors(), control.open_read_only(target) as opened:
        counts = _counts(opened)
    _print_counts(f"{what} {source}: {target}", counts, started)


def _counts(store: Store) -> str:
    return f"about {counted(store.n_events(), 'event')}, {store.disk_bytes()} bytes"


def _print_counts(what: str, counts: str, started: float) -> None:
    output.write_text(f"{what}: {counts}, {time.monotonic() - started:.1f} s")


def _consequences(restored: Restored) -> str:
    lines = [f"history {restored.history_id} begins: of what was registered after the backup,"]
    lines += (
        f"  server {i.server_id} has nothing behind session {i.last_session or 0};"
        f" new ids have sessions above {i.mark}"
        for i in restored.servers[: limits.MAX_LISTED]
    )
    return "\n".join([*lines, _FOLLOWERS])
