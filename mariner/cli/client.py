"""The commands ``ping``, ``register``, ``query`` and ``subscribe``, for any kind of server.

Each connects, does its work and exits. :func:`mariner.cli.target.command_of` adds the options of a
server.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from eventer_bridge import moments
from eventer_bridge.model import (
    Event,
    EventType,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
)
from mariner.cli import output
from mariner.cli.ping import JsonPrinter, Printer, ping_server
from mariner.cli.register import parse_arguments, read_stdin, register_events
from mariner.cli.run import report, run
from mariner.cli.target import Target
from mariner.cli.values import EVENT_IDS, event_types_option, parse_payload, value_option
from mariner.errors import ConnectionLostError

EVERYTHING: Final[tuple[EventType, ...]] = (("*",),)

_TYPE_HELP = (
    "Event type: segments joined by '/'; '?' matches one segment, '*' at the end any number."
    ' Or a JSON array: \'["a/b", "*"]\'. Can be repeated. Default: all types.'
)
_SERVER_ID: Final = click.IntRange(0)

_TIME_HELP = (
    "ISO 8601 (UTC if it names no zone; eight digits are a date), or seconds since 1970-01-01."
)

_types = click.option(
    "--type",
    "event_types",
    metavar="TYPE",
    multiple=True,
    callback=event_types_option,
    help=_TYPE_HELP,
)


_TIME: Final[dict[str, Any]] = {"metavar": "TIME", "callback": value_option(moments.parse)}
_LAST: Final[dict[str, Any]] = {"metavar": "TIME", "callback": value_option(moments.parse_last)}
_LAST_HELP: Final = "at or before this; a date includes its whole day."


@click.command()
@click.option(
    "--count",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Number of pings; 0: until interrupted.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds between pings.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the connection, and for each answer.",
)
@click.option(
    "--json", "is_json", is_flag=True, help="Print JSON: a line for each answer, and a summary."
)
def ping(server: Target, count: int, interval: float, timeout: float, *, is_json: bool) -> None:
    """Measure the round-trip time to a server.

    With --count 1 it is a health check. SIGINT ends it with the summary.

    Exit code 0: at least one ping was answered; 1: none was, or the connection failed or was
    lost.
    """
    printer = JsonPrinter() if is_json else Printer()
    run(ping_server(server, printer, count=count, interval_s=interval, timeout_s=timeout))


@click.command()
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Events per request: all of them are registered or none, with one timestamp.",
)
@click.option("--quiet", is_flag=True, help="Do not print the registered events.")
@click.argument("events", metavar="[EVENT]...", nargs=-1)
def register(server: Target, batch: int, quiet: bool, events: Sequence[str]) -> None:
    """Register events: the arguments if there are any, else the lines of standard input.

    Each EVENT or line is a JSON object:

    \b
      {"type": "a/b", "payload": {"value": 1}, "source_timestamp": "2024-05-01T12:00:00Z"}

    \b
      type              segments joined by '/', or an array of segments
      payload           any JSON value; null or omitted: no payload. An object with the
                        key "payload_type" is a payload of the Mariner protocol:
                        {"payload_type": "json", "data": ...} or
                        {"payload_type": "binary", "data_type": "...", "data": "<base64>"}
      source_timestamp  ISO 8601 (UTC if it names no zone), seconds since 1970-01-01,
                        {"s": ..., "us": ...}, null or omitted

    "id" and "timestamp" are ignored, so that the output of query can be registered again.
    The registered events are printed as JSON lines, in the order of the input.

    A wrong line ends the command: the lines before it are registered, those after it are not.
    If an argument is wrong, nothing is registered. If the server refuses an event, nothing
    more is sent, but up to 64 requests that were already sent may still succeed, and are printed.

    If the server's disk fails, or the connection is lost before it answers, nobody knows
    whether the events of a request are registered: a line on standard error says so. Registering
    them again may store them twice.

    Exit code 0: everything is registered; 1: refused, or no connection; 2: wrong input; 4: it
    is not known whether some of the events are registered.
    """  # noqa: D301  # \b is meant: click does not fill the paragraph after it
    run(_register(server, batch, quiet, events))


async def _register(server: Target, batch: int, quiet: bool, arguments: Sequence[str]) -> None:
    labelled = parse_arguments(arguments) if arguments else read_stdin()
    async with await server.connect() as client:
        await register_events(client, labelled, batch=batch, quiet=quiet)


@click.command()
@click.argument("kind", type=click.Choice(["latest", "timeseries", "server"]), default="timeseries")
@_types
@click.option("--from", **_TIME, help=f"Timestamp at or after this. {_TIME_HELP}")
@click.option("--to", **_LAST, help=f"Timestamp {_LAST_HELP}")
@click.option("--source-from", **_TIME, help=f"Source timestamp at or after this. {_TIME_HELP}")
@click.option("--source-to", **_LAST, help=f"Source timestamp {_LAST_HELP}")
@click.option("--order", type=click.Choice(["asc", "desc"]), help="Default: desc.")
@click.option("--order-by", type=click.Choice(["timestamp", "source"]), help="Default: timestamp.")
@click.option(
    "--id",
    "ids",
    **EVENT_IDS,
    help="Only the event with this id. Can be repeated.",
)
@click.option(
    "--payload",
    metavar="JSON",
    callback=value_option(parse_payload),
    help="Only events with this payload, written as for register (but null is the JSON value)."
    " JSON values are compared: 1 equals 1.0, the order of keys does not matter.",
)
@click.option(
    "--unique-type",
    is_flag=True,
    help="Only the first event of each type, in the chosen order.",
)
@click.option("--server-id", type=_SERVER_ID, help="Server whose events are queried.")
@click.option("--persisted", is_flag=True, help="Only events that are persisted.")
@click.option(
    "--limit", type=click.IntRange(0), help="Print at most this many events. Default: all."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "table"]),
    help="Default: table in a terminal, jsonl (one event per line) elsewhere.",
)
def query(
    server: Target, kind: str, limit: int | None, format_: str | None, **options: Any
) -> None:
    """Query registered events: all of them, or up to --limit.

    \b
      latest      the latest event of each type: --type
      timeseries  (default) events by time: --type, --from, --to, --source-from,
                  --source-to, --order, --order-by, --id, --payload, --unique-type
      server      events of one server by id: --server-id (required), --persisted
    """  # noqa: D301  # as above
    params = _query_params(kind, options)
    as_table = sys.stdout.isatty() if format_ is None else format_ == "table"
    run(_query(server, params, limit, as_table))


# option of the command to field of the query
_TIMESERIES: Final = {
    "event_types": "event_types",
    "from": "t_from",
    "to": "t_to",
    "source_from": "source_t_from",
    "source_to": "source_t_to",
    "order": "order",
    "order_by": "order_by",
    "ids": "ids",
    "payload": "payload",
    "unique_type": "unique_type",
}
_OPTIONS: Final = {"event_types": "--type", "ids": "--id"}
_FIELDS: Final = {
    "latest": {"event_types": "event_types"},
    "timeseries": _TIMESERIES,
    "server": {"server_id": "server_id", "persisted": "persisted"},
}
_PARAMS: Final[dict[str, Any]] = {
    "latest": QueryLatestParams,
    "timeseries": QueryTimeseriesParams,
    "server": QueryServerParams,
}
_VALUES: Final[dict[object, object]] = {
    "asc": Order.ASCENDING,
    "desc": Order.DESCENDING,
    "timestamp": OrderBy.TIMESTAMP,
    "source": OrderBy.SOURCE_TIMESTAMP,
}


def _query_params(kind: str, options: dict[str, Any]) -> QueryParams:
    fields = {}
    for option, value in options.items():
        if value is None or value is False:
            continue
        field = _FIELDS[kind].get(option)
        if field is None:
            name = _OPTIONS.get(option, "--" + option.replace("_", "-"))
            raise click.UsageError(f"{name} does not apply to a query of {kind!r}.")
        is_choice = option in {"order", "order_by"}
        fields[field] = _VALUES[value] if is_choice else value
    if kind == "server" and "server_id" not in fields:
        raise click.UsageError("A query of 'server' needs --server-id.")
    params: QueryParams = _PARAMS[kind](**fields)
    return params


async def _query(server: Target, params: QueryParams, limit: int | None, as_table: bool) -> None:
    write, chunk_events = (
        (output.write_table, output.TABLE_ROWS) if as_table else (output.write_jsonl, 256)
    )
    chunk: list[Event] = []
    async with await server.connect() as client:
        async for event in client.query_all(params, limit=limit):
            chunk.append(event)
            if len(chunk) == chunk_events:
                write(chunk)
                chunk.clear()
    if chunk:
        write(chunk)


def subscribe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ``subscribe``."""
    for option in (
        click.option("--count", type=click.IntRange(1), help="End after this many events."),
        click.option(
            "--persisted", is_flag=True, help="Print events when they are persisted, not before."
        ),
        click.option("--server-id", type=_SERVER_ID, help="Only events of this server."),
        _types,
    ):
        command = option(command)
    return command


@click.command()
@subscribe_options
def subscribe(
    server: Target,
    event_types: tuple[EventType, ...] | None,
    server_id: int | None,
    persisted: bool,
    count: int | None,
) -> None:
    """Print new events as JSON lines, until interrupted.

    A line on standard error says when the subscription is active. It does not reconnect.

    Exit code 0: --count events were printed; 1: the connection failed or was lost; 130:
    interrupted.
    """
    run(subscribe_to(server, event_types or EVERYTHING, server_id, persisted, count))


async def subscribe_to(
    server: Target,
    event_types: tuple[EventType, ...],
    server_id: int | None,
    persisted: bool,
    count: int | None,
) -> None:
    """Print new events until the connection is lost, or so many of them."""
    async with await server.connect(
        subscriptions=event_types, server_id=server_id, persisted=persisted
    ) as client:
        report(f"subscribed at {client.address}")
        remaining = count
        async for events in client.events():
            output.write_jsonl(events[:remaining])
            if remaining is not None:
                remaining -= len(events)
                if remaining <= 0:
                    return
        raise ConnectionLostError(f"{client.address}: {client.close_reason}")


COMMANDS: Final = (ping, register, query, subscribe)
