"""The command ``query``, for any kind of server."""

import contextlib
import sys
from typing import Any, Final

import click

from eventer_bridge import model
from mariner import limits
from mariner.cli import output
from mariner.cli.run import report, run
from mariner.cli.search import search
from mariner.cli.target import Target
from mariner.cli.values import (
    EVENT_ID,
    EVENT_ID_METAVAR,
    LAST_TIME,
    PATTERN,
    TIME,
    TIME_HELP,
    Parsed,
    parse_payload,
)

_TYPE_HELP: Final = (
    "Event type: segments joined by '/'; '?' matches one segment, '*' at the end any number."
    ' Or a JSON array: \'["a/b", "*"]\'. Can be repeated. Default: all types.'
)
types_option: Final = click.option(
    "--type", "event_types", metavar="TYPE", multiple=True, type=PATTERN, help=_TYPE_HELP
)
SERVER_ID: Final = click.IntRange(0)

_LAST_HELP: Final = "at or before this; a date includes its whole day."
_PARAMS: Final[dict[str, Any]] = {
    "latest": model.QueryLatestParams,
    "timeseries": model.QueryTimeseriesParams,
    "server": model.QueryServerParams,
}
_ORDERS: Final = {"asc": model.Order.ASCENDING, "desc": model.Order.DESCENDING}
_BY: Final = {"timestamp": model.OrderBy.TIMESTAMP, "source": model.OrderBy.SOURCE_TIMESTAMP}


@click.command()
@click.argument("kind", type=click.Choice([*_PARAMS]), default="timeseries")
@types_option
@click.option("--from", "t_from", **TIME, help=f"Timestamp at or after this. {TIME_HELP}")
@click.option("--to", "t_to", **LAST_TIME, help=f"Timestamp {_LAST_HELP}")
@click.option(
    "--source-from",
    "source_t_from",
    **TIME,
    help="Source timestamp at or after this, written as for --from.",
)
@click.option("--source-to", "source_t_to", **LAST_TIME, help=f"Source timestamp {_LAST_HELP}")
@click.option("--order", type=click.Choice([*_ORDERS]), help="Default: desc.")
@click.option("--order-by", type=click.Choice([*_BY]), help="Default: timestamp.")
@click.option(
    "--id",
    "ids",
    metavar=EVENT_ID_METAVAR,
    multiple=True,
    type=EVENT_ID,
    help="Only the event with this id. Can be repeated.",
)
@click.option(
    "--payload",
    metavar="JSON",
    type=Parsed(parse_payload),
    help="Only events with this payload, written as for register (but null is the JSON value)."
    " JSON values are compared: 1 equals 1.0, the order of keys does not matter.",
)
@click.option(
    "--unique-type", is_flag=True, help="Only the first event of each type, in the chosen order."
)
@click.option("--server-id", type=SERVER_ID, help="Server whose events are queried.")
@click.option("--persisted", is_flag=True, help="Only events that are persisted.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help="Print at most this many events. Default: all; in a terminal, 100.",
)
@click.option("--all", "is_all", is_flag=True, help="Print all events in a terminal, too.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "table"]),
    help="Default: table in a terminal, jsonl (one event per line) elsewhere.",
)
def query(
    server: Target,
    kind: str,
    limit: int | None,
    format_: str | None,
    *,
    is_all: bool,
    **options: Any,
) -> None:
    """Query registered events: all of them, or up to --limit.

    \b
      mariner query --type 'lamp/*' --from -1h

    In a terminal it prints the first 100 (the newest, unless --order says otherwise), and says so;
    with --all, or where the output is no terminal, everything.

    \b
      latest      the latest event of each type: --type
      timeseries  (default) events by time: --type, --from, --to, --source-from,
                  --source-to, --order, --order-by, --id, --payload, --unique-type
      server      events of one server by id: --server-id (required), --persisted
    """  # noqa: D301  # \b is meant: click does not fill the paragraph after it
    params = _query_params(kind, options)
    if is_all and limit is not None:
        raise click.UsageError("Give either --limit or --all, not both.")
    is_terminal = sys.stdout.isatty()
    as_table = is_terminal if format_ is None else format_ == "table"
    is_cut = is_terminal and limit is None and not is_all
    most = limits.MAX_TERMINAL_EVENTS if is_cut else limit
    n_printed = run(_query(server, params, most, as_table))
    if is_cut and n_printed == most:
        is_newest = getattr(params, "order", None) is model.Order.DESCENDING
        which = "newest" if is_newest else "first"
        report(f"only the {which} {most} events, there may be more: see --all and --limit")


def _query_params(kind: str, options: dict[str, Any]) -> model.QueryParams:
    made = _PARAMS[kind]
    fields = {
        name: i for name, i in options.items() if i is not None and i is not False and i != ()
    }
    for param in click.get_current_context().command.params:
        if param.name in fields and param.name not in made.__struct_fields__:
            raise click.UsageError(f"{param.opts[0]} does not apply to a query of {kind!r}.")
    if kind == "server" and "server_id" not in fields:
        raise click.UsageError("A query of 'server' needs --server-id.")
    if "order" in fields:
        fields["order"] = _ORDERS[fields["order"]]
    if "order_by" in fields:
        fields["order_by"] = _BY[fields["order_by"]]
    params: model.QueryParams = made(**fields)
    return params


async def _query(
    server: Target, params: model.QueryParams, limit: int | None, as_table: bool
) -> int:
    """Print the events of a query; returns how many."""
    write, chunk_events = (
        (output.write_table, limits.MAX_TABLE_ROWS) if as_table else (output.write_jsonl, 256)
    )
    n_printed = 0
    chunk: list[model.Event] = []

    def write_chunk() -> None:
        nonlocal n_printed
        if sys.stdout.isatty():
            bar.close()  # events take its place
        write(chunk)
        n_printed += len(chunk)
        chunk.clear()

    is_slow = getattr(params, "payload", None) is not None
    with contextlib.ExitStack() as bar:
        on_progress = bar.enter_context(output.progress("query", is_shown=is_slow))
        async with await server.connect() as client:
            async for event in search(client, params, limit, on_progress):
                chunk.append(event)
                if len(chunk) == chunk_events:
                    write_chunk()
        if chunk:
            write_chunk()
    return n_printed
