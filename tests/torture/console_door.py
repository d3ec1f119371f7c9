"""Strangers at the door of the console: whoever has the password gets in, and it costs little."""

import asyncio
import contextlib
import random
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from eventer_bridge.core import tokens
from tests.console.support import Console, console
from tests.support.process import tail
from tests.torture.attacks import wire
from tests.torture.attacks.attack import BYTES_PER_MB
from tests.torture.console_strangers import ATTACKS, NAME
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

ATTACK_S: float = 10.0
"""Of each attack."""

N_CONNECTIONS: int = 1_000

PATIENCE_S: Final = 60.0
"""For an attack to begin and end, and the logins that are under way."""

MAX_LOGIN_S: float = 2.0
"""Median of right logins, whose password takes 0.2 s to compute. On a machine that has other work,
so many times what they took before the attack:"""
BASELINE_FACTOR: Final = 8

MAX_MEMORY_BYTES: Final = 100 * BYTES_PER_MB
MAX_LOG_BYTES: Final = BYTES_PER_MB
MIN_LOG_BYTES: int = 100
"""Of each attack. Lines are limited per second, so that a short one may follow too soon."""

PASSWORD: Final = "of somebody who thought of it"

hashed = tokens.scrypt_text

SAMPLE_S: Final = 0.1


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Each attack so many times.

    Raises:
        ViolationError: a right login was refused or took too long, memory or the log grew, or the
            log is silent about it.
    """
    user = {"name": NAME, "password": hashed(PASSWORD)}
    nowhere = {"name": "gateway", "host": wire.HOST, "port": 1, "client": "app"}
    facts = []
    async with console(directory, [nowhere], users=[user]) as running:
        baseline_s = statistics.median([await _log_in(running) for _ in range(3)])
        for n_done, name in enumerate([*ATTACKS] * rounds, 1):
            facts.append(await _attacked(running, name, baseline_s))
            progress(n_done, len(ATTACKS) * rounds)
    if "Traceback" in (text := running.output.read_text()):
        raise ViolationError(f"a stranger caused a traceback: {text[-2000:]}")
    return "; ".join(facts)


async def _attacked(running: Console, name: str, baseline_s: float) -> str:
    before = running.output.stat().st_size
    times_s = []
    async with _memory(running) as sizes, _attacker(running, name) as attacker:
        try:
            async with asyncio.timeout(ATTACK_S + PATIENCE_S):
                while attacker.returncode is None:
                    times_s.append(await _log_in(running))
        except (TimeoutError, aiohttp.ClientError) as e:
            raise ViolationError(f"{name}: a right login: {e!r}") from e
    if attacker.returncode:
        raise RuntimeError(f"{name}: {tail(running.output.with_name('attacker.log'))}")
    log_bytes = running.output.stat().st_size - before
    more_bytes = max(sizes) - sizes[0]
    fact = (
        f"{name}: {len(times_s)} right logins, median {statistics.median(times_s):.2f} s, most"
        f" {max(times_s):.2f} s (before: {baseline_s:.2f} s), memory"
        f" +{more_bytes / BYTES_PER_MB:.0f} MB, log {log_bytes / 1000:.0f} kB"
    )
    if (
        statistics.median(times_s) > max(MAX_LOGIN_S, BASELINE_FACTOR * baseline_s)
        or more_bytes > MAX_MEMORY_BYTES
        or not MIN_LOG_BYTES <= log_bytes <= MAX_LOG_BYTES
    ):
        raise ViolationError(fact)
    return fact


async def _log_in(running: Console) -> float:
    """Seconds until the page is there, from the form on.

    Raises:
        ViolationError: there was another answer.
    """
    began_s = time.monotonic()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(f"{running.url}login") as answer:
            await answer.read()
        async with session.post(
            f"{running.url}login",
            data={"name": NAME, "password": PASSWORD},
            headers={"Origin": running.url.rstrip("/")},
            allow_redirects=False,
        ) as answer:
            if answer.status != 303:
                raise ViolationError(f"a right login got {answer.status}")
        async with session.post(
            f"{running.url}logout",
            headers={"Origin": running.url.rstrip("/")},
            allow_redirects=False,
        ):
            pass
    return time.monotonic() - began_s


@contextlib.asynccontextmanager
async def _attacker(running: Console, name: str) -> AsyncIterator[Process]:
    port = running.url.rstrip("/").rpartition(":")[2]
    arguments = "tests.torture.console_strangers", name, port, str(ATTACK_S), str(N_CONNECTIONS)
    with running.output.with_name("attacker.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *arguments), stderr=errors
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _memory(running: Console) -> AsyncIterator[list[int]]:
    process = psutil.Process(running.process.pid)
    sizes = [process.memory_info().rss]

    async def sample() -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            sizes.append(process.memory_info().rss)

    task = asyncio.create_task(sample())
    try:
        yield sizes
    finally:
        task.cancel()
        await asyncio.wait([task])
