"""``mariner report``: reports about stored events, computed by DuckDB or by Spark.

Both, and the modules that use them, are imported when the command runs: the other commands neither
need the extra ``spark`` nor wait for it.
"""

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mariner.cli import output
from mariner.cli.run import EXIT_CONDITION, EXIT_FAILED, CommandError
from mariner.cli.target import choose_token, server_options
from mariner.cli.values import LAST_TIME, PATTERN, TIME, TIME_HELP
from mariner_spark.cli import interruptible, spark_errors, spark_session, without_secrets
from mariner_spark.limits import DUCKDB_EVENTS

if TYPE_CHECKING:
    from mariner_spark.reports.figures import Condition
    from mariner_spark.reports.job import ReportJob
    from mariner_spark.reports.sources import EventSource
    from mariner_spark.reports.views import Row

NAMES: Final = (
    *("activity", "latest", "values", "gaps", "latency"),
    *("availability", "runs", "top"),
)
"""Names of the reports in ``mariner_spark.reports.generate``."""

_OF_JOB: Final = ("value_path", "depth", "zone", "console", "is_compared")
"""Options that a ``ReportJob`` takes as they are."""

_ALL: Final = "all"
_PORT: Final = 23014
_ADDRESS: Final = re.compile(r"(?:\[[^\]]+\]|[^:\[\]]+)(?::[0-9]{1,5})?")


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice((*NAMES, _ALL)))
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Events of this store, whether a gateway has it open or not.",
)
@click.option(
    "--lake", metavar="URI", help="Events of this lake: a folder, or a location in an object store."
)
@click.option(
    "--gateway",
    metavar="HOST[:PORT]",
    help=f"Events of this gateway that --name may query. Default port: {_PORT}.",
)
@click.option("--from", "first", **TIME, help=f"Timestamp at or after this. {TIME_HELP}")
@click.option(
    "--to", "last", **LAST_TIME, help="Timestamp at or before this; a date includes its whole day."
)
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    type=PATTERN,
    help="Event type: segments joined by '/'; '?' matches one segment, '*' at the end any number."
    " Or a JSON array. Can be repeated. Default: all types.",
)
@click.option(
    "--value-path",
    metavar="PATH",
    help="Path to the number of a JSON payload. Default: $.value, or the path of the lake.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Number of segments in a type prefix.",
)
@click.option(
    "--engine",
    type=click.Choice(("auto", "duckdb", "spark")),
    default="auto",
    show_default=True,
    help="What computes the reports: DuckDB, in this process, or Spark, which needs Java. auto:"
    f" DuckDB, but Spark under spark-submit, with SPARK_REMOTE, and for more than"
    f" {DUCKDB_EVENTS:,} events in the store or the lake.",
)
@click.option(
    "--time-zone",
    "zone",
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="Time zone of the page, as Europe/Berlin; that of --from and --to is in their texts, and"
    " files have UTC. The whole page has the zone's offset at the last event.",
)
@click.option(
    "--console",
    metavar="URL",
    help="Address of a console: rows and charts of the page lead to their events there. It may"
    " name a gateway: http://127.0.0.1:23080/?gateway=plant.",
)
@click.option(
    "--compare",
    "is_compared",
    is_flag=True,
    help="Compare figures with those of the span before --from, which is as long.",
)
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    help="End with exit code 5 if this holds, as 'gaps.longest_s > 3600': a figure of a report,"
    " <, <=, =, >= or >, and a number. Can be repeated.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default="report",
    show_default=True,
    help="Directory of the files; those of an earlier report are replaced.",
)
def report(  # noqa: PLR0917  # click gives all of them by name
    names: Sequence[str],
    store: Path | None,
    lake: str | None,
    gateway: str | None,
    engine: str,
    conditions: Sequence[str],
    out: Path,
    **given: Any,
) -> None:
    """Make reports about stored events: tables, and a page for the browser.

    \b
      activity      events by type prefix and time
      latest        the last event of each type
      values        numbers of payloads by type and time
      gaps          types that were silent for longer than expected
      latency       time from the source timestamp to the timestamp, by type prefix
      availability  how long engines and clients were up
      runs          each time they were up
      top           the largest types

    Without NAME, makes all of them. Each becomes NAME.csv and NAME.parquet; report.html shows
    them together, and needs no network. DuckDB or Spark makes them, on this machine: install
    the extra 'spark' (pip install 'mariner-gateway[spark]').

    --type does not apply to availability and runs, which need all events of a server.

    \b
    Figures, for --fail-if and --compare:
      activity      events, bytes
      latest        rows (types)
      values        numbers, types
      gaps          rows (gaps), types, open (until the end), longest_s
      latency       late, future, with_source, p99_s and max_s (the largest of all prefixes)
      availability  engines, clients, killed, share (the least), longest_down_s
      runs          rows (times up)
      top           rows (types)

    Exit code 0: the reports are made, even if there are no events; 1: the engine, the store,
    the lake or the gateway failed; 2: no such store or lake, or wrong usage; 5: a condition of
    --fail-if holds; 130: interrupted.
    """  # noqa: D301  # \b is meant: click does not fill the paragraph after it
    if [store, lake, gateway].count(None) != 2:
        raise click.UsageError("Expected exactly one of --store, --lake and --gateway.")
    source: Mapping[str, Any] = {"lake": lake} if store is None else {"store": store}
    if gateway is not None:
        source = _gateway_arguments(gateway, given)
    with spark_errors(), _progress() as on_step:
        # only for this command
        from mariner_spark.reports import formats  # noqa: PLC0415
        from mariner_spark.reports.job import PAGE, ReportJob, check  # noqa: PLC0415

        job = ReportJob(
            source=source,
            title=without_secrets(str(store or lake or gateway)),
            folder=out,
            names=() if _ALL in names else tuple(dict.fromkeys(names)),
            types=given["types"] or None,
            **{i: given[i] and given[i].to_iso() for i in ("first", "last")},
            **{i: given[i] for i in _OF_JOB},
        )
        check(job)
        failing = _conditions(conditions, job)
        with _source(engine, job, on_step) as (events, check_interrupted):
            totals = _generate(events, job, on_step, check_interrupted)
    output.write_text(str(out / PAGE))
    if held := [i for i in failing if i.holds(totals[i.report])]:
        found = (f"{i}: it is {formats.plain(totals[i.report][i.figure])}" for i in held)
        raise CommandError("; ".join(found), EXIT_CONDITION)


