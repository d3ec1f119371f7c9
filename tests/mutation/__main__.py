"""``python -m tests.mutation`` (``make mutate``): would a test notice if this line were wrong?

mutmut changes one thing at a time in the functions that ``[tool.mutmut]`` of ``pyproject.toml``
names, and runs the tests that call them. What is known already is not tried again, so that it
goes on where it was stopped; a changed function is, and with ``--again`` what no test noticed.
``survivors.md`` says which mutants are left alive, and why.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[2]
MUTANTS: Final = ROOT / "mutants"

MIN_KILLED_SHARE: Final = 0.9
"""Of the mutants that were tried; some do the same as the original, in other words."""

STOP_TIMEOUT_S: Final = 30.0

_FAILED: Final = {1, 3, 255}  # a test, or pytest itself
_WITHOUT_END: Final = {24, 36, 152, -24}
_NOT_CALLED: Final = {5, 33}
_UNNOTICED: Final = {"alive", "not called"}


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--minutes", type=float, default=60, show_default=True, help="At most.")
@click.option("--processes", type=int, default=1, show_default=True)
@click.option("--again", is_flag=True, help="Try those that live once more: there are new tests.")
def main(patterns: tuple[str, ...], minutes: float, processes: int, again: bool) -> None:
    """Mutate what PATTERNS name, such as eventer_bridge.net.framing.*; or everything."""
    if again:
        forget_living()
    _run(["--max-children", str(processes), *patterns], minutes * 60)
    sys.exit(not tell(results()))


def _run(arguments: list[str], timeout_s: float) -> None:
    command = [sys.executable, "-m", "mutmut", "run", *arguments]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            process.wait(timeout_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.send_signal(signal.SIGINT)  # what was found is kept
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()


def forget_living() -> None:
    """Let mutmut try those again that no test noticed, with all tests that call them now."""
    (MUTANTS / "mutmut-stats.json").unlink(missing_ok=True)
    for path in MUTANTS.rglob("*.py.meta"):
        meta = json.loads(path.read_text())
        codes = meta["exit_code_by_key"]
        meta["exit_code_by_key"] = {
            name: None if _fate(code) in _UNNOTICED else code for name, code in codes.items()
        }
        path.write_text(json.dumps(meta, indent=4))


def results() -> dict[str, dict[str, int | None]]:
    """What became of each mutant of each module: exit codes of pytest, by name."""
    metas = sorted(MUTANTS.rglob("*.py.meta"))
    modules = [
        ".".join(i.relative_to(MUTANTS).with_suffix("").with_suffix("").parts) for i in metas
    ]
    found = [json.loads(i.read_text())["exit_code_by_key"] for i in metas]
    return {module: codes for module, codes in zip(modules, found, strict=True) if codes}


def tell(modules: dict[str, dict[str, int | None]]) -> bool:
    """Print the figures, and who is alive; whether enough were killed."""
    fates = ("failed", "without end", "alive", "not called")
    table = Table("module", "mutants", "tried", *fates, "killed of tried", title="Mutants")
    total: Counter[str] = Counter()
    console = Console()
    for module, codes in [*modules.items(), ("all", {})]:
        counts = total if module == "all" else Counter(_fate(code) for code in codes.values())
        if module != "all":
            total += counts
        n_tried = counts.total() - counts["not tried"]
        if not n_tried:
            continue
        share = f"{_killed(counts) / n_tried:.1%}"
        cells = (counts.total(), n_tried, *(counts[i] for i in fates), share)
        table.add_row(module, *map(str, cells))
    console.print(table)
    for codes in modules.values():
        for name, code in codes.items():
            if _fate(code) in _UNNOTICED:
                console.print(f"{_fate(code)}: {name}", soft_wrap=True, highlight=False)
    return _killed(total) >= MIN_KILLED_SHARE * (total.total() - total["not tried"])


def _killed(counts: Counter[str]) -> int:
    return counts["failed"] + counts["without end"]


def _fate(exit_code: int | None) -> str:
    if exit_code is None:
        return "not tried"
    if exit_code in _FAILED:
        return "failed"
    if exit_code in _WITHOUT_END:
        return "without end"
    return "not called" if exit_code in _NOT_CALLED else "alive"


if __name__ == "__main__":
    main(prog_name="python -m tests.mutation")
