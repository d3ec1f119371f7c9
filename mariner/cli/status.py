"""``mariner status``."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.live import Live

from eventer_bridge.errors import ConfigurationError, ControlError
from mariner.cli import output, running
from mariner.cli.run import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from mariner.cli.status_table import render
from mariner.gateway.status import GatewayStatus, ask, with_rates

_FIRST_S: Final = 1.0
"""Seconds between the two answers that the first rates come from."""


@click.command()
@click.option(
    "--conf",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Configuration file of the running gateway.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, a line for each status.")
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two statuses of --watch.",
)
def status(path: Path, is_json: bool, watch: bool, interval_s: float) -> None:
    """Show what a running gateway is doing.

    Its state, store, connections, clients with their rates and how much of their quotas they use,
    the connections that read too slowly, cursors, remote servers, modules, days that certificates
    are valid, and the last errors. At most 1,000 clients and 1,000 cursors, those that are furthest
    behind first. Rates are measured for a second.

    Nothing is measured while nobody asks. Only the user of the gateway (and root) may ask.

    Exit code 0: shown; 1: there is no gateway, or it did not answer; 2: the configuration
    cannot be read, or has neither a store nor `control`.
    """
    try:
        socket, to = running.find(path)
        with _screen(is_live=watch and not is_json and sys.stdout.isatty()) as show:
            before = ask(socket, to)
            wait_s = _FIRST_S
            while True:
                time.sleep(wait_s)
                after = ask(socket, to)
                rated = with_rates(before, after)
                if is_json:
                    output.write_text(msgspec.json.encode(rated).decode())
                else:
                    show(rated)
                if not watch:
                    return
                before, wait_s = after, interval_s
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    except ControlError as e:
        raise CommandError(str(e), EXIT_FAILED) from e
    except KeyboardInterrupt:
        raise CommandError("", EXIT_INTERRUPTED) from None


@contextlib.contextmanager
def _screen(*, is_live: bool) -> Iterator[Callable[[GatewayStatus], None]]:
    """Where it is shown: line by line, or on a page of a terminal that is renewed."""
    if not is_live:
        yield lambda status: output.write_rich(render(status))
        return
    with Live(screen=True, auto_refresh=False) as live:
        yield lambda status: live.update(render(status), refresh=True)
