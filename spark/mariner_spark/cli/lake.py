"""``mariner lake``: events as Parquet files, for Spark and others."""

import time
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eventer_bridge.model import Timestamp
from mariner.cli import output
from mariner.cli.mariner_server import MARINER
from mariner.cli.progress import progress
from mariner.cli.run import printable
from mariner.cli.target import Target, command_of
from mariner.cli.values import format_timestamp
from mariner_spark.cli.spark import spark_errors, spark_session, without_secrets

if TYPE_CHECKING:
    from mariner_spark.lake.info import LakeInfo

_LAKE = click.argument("path", metavar="LAKE")


@click.group()
def lake() -> None:
    """Keep events as Parquet files, for Spark and others.

    A LAKE is a directory, or a location in an object store: s3a://..., gs://..., abfss://...
    """


@click.command()
@_LAKE
@click.option("--follow", is_flag=True, help="Go on with new events until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="With --follow: seconds between looking for new events. Each batch makes new files.",
)
@click.option(
    "--server-id",
    "server_ids",
    type=int,
    multiple=True,
    help="Only events of this server. Can be repeated. Default: all servers whose events this"
    " client may see.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Add at most this many events at once: they stay if a later batch fails. Counting them"
    " takes as long as reading them. Default: all in one batch; if it fails, none of them stay.",
)
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Go on if the gateway deleted events (retention) before they were read"
    " (failOnDataLoss=false).",
)
@click.option(
    "--value-path",
    metavar="PATH",
    help="Path in JSON payloads to the numbers of the column 'value'. Default: the lake's path,"
    " or $.value for a new lake.",
)
def ingest(
    *,
    server: Target,
    path: str,
    follow: bool,
    interval: float,
    server_ids: tuple[int, ...],
    batch: int | None,
    allow_loss: bool,
    value_path: str | None,
) -> None:
    """Append the events of a gateway that LAKE does not have yet.

    Makes the lake if there is none. Adds each event once, however often you run it and whichever
    gateway it comes from: --host can name several, separated by commas (a,b:23015). Once it has
    begun, it waits for a gateway that is away. Run `mariner lake compact` now and then.

    Exit code 0: added; 1: it failed, and what was added before stays; 2: wrong usage; 130:
    interrupted (SIGINT, SIGTERM).
    """
    source = _source_options(server)
    if server_ids:
        source["servers"] = ",".join(map(str, server_ids))
    if batch is not None:
        source["maxEventsPerBatch"] = str(batch)
    if allow_loss:
        source["failOnDataLoss"] = "false"
    started = time.monotonic()
    with spark_errors():
        from mariner_spark.lake.info import info  # noqa: PLC0415  # only for this command

        added = _ingest(path, source, value_path, interval if follow else None)
        found = info(path)
    seconds = time.monotonic() - started
    output.write_text(
        f"{without_secrets(path)}: {added} events added, {found.rows} events in"
        f" {found.segments} files, {seconds:.1f} s"
    )


def _ingest(
    path: str, source: dict[str, str], value_path: str | None, interval_s: float | None
) -> int:
    """Ingest, and show the progress."""
    from mariner_spark.lake import ingest as ingestion  # noqa: PLC0415

    ingestion.check(path, source, value_path)
    with Console(stderr=True).status("Spark starts") as status, spark_session() as (spark, check):

        def on_progress(rows: int) -> None:
            status.update(f"{rows} events added")
            check()

        return ingestion.ingest(
            spark,
            path,
            source,
            value_path=value_path,
            interval_s=interval_s,
            on_progress=on_progress,
        )


@lake.command()
@_LAKE
@click.option(
    "--grace-hours",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    help="Keep replaced files for this long: longer than any reader takes.",
)
def compact(path: str, grace_hours: float) -> None:
    """Merge small files into large ones, and delete files that are no longer needed.

    Others may read LAKE and add to it meanwhile.

    Exit code 0: done; 1: it failed, and the lake is intact; 2: there is no lake, or wrong usage;
    130: interrupted.
    """
    started = time.monotonic()
    with spark_errors():
        from mariner_spark.lake import compact as compaction  # noqa: PLC0415

        with progress("compact") as on_progress:
            done = compaction.compact(path, grace_s=3600 * grace_hours, on_progress=on_progress)
    seconds = time.monotonic() - started
    output.write_text(
        f"{without_secrets(path)}: {done.replaced} files became {done.written},"
        f" {done.deleted} deleted, {seconds:.1f} s"
    )


@lake.command()
@_LAKE
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object.")
def info(path: str, is_json: bool) -> None:
    """Show what is in LAKE: events, files, times, and how far each server is.

    Exit code 0: shown; 1: it cannot be read; 2: there is no lake, or wrong usage.
    """
    with spark_errors():
        from mariner_spark.lake.info import info as read_info  # noqa: PLC0415

        found = read_info(path)
    if is_json:
        output.write_text(msgspec.json.encode(found).decode())
    else:
        _write_info(path, found)


lake.add_command(command_of(MARINER, ingest))


def _source_options(server: Target) -> dict[str, str]:
    """Options of the data source for a gateway."""
    options = {
        "host": server.host,
        "port": str(server.port),
        "client_name": server.name,
        "token": server.token,
        "tls": "true" if server.tls else None,
        "tls_ca": server.tls_ca,
        "cert": server.cert,
        "key": server.key,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def _write_info(path: str, found: "LakeInfo") -> None:
    rows = [
        ("lake", without_secrets(path)),
        ("events", str(found.rows)),
        ("files", f"{found.segments}, {found.small_segments} of them small, {found.bytes} bytes"),
        ("days", str(found.days)),
    ]
    if found.first is not None and found.last is not None:
        rows.append(("time", f"{_moment(found.first)} to {_moment(found.last)}"))
    rows += (
        (f"server {server}", f"up to {last.session}/{last.instance}")
        for server, last in sorted(found.positions.items())
    )
    rows.append(("values of", found.value_path))
    rows.append(("to be deleted", f"{found.replaced} files"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(printable(value)))
    output.write_rich(table)


def _moment(us: int) -> str:
    return format_timestamp(Timestamp(*divmod(us, 1_000_000)))
