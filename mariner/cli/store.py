"""``mariner store``: inspect, verify, compact and import stores."""

import contextlib
import time
from pathlib import Path
from typing import Final

import click

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import contents, control, database, directories
from eventer_bridge.backends.rocksdb.compare import ext_compare
from eventer_bridge.backends.rocksdb.info import StoreInfo, ext_info, ext_servers
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import ext_verify
from eventer_bridge.core import clock, hat_import
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import Timestamp, printable
from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, CommandError, report
from mariner.cli.target import (
    DIRECTORY,
    FILE,
    JSON_OPTION,
    resolve,
    store_errors,
    store_of,
    store_option,
)
from mariner.cli.values import counted

_STORE: Final = ("STORE",)


@click.group()
def store() -> None:
    """Inspect, check, compact and import event stores."""


@store.command()
@store_option(*_STORE)
@JSON_OPTION
def info(conf: Path, paths: tuple[Path, ...], is_json: bool) -> None:
    """Show what is in a store: events, types, servers, times and sizes.

    The number of events is an estimate: `verify` counts them. If a gateway has the store open,
    this reads a checkpoint of it, which is removed afterwards.
    """
    [path] = resolve(_STORE, conf, paths)
    with store_errors(), control.open_read_only(path) as opened:
        found = ext_info(opened)
    if is_json:
        output.write_json(found)
    else:
        output.write_pairs(_rows(path, found))


@store.command()
@store_option(*_STORE)
@click.option(
    "--drill-of",
    type=FILE,
    metavar="CONF",
    help="STORE was restored from a backup of the gateway with this configuration: if there are no"
    " findings, it is told, and `/metrics` and the console show when that was.",
)
@click.option(
    "--against",
    type=DIRECTORY,
    metavar="OTHER",
    help="Compare the store with another one instead, row for row: those of the members of a group"
    " are equal when they have come to the same position.",
)
def verify(
    conf: Path, paths: tuple[Path, ...], drill_of: Path | None, against: Path | None
) -> None:
    """Check a store: every row of every index, and the indexes against each other.

    Request keys, cursors and parked events are checked too.

    Prints each finding on a line: index, event (server/session/instance), reason. Changes
    nothing. If a gateway has the store open, this checks a checkpoint of it, which is removed
    afterwards.

    Exit code 0: no findings; 1: findings, or it cannot be read; 2: wrong usage.
    """
    [path] = resolve(_STORE, conf, paths)
    if against is not None:
        _compare(path, against)
        return
    drilled = None if drill_of is None else store_of(drill_of)
    listing = _Listing()
    with (
        store_errors(),
        control.open_read_only(path) as opened,
        output.progress("verify") as on_progress,
    ):
        counts = ext_verify(opened, listing, on_progress)
    listing.write()
    output.write_text(
        f"{path}: {counted(counts.events, 'event')}, {counted(counts.sessions, 'session')},"
        f" {counted(counts.servers, 'server')}, {counted(counts.event_types, 'type')}:"
        f" {counted(listing.count, 'finding') if listing.count else 'ok'}"
    )
    if listing.count:
        raise CommandError("", EXIT_FAILED)
    if drilled is not None:
        try:
            control.tell(drilled, "drilled", str(path))
        except EventerBridgeError as e:  # one of an older version, perhaps: the drill is a good one
            report(f"warning: the gateway is not told: {e}")


def _compare(path: Path, other: Path) -> None:
    listing = _Listing()
    with (
        store_errors(),
        control.open_read_only(path) as opened,
        control.open_read_only(other) as against,
        output.progress("compare") as on_progress,
    ):
        n_rows = ext_compare(opened, against, listing, on_progress)
    listing.write()
    found = counted(listing.count, "difference") if listing.count else "equal"
    output.write_text(f"{path}, {other}: {counted(n_rows, 'row')}: {found}")
    if listing.count:
        raise CommandError("", EXIT_FAILED)


