"""``python -m tests.perf`` (``make bench``): measure ours and theirs, print the table."""

import asyncio
import tempfile
from pathlib import Path

import click
from rich.console import Console

from tests.perf import report, runner, scenarios, sides


@click.command()
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also save to this file.")
@click.option(
    "--only", multiple=True, type=click.Choice(scenarios.NAMES), help="Only this; repeatable."
)
@click.option("--small", is_flag=True, help="Seconds instead of minutes; ratios mean little.")
def main(path: Path | None, only: tuple[str, ...], small: bool) -> None:
    """Measure our gateway and hat-mariner-server + hat-event-server side by side."""
    sizes = scenarios.SMALL if small else scenarios.FULL
    names = frozenset(only or scenarios.NAMES)
    # on the disk of the checkout: a temporary directory may be memory, where a sync is free
    parent = sides.ROOT / "var"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf-", dir=parent) as directory:
        measures = asyncio.run(runner.run(Path(directory), sizes, names))
    console = Console()
    console.width = max(console.width, 104)  # fits every row on one line
    report.print_table(measures, console)
    if path is not None:
        report.save(measures, path)


if __name__ == "__main__":
    main(prog_name="python -m tests.perf")
