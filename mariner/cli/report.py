"""``mariner report``: reports about stored events, made by Spark.

Spark, and what of ours needs it (``mariner_spark``), is imported when the command runs: the
other commands neither need the extra ``spark`` nor wait for it.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import EventType, Timestamp
from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError
from mariner.cli.servers import read_token, server_options
from mariner.cli.values import (
    event_types_option,
    format_timestamp,
    parse_timestamp,
    value_option,
)
from mariner.errors import MarinerError

if TYPE_CHECKING:
    from mariner_spark.reports.making import Order

NAMES: Final = (
    *("activity", "latest", "values", "gaps", "latency"),
    *("availability", "runs", "top"),
)
"""Reports, as ``mariner_spark.reports.catalogue`` has them."""

_ALL: Final = "all"
_PORT: Final = 23014
_ADDRESS: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
_TIME_HELP: Final = "ISO 8601 (UTC where it names no zone), or seconds since 1970-01-01."
_TIME: Final[dict[str, Any]] = {"metavar": "TIME", "callback": value_option(parse_timestamp)}
# the last line of a Python traceback, if it is one of our errors
_PYTHON_ERROR: Final = re.compile(r"(?:mariner|mariner_spark|eventer_bridge)\.[\w.]+: (.*)")

# option of the command: option of the data source
_GATEWAY: Final = {
    "name": "client_name",
    "token": "token",
    "tls": "tls",
    "tls_ca": "tls_ca",
    "cert": "cert",
    "key": "key",
}


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice((*NAMES, _ALL)))
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Events of this store, whether a gateway has it open or not.",
)
@click.option(
    "--gateway",
    metavar="HOST[:PORT]",
    help=f"Events of the gateway there (port {_PORT}), as far as --name may query them.",
)
@click.option("--from", "first", **_TIME, help=f"Timestamp at or after this. {_TIME_HELP}")
@click.option("--to", "last", **_TIME, help=f"Timestamp at or before this. {_TIME_HELP}")
@click.option(
    "--types",
    metavar="TYPE",
    multiple=True,
    callback=event_types_option,
    help="Event type, its segments joined by '/'; '?' stands for one segment, '*' at the end"
    " for any number. Or a JSON array. Can be given several times. All types, unless told.",
)
@click.option(
    "--value-path",
    metavar="PATH",
    default="$.value",
    show_default=True,
    help="Where the number of a JSON payload is.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Segments of a type prefix.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default="report",
    show_default=True,
    help="Where the files go; those of an earlier report are replaced.",
)
def report(  # noqa: PLR0917  # click gives all of them by name
    names: Sequence[str],
    store: Path | None,
    gateway: str | None,
    first: Timestamp | None,
    last: Timestamp | None,
    types: tuple[EventType, ...] | None,
    value_path: str,
    depth: int,
    out: Path,
    **access: Any,
) -> None:
    """Make reports about stored events: tables, and a page for the browser.

    \b
      activity      events by type prefix and time
      latest        the last event of each type
      values        numbers of payloads by type and time
      gaps          types that were silent for longer than expected
      latency       from the source timestamp into the store, by type prefix
      availability  how long engines and clients were up
      runs          each time that they were
      top           the largest types

    All of them, unless some are named. Each becomes NAME.csv and NAME.parquet; report.html
    shows them together, and needs no network. It is made by Spark on this machine: the extra
    'spark' has to be installed (pip install 'mariner-gateway[spark]').

    --types does not apply to availability and runs, which need all events of a server.

    Exit code 0: the reports are made, also of no events; 1: Spark, the store or the gateway
    failed; 2: wrong usage.
    """  # noqa: D301  # \b is meant: click does not fill the paragraph after it
    if (store is None) == (gateway is None):
        raise click.UsageError("Expected either --store or --gateway.")
    try:
        from mariner_spark.reports import making, reading  # noqa: PLC0415  # see the module
    except ImportError as e:
        raise CommandError(
            f"reports need the extra 'spark' (pip install 'mariner-gateway[spark]'): {e}",
            EXIT_USAGE,
        ) from e
    if store is not None:
        source = reading.Source(str(store), options={"path": str(store)})
    else:
        assert gateway is not None
        source = reading.Source(gateway, options=_gateway_options(gateway, access))
    selection = reading.Selection(
        types=types,
        first=None if first is None else format_timestamp(first),
        last=None if last is None else format_timestamp(last),
    )
    chosen = () if _ALL in names else tuple(dict.fromkeys(names))
    _make(making.Order(chosen, source, selection, value_path, depth, out))


def _gateway_options(address: str, access: Mapping[str, Any]) -> dict[str, str]:
    """Options of the data source for a gateway."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise click.BadParameter(f"{address!r}: expected HOST or HOST:PORT", param_hint="--gateway")
    if access["name"] is None:
        raise click.UsageError("--gateway needs --name: who we are to it.")
    token = access["token"]
    if access["token_file"] is not None:
        if token is not None:
            raise click.UsageError("--token and --token-file: only one of them can be given.")
        token = read_token(access["token_file"])
    given = {**access, "token": token, "tls": "true" if access["tls"] else None}
    options = {"host": match[1] or match[2], "port": match[3] or str(_PORT)}
    for name, option in _GATEWAY.items():
        if given[name] is not None:
            options[option] = str(given[name])
    return options


def _access_options() -> list[click.Option]:
    """Options that tell a gateway who we are, and how to get there safely."""
    options = [i for i in server_options("MARINER", _PORT) if i.name not in {"host", "port"}]
    for option in options:
        option.required = False  # of a store or a lake there is nobody to tell
    return options


report.params += _access_options()


def _reason(error: Exception) -> str:
    """What went wrong in the data source, in one line; Spark's own words for the rest."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = [match[1] for line in lines if (match := _PYTHON_ERROR.match(line))]
    return found[-1] if found else lines[0] if lines else type(error).__name__


def _make(order: "Order") -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415  # see the module

    from mariner_spark.errors import MarinerSparkError, OptionError  # noqa: PLC0415
    from mariner_spark.reports import making  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    try:
        with Progress(
            *columns, console=console, transient=True, disable=not sys.stderr.isatty()
        ) as progress:
            task = progress.add_task("", total=making.count_steps(order.names))

            def on_step(what: str) -> None:
                progress.update(
                    task, description=what, advance=1 if progress.tasks[task].description else 0
                )

            page = making.make(order, on_step)
    except OptionError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    except (MarinerSparkError, EventerBridgeError, MarinerError) as e:
        raise CommandError(str(e), EXIT_FAILED) from e
    except PySparkException as e:
        raise CommandError(_reason(e), EXIT_FAILED) from e
    except OSError as e:
        raise CommandError(f"{e.filename}: {e.strerror}", EXIT_FAILED) from e
    output.write_text(str(page))
