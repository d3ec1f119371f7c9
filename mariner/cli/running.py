"""Commands that ask a running gateway: ``mariner reload`` and ``mariner cursors``."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from eventer_bridge import limits as core_limits
from eventer_bridge.control import client
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import EventId, Timestamp, format_event_id, printable
from mariner import limits
from mariner.cli import output
from mariner.cli.run import errors, fail
from mariner.cli.target import JSON_OPTION, find_gateway, gateway_option
from mariner.cli.values import EVENT_ID, EVENT_ID_METAVAR
from mariner.gateway import cursor_requests
from mariner.gateway.cursor_requests import CursorAnswer, CursorInfo, CursorRequest


@click.command()
@gateway_option
def reload(path: Path) -> None:
    """Have a running gateway read its configuration again; no connection is dropped.

    It reloads certificates, CAs, revocation lists, clients with their rights and tokens, payload
    schemas, quotas, retention, audit and log. Connections go on with the new rights; those of
    clients that were removed, or whose token or certificate was removed, are closed. It prints what
    changed, and what takes a restart. SIGHUP does the same, but only the log tells.

    Exit code 0: reloaded; 1: there is no gateway, or it failed; 2: the configuration cannot be
    used, and everything stays as it was.
    """
    with errors():
        try:
            socket, to = find_gateway(path, "; SIGHUP reloads, too")
            what, timeout_s = f"{socket}: the gateway", limits.RELOAD_TIMEOUT_S
            answer = client.request(
                socket, "reload", None, dict[str, list[str]], to=to, what=what, timeout_s=timeout_s
            )
        except ConfigurationError as e:
            fail(str(e))
    for what, text in (("changed", "changed"), ("needs_restart", "needs a restart")):
        for line in answer[what]:
            output.write_text(f"{text}: {line}")
    output.write_text("reloaded")


@click.group()
def cursors() -> None:
    """Show and change the cursors of clients, and the events that they parked."""


_client = click.argument("client_name", metavar="CLIENT")
_name = click.argument("name")
_events = click.argument("ids", metavar=f"[{EVENT_ID_METAVAR}]...", nargs=-1, type=EVENT_ID)


@cursors.command("list")
@gateway_option
@JSON_OPTION
def list_cursors(path: Path, is_json: bool) -> None:
    """Show all cursors, and how far they are behind."""
    _print(_ask(path, CursorRequest("list")), is_json=is_json)


@cursors.command()
@gateway_option
@_client
@_name
@JSON_OPTION
def show(path: Path, client_name: str, name: str, is_json: bool) -> None:
    """Show a cursor and its parked events; `mariner query --id` shows one of these."""
    _print(_ask(path, CursorRequest("show", client_name, name)), is_json=is_json)


@cursors.command()
@gateway_option
@_client
@_name
def delete(path: Path, client_name: str, name: str) -> None:
    """Forget a cursor and its parked events. A connection that has it is closed."""
    _ask(path, CursorRequest("delete", client_name, name))
    output.write_text(f"deleted: {printable(client_name)} {printable(name)}")


_CHANGES: Final = {
    "reset": (
        "Have a cursor go on after these events, one of each server; without any, from the start."
        "\n\nA connection that has the cursor is closed."
    ),
    "redeliver": "Send parked events again, these or all: now, or when the client connects.",
    "drop": "Drop parked events, these or all, from the list. They stay in the store.",
}


def _change(do: str) -> Callable[..., None]:
    @gateway_option
    @_client
    @_name
    @_events
    def change(path: Path, client_name: str, name: str, ids: tuple[EventId, ...]) -> None:
        _print(_ask(path, CursorRequest(do, client_name, name, ids)))  # type: ignore[arg-type]

    return change


for _do, _text in _CHANGES.items():
    cursors.command(_do, help=_text)(_change(_do))


def _ask(path: Path, request: CursorRequest) -> CursorAnswer:
    with errors():
        socket, to = find_gateway(path)
        return cursor_requests.ask(socket, request, to)


def _print(answer: CursorAnswer, *, is_json: bool = False) -> None:
    if is_json:
        output.write_json(answer)
        return
    names = "CLIENT", "CURSOR", "POSITION", "EVENTS BEHIND", "SECONDS BEHIND"
    rows = [_row(i) for i in answer.cursors]
    output.write_rich(output.table(*names, "PARKED", "CONNECTED", "ACKED", rows=rows))
    if answer.parked:
        parked = [
            (format_event_id(i.id), _time(i.at), "yes" if i.is_due else "no", i.reason)
            for i in answer.parked
        ]
        output.write_rich(output.table("PARKED", "AT", "REDELIVERED", "REASON", rows=parked))


def _row(cursor: CursorInfo) -> tuple[str, ...]:
    is_more = cursor.lag_events >= core_limits.MAX_LAG_EVENTS
    return (
        cursor.client,
        cursor.name,
        " ".join(map(format_event_id, cursor.seen)) or "the start",
        f"{cursor.lag_events}{'+' if is_more else ''}",
        f"{cursor.lag_s:.1f}",
        str(cursor.n_parked),
        "yes" if cursor.is_connected else "no",
        "never" if cursor.acked is None else _time(cursor.acked),
    )


def _time(seconds: float) -> str:
    return Timestamp.from_float(seconds).to_iso()
