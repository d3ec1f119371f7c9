"""Inputs that are looked for by what they reach in our code (atheris, libFuzzer).

Chatter's streams, envelopes and conversations, Eventer's messages, and what the compiled module
makes of requests and rows: see ``fuzz_targets``.
No input may raise what it should not, take seconds, or a gigabyte of memory.
"""

import asyncio
import importlib.util
import random
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.torture.fuzz_targets import MAX_BYTES, TARGETS
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress, UnavailableError

MAX_SECONDS_PER_INPUT: Final = 5
MAX_MEMORY_MB: Final = 1_024

_START_S: Final = 60.0
"""For a process to instrument our code and to end, besides the time it fuzzes."""

_EXECUTED: Final = re.compile(rb"stat::number_of_executed_units: *(\d+)")
_COVERED: Final = re.compile(rb"cov: (\d+)")


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Fuzz each target for so many seconds.

    Raises:
        UnavailableError: there is no atheris.
        ViolationError: an input made a target fail; the text has it.
    """
    if importlib.util.find_spec("atheris") is None:
        raise UnavailableError(
            "atheris is not installed: `make torture` does that, where there are wheels of it"
        )
    facts = []
    for number, (name, target) in enumerate(TARGETS.items()):
        corpus = directory / name
        corpus.mkdir()
        for index, data in enumerate(target.seeds()):
            (corpus / f"seed-{index}").write_bytes(data)
        seed = chance.randrange(1, 1 << 31)
        executed, covered = await fuzz(target.run, corpus, seconds=rounds, seed=seed)
        facts.append(f"{name} {executed:,} inputs, {covered} edges")
        progress((number + 1) * rounds // len(TARGETS), rounds)
    return "; ".join(facts)


async def fuzz(
    target: Callable[[bytes], object], corpus: Path, *, seconds: int, seed: int
) -> tuple[int, int]:
    """Fuzz a function in a process of its own.

    Args:
        target: function of a module.
        corpus: directory of inputs to begin with; those that reach more are added.
        seconds: how long.
        seed: of what is random.

    Returns:
        How many inputs were tried, and how many edges of our code they reached.

    Raises:
        ViolationError: an input made it fail, and the text has it; or it did not end.
    """
    name = f"{target.__module__}:{target.__name__}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.torture.fuzz_process", name),
        *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={MAX_BYTES}"),
        *(f"-timeout={MAX_SECONDS_PER_INPUT}", f"-rss_limit_mb={MAX_MEMORY_MB}"),
        *("-print_final_stats=1", f"-artifact_prefix={corpus.parent}/", str(corpus)),
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        async with asyncio.timeout(seconds + _START_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise ViolationError(f"{name}: still runs {_START_S:.0f} s after its time") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ViolationError(f"{name}: {output[-3_000:].decode(errors='replace')}")
    executed, covered = _EXECUTED.findall(output), _COVERED.findall(output)
    return int(executed[-1]), int(covered[-1])