def _conditions(texts: Sequence[str], job: "ReportJob") -> list["Condition"]:
    """Conditions of --fail-if; raises OptionError."""
    from mariner_spark.reports import figures, generate  # noqa: PLC0415

    made = {name: generate.REPORTS[name].figures for name in job.names or generate.REPORTS}
    known = {name: [i.name for i in its] for name, its in made.items()}
    return [figures.parse(text, known) for text in texts]


@contextlib.contextmanager
def _source(
    engine: str, job: "ReportJob", on_step: Callable[[str, int | None], None]
) -> Iterator[tuple["EventSource", Callable[[], None]]]:
    """What reads the events, and a check to be called between two steps: it raises after a signal.

    Raises as :func:`spark_errors` converts.
    """
    from mariner_spark.reports import sources  # noqa: PLC0415

    with interruptible():
        n_events = sources.count_events(job)
    if engine == "spark" or (engine == "auto" and sources.choose(n_events) == "spark"):
        on_step("starting Spark", None)
        with spark_session() as (spark, check_interrupted):
            yield sources.SparkSource(spark), check_interrupted
        return
    # DuckDB computes with Python's lock held: a signal is seen when the query is over
    with interruptible(), sources.open_duckdb(n_events) as events:
        yield events, lambda: None


def _generate(
    events: "EventSource",
    job: "ReportJob",
    on_step: Callable[[str, int | None], None],
    check_interrupted: Callable[[], None],
) -> dict[str, "Row"]:
    from mariner_spark.reports import generate  # noqa: PLC0415

    def on_progress(what: str, n_steps: int) -> None:
        check_interrupted()
        on_step(what, n_steps + 1)

    try:
        return generate.generate(events, job, on_progress)
    except ConnectionError:
        raise  # Java is gone
    except OSError as e:
        text = str(e) if e.filename is None else f"{e.filename}: {e.strerror}"
        raise CommandError(text, EXIT_FAILED) from e


def _gateway_arguments(address: str, access: Mapping[str, Any]) -> dict[str, Any]:
    if _ADDRESS.fullmatch(address) is None:
        raise click.BadParameter(f"{address!r}: expected HOST or HOST:PORT", param_hint="--gateway")
    if access["name"] is None:
        raise click.UsageError("--gateway needs --name, the name of this client.")
    token = choose_token(access["token"], access["token_file"])
    return {
        "gateway": address,
        "client_name": access["name"],
        "token": token,
        "tls": access["tls"] or None,
        **{name: access[name] for name in ("tls_ca", "cert", "key")},
    }


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int | None], None]]:
    """Progress bar on standard error, if that is a terminal: the step and the number of all."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("", total=None)
        steps = itertools.count()

        def on_step(what: str, n_steps: int | None) -> None:
            progress.update(task, description=what, completed=next(steps), total=n_steps)

        yield on_step


report.params += server_options("MARINER", _PORT, is_named=False)[2:]  # without host and port
