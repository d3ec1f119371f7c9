"""``mariner cursors``: look at cursors of clients, and at the events that they parked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.table import Table
from rich.text import Text

from eventer_bridge import limits as core_limits
from eventer_bridge.errors import ConfigurationError, ControlError
from eventer_bridge.model import EventId, Timestamp
from mariner.cli import output, running
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, printable
from mariner.cli.values import format_timestamp, parse_event_id, values_option
from mariner.gateway import cursor_requests
from mariner.gateway.cursor_requests import CursorAnswer, CursorInfo, CursorRequest

_conf = click.option(
    "--conf",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Configuration file of the running gateway.",
)
_cursor: Final = (click.argument("client_name", metavar="CLIENT"), click.argument("name"))
_events = click.argument(
    "ids", metavar="[SERVER/SESSION/INSTANCE]...", nargs=-1, callback=values_option(parse_event_id)
)


@click.group()
def cursors() -> None:
    """Show and change the cursors of clients, and the events that they parked."""


@cursors.command("list")
@_conf
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object.")
def list_cursors(path: Path, is_json: bool) -> None:
    """Show all cursors, and how far they are behind."""
    _print(_ask(path, CursorRequest("list")), is_json=is_json)


@cursors.command()
@_conf
@_cursor[0]
@_cursor[1]
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object.")
def show(path: Path, client_name: str, name: str, is_json: bool) -> None:
    """Show a cursor and its parked events; `mariner query --id` shows one of these."""
    _print(_ask(path, CursorRequest("show", client_name, name)), is_json=is_json)


@cursors.command()
@_conf
@_cursor[0]
@_cursor[1]
@_events
def reset(path: Path, client_name: str, name: str, ids: tuple[EventId, ...] | None) -> None:
    """Have a cursor go on after these events, one of each server; without any, from the start.

    A connection that has the cursor is closed.
    """
    _print(_ask(path, CursorRequest("reset", client_name, name, ids or ())))


@cursors.command()
@_conf
@_cursor[0]
@_cursor[1]
def delete(path: Path, client_name: str, name: str) -> None:
    """Forget a cursor and its parked events. A connection that has it is closed."""
    _ask(path, CursorRequest("delete", client_name, name))
    output.write_text(f"deleted: {printable(client_name)} {printable(name)}")


@cursors.command()
@_conf
@_cursor[0]
@_cursor[1]
@_events
def redeliver(path: Path, client_name: str, name: str, ids: tuple[EventId, ...] | None) -> None:
    """Send parked events again, these or all: now, or when the client connects."""
    _print(_ask(path, CursorRequest("redeliver", client_name, name, ids or ())))


@cursors.command()
@_conf
@_cursor[0]
@_cursor[1]
@_events
def drop(path: Path, client_name: str, name: str, ids: tuple[EventId, ...] | None) -> None:
    """Drop parked events, these or all, from the list. They stay in the store."""
    _print(_ask(path, CursorRequest("drop", client_name, name, ids or ())))


def _ask(path: Path, request: CursorRequest) -> CursorAnswer:
    try:
        socket, to = running.find(path)
        return cursor_requests.ask(socket, request, to)
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    except ControlError as e:
        raise CommandError(str(e), EXIT_FAILED) from e


def _print(answer: CursorAnswer, *, is_json: bool = False) -> None:
    if is_json:
        output.write_text(msgspec.json.encode(answer).decode())
        return
    columns = (
        *("CLIENT", "CURSOR", "POSITION", "EVENTS BEHIND", "SECONDS BEHIND"),
        *("PARKED", "CONNECTED", "ACKED"),
    )
    output.write_rich(_table(columns, [_row(i) for i in answer.cursors]))
    if answer.parked:
        rows = [
            (_id(i.id), _time(i.at), "yes" if i.is_due else "no", i.reason) for i in answer.parked
        ]
        output.write_rich(_table(("PARKED", "AT", "REDELIVERED", "REASON"), rows))


def _row(cursor: CursorInfo) -> tuple[str, ...]:
    is_more = cursor.lag_events >= core_limits.MAX_LAG_EVENTS
    return (
        cursor.client,
        cursor.name,
        " ".join(map(_id, cursor.seen)) or "the start",
        f"{cursor.lag_events}{'+' if is_more else ''}",
        f"{cursor.lag_s:.1f}",
        str(cursor.n_parked),
        "yes" if cursor.is_connected else "no",
        "never" if cursor.acked is None else _time(cursor.acked),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    return table


def _id(event_id: EventId) -> str:
    return f"{event_id.server}/{event_id.session}/{event_id.instance}"


def _time(seconds: float) -> str:
    return format_timestamp(Timestamp.from_float(seconds))
