"""``mariner store``: look at, check, compact and make stores."""

import contextlib
import time
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.table import Table
from rich.text import Text

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import contents, control, database, directories
from eventer_bridge.backends.rocksdb.info import StoreInfo, ext_info
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import ext_verify
from eventer_bridge.core import clock, hat_import
from eventer_bridge.model import Timestamp
from mariner.cli import output
from mariner.cli.progress import progress
from mariner.cli.run import EXIT_FAILED, CommandError, printable
from mariner.cli.store_path import DIRECTORY, store_errors, store_option, take
from mariner.cli.values import format_timestamp

_STORE: Final = ("STORE",)


@click.group()
def store() -> None:
    """Look at, check, compact and import stores of events."""


@store.command()
@store_option(*_STORE)
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object.")
def info(conf: Path | None, paths: tuple[Path, ...], is_json: bool) -> None:
    """Show what is in a store: events, types, servers, times and sizes.

    The number of events is an estimate: `verify` counts them. A store that the gateway has
    open is looked at through a checkpoint, which is removed afterwards.
    """
    [path] = take(_STORE, conf, paths)
    with store_errors(), control.reading(path) as opened:
        found = ext_info(opened)
    if is_json:
        output.write_text(msgspec.json.encode(found).decode())
    else:
        _write_info(path, found)


@store.command()
@store_option(*_STORE)
def verify(conf: Path | None, paths: tuple[Path, ...]) -> None:
    """Check a store: every row of every index, and each against the others.

    What is wrong is printed, a line each: index, event (server/session/instance), reason.
    Nothing is changed. A store that the gateway has open is checked through a checkpoint,
    which is removed afterwards.

    Exit code 0: all is well; 1: it is not, or cannot be read; 2: wrong usage.
    """
    [path] = take(_STORE, conf, paths)
    told = _Told()
    with store_errors(), control.reading(path) as opened, progress("verify") as on_progress:
        counts = ext_verify(opened, told, on_progress)
    told.write()
    output.write_text(
        f"{path}: {counts.events} events, {counts.sessions} sessions, {counts.servers} servers,"
        f" {counts.event_types} types: {f'{told.count} findings' if told.count else 'ok'}"
    )
    if told.count:
        raise CommandError("", EXIT_FAILED)


@store.command()
@store_option(*_STORE)
def compact(conf: Path | None, paths: tuple[Path, ...]) -> None:
    """Rewrite a store's files, without what is no longer needed.

    Nobody may have it open: stop the gateway before. For a while it needs as much space
    again.
    """
    [path] = take(_STORE, conf, paths)
    started = time.monotonic()
    with store_errors(), progress("compact") as on_progress:
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
        with control.reading(path) as closed:
            after = closed.disk_bytes()
    seconds = time.monotonic() - started
    output.write_text(f"{path}: {before} bytes before, {after} bytes after, {seconds:.1f} s")


@store.command("import-hat")
@click.argument("hat_path", type=DIRECTORY, metavar="HAT_PATH")
@click.argument("path", type=DIRECTORY, metavar="STORE")
def import_hat(hat_path: Path, path: Path) -> None:
    """Make a store of the database of a hat-event server (LMDB backend, version 0.9).

    HAT_PATH is the file that `db_path` of its configuration names; it is read only. STORE
    must not exist, or be an empty directory. Events keep their ids, timestamps and
    payloads; new ones continue the ids if the gateway has the same `server_id`. Events
    that cannot be stored are told, a line each, and left out.

    Exit code 0: imported, all or with some left out; 1: it failed, and nothing is left of
    it; 2: wrong usage.
    """
    started = time.monotonic()
    told = _Told()
    with store_errors(), progress("import") as on_progress:
        done = hat_import.ext_import(hat_path, path, told, on_progress)
    told.write()
    seconds = time.monotonic() - started
    output.write_text(
        f"{path}: {done.events} events, {done.sessions} sessions, {done.event_types} types"
        f" imported, {done.refused} events left out, {seconds:.1f} s"
    )
    with store_errors(), control.reading(path) as imported:
        servers = ext_info(imported).servers
    for server in servers:
        if ahead := _ahead(server.last_timestamp):
            output.write_text(f"server {server.server_id}: {ahead}")


class _Told:
    """Lines for the end, when no progress bar is in their way: as many as people can use."""

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
    """What is to be told of a server's clock; nothing where it was right."""
    seconds = clock.ahead_s(newest)
    if seconds <= limits.CLOCK_TOLERANCE_S:
        return ""
    return f"events up to {newest.to_iso()} are ahead of the clock by {seconds:.0f} s"


def _write_info(path: Path, found: StoreInfo) -> None:
    rows: list[tuple[str, str]] = [
        ("store", str(path)),
        ("format", str(found.format)),
        ("history", found.history or "none yet"),
        ("events", f"about {found.events}"),
        ("event types", str(found.event_types)),
    ]
    rows += ((f"types of {owner}", str(price)) for owner, price in found.spent.items())
    if found.first_timestamp and found.last_timestamp:
        first, last = map(format_timestamp, (found.first_timestamp, found.last_timestamp))
        rows.append(("time", f"{first} to {last}"))
    for server in found.servers:
        sessions = f"sessions {server.first_session} to {server.last_session}"
        told = [sessions, f"ids given up to {server.mark}", _ahead(server.last_timestamp)]
        rows.append((f"server {server.server_id}", ", ".join(filter(None, told))))
    rows += ((f"index {name}", f"{n} bytes") for name, n in found.index_bytes.items())
    rows.append(("on disk", f"{found.disk_bytes} bytes"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(printable(value)))
    output.write_rich(table)
