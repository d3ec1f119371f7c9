"""``python -m tests.perf`` (``make bench``): measure ours and others, print the tables."""

import asyncio
import tempfile
from pathlib import Path

import click
from rich.console import Console

from tests.perf import report, runner, scenarios, sides
from tests.perf.runner import SLOW_SUITES, SUITES


@click.command()
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also save to this file.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(runner.names(SUITES | SLOW_SUITES)),
    help="Only this; repeatable.",
)
@click.option("--slow", is_flag=True, help="Ours alone: detours, replay, RSB, millions, Spark.")
@click.option("--small", is_flag=True, help="Seconds instead of minutes; figures mean little.")
def main(path: Path | None, only: tuple[str, ...], slow: bool, small: bool) -> None:
    """Measure our gateway and others side by side."""
    sizes = scenarios.SMALL if small else scenarios.FULL
    names = frozenset(only or runner.names(SLOW_SUITES if slow else SUITES))
    # on the disk of the checkout: a temporary directory may be memory, where a sync is free
    parent = sides.ROOT / "var"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf-", dir=parent) as directory:
        measures = asyncio.run(runner.run(Path(directory), sizes, names))
    console = Console()
    console.width = max(console.width, 120)  # fits every row on one line
    report.print_tables(measures, console)
    if path is not None:
        report.save(measures, path)


if __name__ == "__main__":
    main(prog_name="python -m tests.perf")
