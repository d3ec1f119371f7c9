"""Ingestions, compactions, vacuums and readers of a lake at the same time, for a minute."""

import asyncio
import random
from pathlib import Path

from tests.spark.lake.beside import work_beside
from tests.torture.report import Progress


async def run(
    directory: Path,
    rounds: int,
    _chance: random.Random,
    progress: Progress,
) -> str:
    """Work for ``rounds`` seconds.

    Args:
        directory: empty; the lake is there.
        rounds: seconds.
        progress: told at the end.

    Raises:
        AssertionError: a reader saw something else than whole commits, each event once.
    """
    seen = await asyncio.to_thread(work_beside, directory / "lake", rounds)
    progress(rounds, rounds)
    return f"{seen.reads} reads of up to {seen.most} events, each of whole commits"