@store.command()
@store_option(*_STORE)
def compact(conf: Path, paths: tuple[Path, ...]) -> None:
    """Rewrite a store's files without what is no longer needed.

    Nothing else may have it open: stop the gateway first. Compacting needs as much space
    again.
    """
    [path] = resolve(_STORE, conf, paths)
    started = time.monotonic()
    with store_errors(), output.progress("compact") as on_progress:
        database.check_exists(path)
        opened = Store(path)
        try:
            before = opened.disk_bytes()
            for number, family in enumerate(contents.FAMILIES):
                on_progress(number, len(contents.FAMILIES))
                opened.ext_compact(family)
        finally:
            opened.ext_close()
            with contextlib.suppress(OSError):
                directories.give_to_owner_of(path, path)
        with control.open_read_only(path) as closed:
            after = closed.disk_bytes()
    seconds = time.monotonic() - started
    output.write_text(f"{path}: {before} bytes before, {after} bytes after, {seconds:.1f} s")


@store.command("import-hat")
@click.argument("hat_path", type=DIRECTORY, metavar="HAT_PATH")
@click.argument("path", type=DIRECTORY, metavar="STORE")
def import_hat(hat_path: Path, path: Path) -> None:
    """Make a store from the database of a hat-event server (LMDB backend, version 0.9).

    HAT_PATH is the file that `db_path` of its configuration names; it is only read. STORE must
    not exist, or be an empty directory. Events keep their ids, timestamps and payloads; new
    ones continue the ids if the gateway has the same `server_id`. Events that cannot be stored
    are left out, and listed one per line.

    Exit code 0: imported, all or with some left out; 1: it failed, and nothing is left of it;
    2: wrong usage.
    """
    started = time.monotonic()
    listing = _Listing()
    with store_errors(), output.progress("import") as on_progress:
        done = hat_import.import_database(hat_path, path, listing, on_progress)
    listing.write()
    seconds = time.monotonic() - started
    output.write_text(
        f"{path}: {counted(done.events, 'event')}, {counted(done.sessions, 'session')},"
        f" {counted(done.event_types, 'type')} imported, {counted(done.refused, 'event')} left out,"
        f" {seconds:.1f} s"
    )
    with store_errors(), control.open_read_only(path) as imported:
        servers = list(ext_servers(imported))
    for server in servers:
        if ahead := _ahead(server.last_timestamp):
            output.write_text(f"server {server.server_id}: {ahead}")


class _Listing:
    """Lines to print when the progress bar is gone: as many as a person can use."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: list[str] = []

    def __call__(self, line: object) -> None:
        self.count += 1
        if self.count <= limits.MAX_LISTED:
            self._lines.append(printable(str(line)))

    def write(self) -> None:
        for line in self._lines:
            output.write_text(line)
        if self.count > limits.MAX_LISTED:
            output.write_text(f"… and {self.count - limits.MAX_LISTED} more")


def _ahead(newest: Timestamp) -> str:
    """What to say about a server's clock; nothing if it was right."""
    seconds = clock.ahead_s(newest)
    if seconds <= limits.CLOCK_TOLERANCE_S:
        return ""
    return f"events up to {newest.to_iso()} are ahead of the clock by {seconds:.0f} s"


def _rows(path: Path, found: StoreInfo) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [
        ("store", str(path)),
        ("format", str(found.format)),
        ("history", found.history or "none yet"),
        *([] if found.group_position is None else [("position", str(found.group_position))]),
        ("events", f"about {found.events}"),
        ("event types", str(found.event_types)),
    ]
    rows += ((f"types of {owner}", str(price)) for owner, price in found.spent.items())
    if found.first_timestamp and found.last_timestamp:
        first, last = found.first_timestamp.to_iso(), found.last_timestamp.to_iso()
        rows.append(("time", f"{first} to {last}"))
    for server in found.servers:
        sessions = f"sessions {server.first_session} to {server.last_session}"
        facts = [sessions, f"ids given up to {server.mark}", _ahead(server.last_timestamp)]
        rows.append((f"server {server.server_id}", ", ".join(filter(None, facts))))
    rows += ((f"index {name}", f"{n} bytes") for name, n in found.index_bytes.items())
    return [*rows, ("on disk", f"{found.disk_bytes} bytes")]
