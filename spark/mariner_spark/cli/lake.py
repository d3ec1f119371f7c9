"""``mariner lake``: events as Delta tables, for Spark and others."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from eventer_bridge.model import Timestamp
from mariner.cli import output
from mariner.cli.mariner_server import MARINER
from mariner.cli.output import progress
from mariner.cli.target import JSON_OPTION, Target, command_of, is_from_environment, server_options
from mariner.cli.values import counted
from mariner_spark.cli import interruptible, spark_errors, without_secrets

if TYPE_CHECKING:
    from mariner_spark.lake.maintenance import LakeInfo

_LAKE = click.argument("path", metavar="LAKE")


@click.group()
def lake() -> None:
    """Keep events as Delta tables, for Spark and others.

    A LAKE is a directory, or a location in an object store: s3://..., gs://..., az://... Its
    credentials come from the environment, such as AWS_ACCESS_KEY_ID.
    """


@click.command()
@_LAKE
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Add the events of this store, or of a backup of one, instead of a gateway's.",
)
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
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=PATH:TYPE",
    help="Make a value in JSON payloads a column of a new lake, such as quality=$.quality:string."
    " TYPE: string, double or boolean; a value of another type is null. Can be repeated. Default:"
    " the lake's columns.",
)
def ingest(
    *,
    server: Target,
    path: str,
    store: Path | None,
    follow: bool,
    interval: float,
    server_ids: tuple[int, ...],
    batch: int | None,
    allow_loss: bool,
    value_path: str | None,
    columns: tuple[str, ...],
) -> None:
    """Append the events of a gateway or a store that LAKE does not have yet.

    Makes the lake if there is none. Adds each event once, however often you run it and whichever
    gateway it comes from: --host can name several, separated by commas (a,b:23015). Once it has
    begun, it waits for a gateway that is away. Then it updates the tables latest and rollups.
    With --follow it also compacts the lake once an hour; otherwise run `mariner lake compact` now
    and then. No Spark is needed. Options other than --value-path and --column are for a
    gateway.

    Exit code 0: added; 1: it failed, and what was added before stays; 2: wrong usage; 130:
    interrupted (SIGINT, SIGTERM).
    """
    is_gateway = server.name is not None
    if store is not None and is_from_environment("name"):
        is_gateway = False  # a name for other commands
    if is_gateway is (store is not None):
        raise click.UsageError("Expected either --name, for a gateway, or --store.")
    started = time.monotonic()
    with spark_errors(), interruptible():
        # only for this command
        from mariner_spark.lake import columns as named  # noqa: PLC0415
        from mariner_spark.lake import ingest as ingestion  # noqa: PLC0415
        from mariner_spark.lake.maintenance import count  # noqa: PLC0415

        if store is not None:
            with progress("ingest") as on_progress:
                n_added = ingestion.ingest_store(
                    path,
                    store,
                    value_path=value_path,
                    columns=named.parse(columns),
                    on_progress=on_progress,
                )
        else:
            source = _source_options(server, server_ids, batch)
            if allow_loss:
                source["failOnDataLoss"] = "false"
            with Console(stderr=True).status(
                f"{counted(count(path)[0], 'event')} in the lake"
            ) as status:
                n_added = ingestion.ingest(
                    path,
                    source,
                    value_path=value_path,
                    columns=named.parse(columns),
                    interval_s=interval if follow else None,
                    on_progress=lambda: status.update(
                        f"{counted(count(path)[0], 'event')} in the lake"
                    ),
                )
        n_events, n_files = count(path)
    seconds = time.monotonic() - started
    output.write_text(
        f"{without_secrets(path)}: {counted(n_added, 'event')} added,"
        f" {counted(n_events, 'event')} in {counted(n_files, 'file')}, {seconds:.1f} s"
    )


@lake.command()
@_LAKE
@click.option(
    "--grace-hours",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="Keep replaced files for this long: longer than any reader, and any batch of an ingestion,"
    " takes.",
)
@click.option(
    "--by-type",
    is_flag=True,
    help="Sort the events of each day by type and time, instead of by time: reading few types is"
    " faster, reading a part of a day slower. Writes every file anew.",
)
def compact(path: str, grace_hours: int, by_type: bool) -> None:
    """Merge small files into large ones, and delete files that are no longer needed.

    Others may read LAKE and add to it meanwhile.

    Exit code 0: done; 1: it failed, and the lake is intact; 2: there is no lake, or wrong usage.
    """
    started = time.monotonic()
    with spark_errors():
        from mariner_spark.lake import maintenance  # noqa: PLC0415

        done = maintenance.compact(path, grace_hours=grace_hours, is_by_type=by_type)
    seconds = time.monotonic() - started
    output.write_text(
        f"{without_secrets(path)}: {counted(done.replaced, 'file')} became {done.written},"
        f" {done.deleted} deleted, {seconds:.1f} s"
    )


@lake.command()
@_LAKE
def rebuild(path: str) -> None:
    """Rebuild the tables latest and rollups of LAKE from its events.

    Needed only if they are damaged: `mariner lake ingest` keeps them up to date.

    Exit code 0: done; 1: it failed; 2: there is no lake, or wrong usage.
    """
    started = time.monotonic()
    with spark_errors():
        from mariner_spark.lake import maintenance  # noqa: PLC0415

        maintenance.update(path, is_new=True)
    output.write_text(f"{without_secrets(path)}: rebuilt, {time.monotonic() - started:.1f} s")


@lake.command()
@_LAKE
@JSON_OPTION
def info(path: str, is_json: bool) -> None:
    """Show what is in LAKE: events, files, times, and the last event of each server.

    Exit code 0: shown; 1: it cannot be read; 2: there is no lake, or wrong usage.
    """
    with spark_errors():
        from mariner_spark.lake.maintenance import info as read_info  # noqa: PLC0415

        found = read_info(path)
    if is_json:
        output.write_json(found)
    else:
        output.write_pairs(_rows(path, found))


@lake.command()
@_LAKE
@click.option(
    "--dialect",
    type=click.Choice(["duckdb", "spark", "trino"]),
    required=True,
    help="Of the engine that will run them. Spark and Trino need their Delta connector, DuckDB its"
    " extension delta.",
)
def sql(path: str, dialect: str) -> None:
    """Print SQL that makes the tables of LAKE and its views known to an engine.

    Tables: events, latest, rollups. Views: numbers (those of events); minutes, hours, days (rollups
    with the mean over time).

    Exit code 0: printed; 1: it cannot be read; 2: there is no lake, or wrong usage.
    """
    with spark_errors():
        from mariner_spark.lake import sql as texts  # noqa: PLC0415
        from mariner_spark.lake.tables import TABLES, Lake  # noqa: PLC0415

        found = Lake(path)
        for table in TABLES:
            found.open(table)
        output.write_text(";\n\n".join(texts.statements(found, dialect)) + ";")


_OPTIONS = server_options("MARINER", 23014, is_named=False)
_OPTIONS[0].callback = None  # it can name several hosts, with their ports
lake.add_command(command_of(MARINER._replace(options=_OPTIONS), ingest))


def _source_options(
    server: Target, server_ids: tuple[int, ...], batch: int | None
) -> dict[str, str]:
    options = {
        "host": server.host,
        "port": str(server.port),
        "client_name": server.name,
        "token": server.token,
        "tls": "true" if server.tls else None,
        "tls_ca": server.tls_ca,
        "cert": server.cert,
        "key": server.key,
        "servers": ",".join(map(str, server_ids)) or None,
        "maxEventsPerBatch": batch,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def _rows(path: str, found: "LakeInfo") -> list[tuple[str, str]]:
    rows = [("lake", without_secrets(path))]
    for name, table in found.tables.items():
        behind = f", {counted(table.behind, 'commit')} behind" if table.behind else ""
        text = (
            f"version {table.version}, {counted(table.rows, 'row')} in"
            f" {counted(table.files, 'file')}, {table.bytes} bytes{behind}; to be deleted:"
            f" {counted(table.unused_files, 'file')}, {table.unused_bytes} bytes"
        )
        rows.append((name, text))
    if found.first is not None and found.last is not None:
        rows.append(("time", f"{_moment(found.first)} to {_moment(found.last)}"))
    rows += (
        (
            f"server {server}",
            f"up to {last.session}/{last.instance}, {_moment(last.timestamp)}"
            f" ({found.lag_s[server]:.0f} s ago)",
        )
        for server, last in sorted(found.positions.items())
    )
    rows.append(("values of", found.value_path))
    return [*rows, ("columns", ", ".join(found.columns))] if found.columns else rows


def _moment(us: int) -> str:
    return Timestamp(*divmod(us, 1_000_000)).to_iso()
