"""``mariner rsb listen|send``: a participant of an RSB bus.

Both connect to its server: a gateway (``event_core.rsb``), or any other of RSB's socket transport.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import click
import msgspec

from eventer_bridge.errors import ClosedError, ConnectError, InvalidEventError
from eventer_bridge.net.stream import Pause
from eventer_bridge.rsb import codec, payloads
from eventer_bridge.rsb.event import Informer, MetaData, RsbEvent, Scope, parse_scope
from eventer_bridge.rsb.payloads import encode_value, schema_of
from eventer_bridge.rsb.transport import DEFAULT_PORT, EventsCb, Received, RsbConnection, connect
from mariner import limits
from mariner.cli import output
from mariner.cli.register import read_items
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, report, run
from mariner.cli.target import bus_options
from mariner.cli.values import VALUES, Parsed


@click.group()
def rsb() -> None:
    """Listen to an RSB bus (Robotics Service Bus), or send to it."""


def _scope(text: str) -> Scope:
    return parse_scope(text if text.endswith("/") else text + "/")


def _options(function: Callable[..., None]) -> Callable[..., None]:
    scope = click.argument("scope", type=Parsed(_scope))
    return bus_options(DEFAULT_PORT)(scope(function))


@rsb.command()
@_options
@click.option("--count", type=click.IntRange(1), help="End after this many events.")
def listen(host: str, port: int, scope: Scope, count: int | None) -> None:
    """Print the events on SCOPE, and below it, as JSON lines, until interrupted.

    \b
      {"scope": "/a/", "rsb": {"id": ..., "schema": "double", ...}, "value": 21.5}

    Values of wire schema bytes, and of unknown wire schemas, are base64. A line on standard
    error says when it is listening. It does not reconnect.

    Exit code 0: --count events were printed; 1: the connection failed or was lost; 130:
    interrupted.
    """  # noqa: D301  # \b is meant: click does not fill the paragraph after it
    run(_listen(host, port, scope, count))


@rsb.command(context_settings=VALUES)
@_options
@click.option(
    "--schema",
    help="Wire schema of the values. Default: void, bool, int64, double or utf-8-string,"
    " whichever fits the value.",
)
@click.option("--method", help="Method of the events, such as REQUEST.")
@click.option(
    "--info",
    "infos",
    metavar="KEY=VALUE",
    multiple=True,
    help="User info of the events. Can be repeated.",
)
@click.argument("values", metavar="[VALUE]...", nargs=-1)
def send(
    *,
    host: str,
    port: int,
    scope: Scope,
    schema: str | None,
    method: str | None,
    infos: Sequence[str],
    values: Sequence[str],
) -> None:
    """Send an event to SCOPE for each VALUE; without any, for each line of standard input.

    A value is JSON: null, true, 21.5, "text". Values of wire schema bytes, and of unknown wire
    schemas, are base64 strings.

    RSB has no answers: all that can be known is that the server has read everything.

    Exit code 0: the server has read everything; 1: the connection failed or was lost; 2: wrong
    input (in an argument: nothing is sent; in a line: those before it are).
    """
    meta = MetaData(user_infos=_parse_infos(infos))
    informer = Informer(scope)

    def create(label: str, text: str | bytes) -> RsbEvent:
        try:
            value = msgspec.json.decode(text)
            chosen = schema if schema is not None else schema_of(value)
            if chosen is None:
                raise InvalidEventError("expected null, true, false, a number or a string")
            data = encode_value(chosen, value)
        except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidEventError) as e:
            raise CommandError(f"{label}: {e}", EXIT_USAGE) from e
        return informer.create(scope, chosen, data, method=method, meta=meta)

    events = [create(f"argument {i}", value) for i, value in enumerate(values, 1)]
    run(_send(host, port, read_items(events, create)))


def _parse_infos(infos: Sequence[str]) -> dict[str, str]:
    pairs = [info.partition("=") for info in infos]
    for key, separator, _ in pairs:
        if not separator:
            raise click.BadParameter(f"{key!r}: expected KEY=VALUE", param_hint="--info")
    return {key: value for key, _, value in pairs}


async def _connect(host: str, port: int, on_events: EventsCb) -> RsbConnection:
    try:
        return await connect(host, port, on_events)
    except ConnectError as e:
        raise CommandError(str(e), EXIT_FAILED) from e


async def _send(host: str, port: int, events: AsyncIterator[RsbEvent]) -> None:
    async with await _connect(host, port, lambda _connection, _batch: None) as connection:
        try:
            async for event in events:
                connection.write(codec.encode_frame(codec.encode(event.sent())))
                await connection.drain()
        except ClosedError as e:
            raise CommandError(str(e), EXIT_FAILED) from e
        except InvalidEventError as e:
            raise CommandError(str(e), EXIT_USAGE) from e
        finally:
            connection.close()


async def _listen(host: str, port: int, scope: Scope, count: int | None) -> None:
    queue: asyncio.Queue[RsbEvent | None] = asyncio.Queue()

    def on_events(connection: RsbConnection, batch: Sequence[Received]) -> None:
        for received in batch:
            if scope.includes(received.event.scope):
                queue.put_nowait(received.event.delivered(received.time_us))
        if queue.qsize() >= limits.MAX_PRINTING_EVENTS:
            connection.pause_reading(Pause.USER)

    async with await _connect(host, port, on_events) as connection:
        report(f"listening on {scope} at {host}:{port}")
        ending = asyncio.create_task(connection.wait_closing())
        ending.add_done_callback(lambda task: queue.put_nowait(None))
        printed = 0
        while printed != count:
            event = await queue.get()
            if event is None:
                raise CommandError(f"{host}:{port}: {connection.close_reason}", EXIT_FAILED)
            data = payloads.to_json(event) or payloads.to_json_as_bytes(event)
            scope_of = msgspec.json.encode({"scope": str(event.scope)}).decode()
            output.write_text(f"{scope_of[:-1]},{data[1:].decode()}")
            printed += 1
            if queue.empty():
                connection.resume_reading(Pause.USER)
