"""``python -m tests.torture`` (``make torture``): all faults in full, and a table of them."""

import asyncio
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.torture import (
    another_history,
    behind,
    buffer,
    catching_up,
    catching_up_large,
    clock,
    console_door,
    crowd,
    cut_links,
    damage,
    edge,
    edge_pair,
    failing_disk,
    failing_module,
    full_disk,
    fuzz,
    group,
    joins,
    kill,
    lake_beside,
    lake_kill,
    lost_log,
    quota,
    reloads,
    restored,
    strange_events,
    stream_kill,
    sync_order,
)
from tests.torture.attacks.catalogue import ATTACKS
from tests.torture.attacks.scenario import scenario as attack_scenario
from tests.torture.histories import pair, power, single
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress as OnProgress
from tests.torture.report import UnavailableError

ROOT: Final = Path(__file__).parents[2]


class Scenario(NamedTuple):
    """One kind of fault.

    Attributes:
        run: called with a directory, rounds, chance, and what to tell of its progress.
        rounds: how many by default.
    """

    run: Callable[[Path, int, random.Random, OnProgress], Coroutine[None, None, str]]
    rounds: int


SCENARIOS: Final = {
    "kill": Scenario(kill.run, 200),
    "full-disk": Scenario(full_disk.run, 20),
    "sync-errors": Scenario(failing_disk.run_errors, 20),
    "outages": Scenario(failing_disk.run_outages, 10),
    "sync-delays": Scenario(failing_disk.run_delays, 20),
    "sync-order": Scenario(sync_order.run, 20),
    "damage": Scenario(damage.run, 20),
    "lost-log": Scenario(lost_log.run, 10),
    "clock": Scenario(clock.run, 10),
    "clock-days": Scenario(clock.run_days, 10),
    "clock-years": Scenario(clock.run_years, 10),
    "raising-module": Scenario(failing_module.run_raising, 60),
    "ending-module": Scenario(failing_module.run_ending, 4),
    "cut-replication": Scenario(cut_links.run_replication, 200),
    "cut-replication-hat": Scenario(cut_links.run_replication_hat, 200),
    "cut-relay": Scenario(cut_links.run_relay, 200),
    "cut-relay-hat": Scenario(cut_links.run_hat, 200),
    "catching-up": Scenario(catching_up.run, 3),
    "catching-up-large": Scenario(catching_up_large.run, 1),
    "strange-events": Scenario(strange_events.run, 5),
    "restored": Scenario(restored.run, 20),
    "another-history": Scenario(another_history.run, 100),
    "reloads": Scenario(reloads.run, 200),
    "edge": Scenario(edge.run, 500),
    "edge-pair": Scenario(edge_pair.run, 100),
    "group": Scenario(group.run, 200),
    "group-log-away": Scenario(group.run_away, 1),
    "histories": Scenario(single.run, 100),
    "histories-pair": Scenario(pair.run, 50),
    "power-loss": Scenario(power.run, 50),
    "joins": Scenario(joins.run, 1_000),
    "behind": Scenario(behind.run, 100),
    "quota": Scenario(quota.run, 20),
    "buffer": Scenario(buffer.run, 100),
    "crowd": Scenario(crowd.run, 5),
    "console-door": Scenario(console_door.run, 1),
    "fuzz": Scenario(fuzz.run, 60),
    "stream-kill": Scenario(stream_kill.run, 10),
    "stream-kill-replaying": Scenario(stream_kill.run_replaying, 10),
    "lake-kill": Scenario(lake_kill.run, 20),
    "lake-beside": Scenario(lake_beside.run, 60),
    **{f"attack-{name}": Scenario(attack_scenario(name), 1) for name in ATTACKS},
}

ALL_ATTACKS: Final = "attacks"
"""For ``--only``: each of them."""


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice([ALL_ATTACKS, *SCENARIOS]), help="Repeatable."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Of each; else as many as it needs.")
@click.option("--seed", type=int, help="Of what is random; else another one each time.")
def main(only: tuple[str, ...], rounds: int | None, seed: int | None) -> None:
    """Fail on purpose, and attack: nothing acknowledged is lost, and nobody else pays."""
    logging.basicConfig(level=logging.ERROR)  # what is cut on purpose is warned of
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    console = Console()
    console.print(f"seed {seed}")
    table = Table("fault", "result", "what was done", title="Faults")
    n_failed = 0
    for name in _chosen(only):
        result, facts = _run(name, rounds, seed, console)
        n_failed += result == "FAILED"
        console.print(f"{result}: {facts}", highlight=False)
        table.add_row(name, result, facts)
    console.print(table)
    sys.exit(1 if n_failed else 0)


def _chosen(only: tuple[str, ...]) -> list[str]:
    chosen = {*only} or {*SCENARIOS}
    if ALL_ATTACKS in only:
        chosen |= {f"attack-{name}" for name in ATTACKS}
    return [name for name in SCENARIOS if name in chosen]


def _run(name: str, rounds: int | None, seed: int, console: Console) -> tuple[str, str]:
    scenario = SCENARIOS[name]
    # on the disk of the checkout: a temporary directory may be memory, where a sync is free
    parent = ROOT / "var"
    parent.mkdir(exist_ok=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with (
        tempfile.TemporaryDirectory(prefix=f"torture-{name}-", dir=parent) as directory,
        Progress(*columns, TimeElapsedColumn(), console=console) as bar,
    ):
        task = bar.add_task(name, total=rounds or scenario.rounds)

        def on_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and done * 10 // total > (done - 1) * 10 // total:
                console.print(f"{name}: {done} of {total}")

        chance = random.Random(f"{seed}:{name}")
        try:
            facts = asyncio.run(
                scenario.run(Path(directory), rounds or scenario.rounds, chance, on_progress)
            )
        except UnavailableError as e:
            return "not here", str(e)
        except ViolationError as e:
            return "FAILED", f"{e} (seed {seed})"
        except Exception as e:  # the others are run all the same
            console.print_exception()
            return "FAILED", f"{type(e).__name__}: {e} (seed {seed})"
    return "as it must", facts


if __name__ == "__main__":
    main(prog_name="python -m tests.torture")
