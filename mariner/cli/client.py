"""The commands ``ping``, ``register``, ``query`` and ``subscribe``, for any kind of server.

Each connects, does its work and exits; ``target.command_of`` adds the options of a server.
"""

import asyncio
import difflib
import math
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import click

from eventer_bridge import model
from mariner.cli import output
from mariner.cli.query import SERVER_ID, query, types_option
from mariner.cli.register import input_bytes, read_batches, register_events
from mariner.cli.run import EXIT_FAILED, CommandError, report, run
from mariner.cli.target import Target, TargetClient, option_of
from mariner.cli.values import VALUES
from mariner.errors import ClosedError, ConnectionLostError

EVERYTHING: Final[tuple[model.EventType, ...]] = (("*",),)

# --- ping -----------------------------------------------------------------------------------

_MS: Final = 1000
_SECONDS: Final = click.FloatRange(0, min_open=True)


@click.command()
@option_of("--count", click.IntRange(0), 4, "Number of pings; 0: until interrupted.")
@option_of("--interval", click.FloatRange(0), 1.0, "Seconds between pings.")
@option_of("--timeout", _SECONDS, 10.0, "Seconds to wait for the connection, and for each answer.")
@click.option(
    "--json", "is_json", is_flag=True, help="Print JSON: a line for each answer, and a summary."
)
def ping(server: Target, count: int, interval: float, timeout: float, *, is_json: bool) -> None:
    """Measure the round-trip time to a server.

    With --count 1 it is a health check. SIGINT ends it with the summary.

    Exit code 0: at least one ping was answered; 1: none was, or the connection failed or was
    lost.
    """
    run(_Pings(count, interval, timeout, is_json=is_json).run(server))


class _Pings:
    """Pings until so many are sent (0: no limit), interrupted, or the connection is lost."""

    def __init__(self, count: int, interval_s: float, timeout_s: float, *, is_json: bool) -> None:
        self._count, self._interval_s, self._timeout_s = count, interval_s, timeout_s
        self._is_json = is_json
        self._n_sent = 0
        self._times_s: list[float] = []

    async def run(self, server: Target) -> None:
        async with await server.connect(timeout_s=self._timeout_s) as client:
            if not self._is_json:
                output.write_text(f"PING {client.address}: connected, status {client.status.name}")
            started = time.monotonic()
            error = None
            try:
                await _until_interrupted(self._send(client))
            except ClosedError as e:
                error = e
            self._print_summary(client, (time.monotonic() - started) * _MS)
            if error is not None:
                raise error
            if not self._times_s:
                raise CommandError("", EXIT_FAILED)

    async def _send(self, client: TargetClient) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while not self._count or self._n_sent < self._count:
            await asyncio.sleep(next_at - loop.time())
            next_at = max(next_at + self._interval_s, loop.time())
            self._n_sent += 1
            seq = self._n_sent
            try:
                async with asyncio.timeout(self._timeout_s):
                    time_s = await client.ping()
            except asyncio.CancelledError:
                self._n_sent -= 1  # interrupted before its timeout: not lost
                raise
            except TimeoutError:
                report(f"no answer from {client.address}: seq={seq} within {self._timeout_s:g} s")
                continue
            self._times_s.append(time_s)
            time_ms = time_s * _MS
            if self._is_json:
                output.write_json({"seq": seq, "time_ms": round(time_ms, 3)})
            else:
                output.write_text(f"answer from {client.address}: seq={seq} time={time_ms:.3f} ms")

    def _print_summary(self, client: TargetClient, duration_ms: float) -> None:
        n_sent, n_received, figures = self._n_sent, len(self._times_s), self._figures_ms()
        if self._is_json:
            of = {"address": client.address, "status": client.status.name}
            counts = {"transmitted": n_sent, "received": n_received}
            times = {"duration_ms": round(duration_ms, 3), "rtt_ms": figures}
            output.write_json({**of, **counts, **times})
            return
        loss = 100 * (n_sent - n_received) / max(n_sent, 1)
        output.write_text(f"\n--- {client.address} ping statistics ---")
        sent = f"{n_sent} transmitted, {n_received} received, {loss:.4g}% loss"
        output.write_text(f"{sent}, time {duration_ms:.0f} ms")
        if figures is not None:
            text = "/".join(f"{i:.3f}" for i in figures.values())
            output.write_text(f"rtt {'/'.join(figures)} = {text} ms")

    def _figures_ms(self) -> dict[str, float] | None:
        times_s = self._times_s
        if not times_s:
            return None
        average = math.fsum(times_s) / len(times_s)
        variance = math.fsum((i - average) ** 2 for i in times_s) / len(times_s)
        figures = (min(times_s), average, max(times_s), math.sqrt(variance))
        names = ("min", "avg", "max", "mdev")
        return dict(zip(names, (round(i * _MS, 3) for i in figures), strict=True))


async def _until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; SIGINT cancels it."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


# --- register, subscribe ----------------------------------------------------------------------


def _check_options(
    ctx: click.Context, _param: click.Parameter, texts: Sequence[str]
) -> Sequence[str]:
    """Unknown options are arguments at first (``VALUES``); those that are no number are refused."""
    for text in texts:
        if text == "-h":
            click.echo(ctx.get_help())
            ctx.exit()
        if text.startswith("-") and not text[1:2].isdecimal():
            known = [name for i in ctx.command.params for name in i.opts if name.startswith("--")]
            alike = difflib.get_close_matches(text, known)
            hint = f"No such option: {text} (a payload that begins so is quoted: '\"{text}\"')"
            raise click.NoSuchOption(text, hint, possibilities=alike, ctx=ctx)
    return texts


@click.command(context_settings=VALUES)
@option_of(
    "--batch",
    click.IntRange(1),
    1,
    "Events per request: all of them are registered or none, with one timestamp.",
)
@click.option("--quiet", is_flag=True, help="Do not print the registered events.")
@click.argument("events", metavar="[TYPE PAYLOAD | EVENT...]", nargs=-1, callback=_check_options)
def register(server: Target, batch: int, quiet: bool, events: Sequence[str]) -> None:
    """Register an event of a TYPE with a PAYLOAD, or EVENTs, or the lines of standard input.

    \b
      mariner register lamp/1 on
      mariner register lamp/1 '{"on": true}'

    PAYLOAD is JSON (null, too), or else a text: on is "on". What begins with {, [ or " must be
    JSON.

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
    batches = read_batches(arguments, batch)
    n_registered = 0

    def tell(registered: Sequence[model.Event]) -> None:
        nonlocal n_registered
        n_registered += len(registered)
        of_input = None if arguments else input_bytes()
        on_progress(*(of_input or (n_registered, None)))

    with output.progress("register", is_shown=quiet) as on_progress:
        async with await server.connect() as client:
            await register_events(client, batches, tell if quiet else output.write_jsonl)


def subscribe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ``subscribe``."""
    for option in (
        click.option("--count", type=click.IntRange(1), help="End after this many events."),
        click.option(
            "--persisted",
            is_flag=True,
            help="Print events when they are persisted, not before. If the server can"
            " replay, that is always so.",
        ),
        click.option("--server-id", type=SERVER_ID, help="Only events of this server."),
        types_option,
    ):
        command = option(command)
    return command


@click.command()
@subscribe_options
def subscribe(
    server: Target,
    event_types: tuple[model.EventType, ...],
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
    event_types: tuple[model.EventType, ...],
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
