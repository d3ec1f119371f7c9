"""Syncs that fail (EIO), all of the disk that fails, and syncs that take long, by strace."""

import asyncio
import random
import time
from pathlib import Path
from typing import Final

from tests.support.gateway import Gateway, gateway
from tests.torture.clients import Load, connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress
from tests.torture.strace import attached, require_strace, strace

DELAY_S: Final = 0.1
"""Of every sync, in the second scenario."""

_NOT_DELAYED: Final = 30
"""First syncs of each thread that are not delayed: those of the start."""

_FAILS_EVERY: Final = 60
"""Every so many syncs of a thread, two fail: the commit's, and the first try to go on."""

_TRIED: Final = "the event store cannot be written"
"""What a client is told after the first try to go on failed."""


async def run_errors(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let syncs fail until the store failed and went on ``rounds`` times.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    first = chance.randrange(20, 40)
    injection = f"inject=fdatasync:error=EIO:when={first}+{_FAILS_EVERY}"
    wrapper = strace(directory / "strace.txt", "-e", "trace=fdatasync", "-e", injection)
    async with gateway(directory, wrapper=wrapper) as running:
        async with loaded(running, ledger) as load:
            for n in range(1, rounds + 1):
                await _failed_and_went_on(load)
                progress(n, rounds)
        async with connected(running) as client:
            ledger.check(await read_store(client))
    await _check_again(directory, ledger)
    reasons = {i for i in load.refusals if "Input/output error" in i}
    if not reasons:
        raise ViolationError(f"nobody was told why: {set(load.refusals)}")
    return (
        f"failed and went on {rounds} times without a restart: {len(load.refusals)} requests"
        f" refused, {len(ledger.acknowledged)} events acknowledged, all of them stored"
    )


async def run_outages(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let every sync and every opening of a file or directory fail for a while, again and again.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    failing = ("-e", "trace=fdatasync,openat", "-e", "inject=fdatasync,openat:error=EIO")
    began = time.perf_counter()
    async with gateway(directory) as running:
        async with loaded(running, ledger) as load:
            for n in range(1, rounds + 1):
                async with attached(running.pid, *failing):
                    await _failed_and_failed_again(load)
                await load.until_acknowledged(1)
                progress(n, rounds)
        async with connected(running) as client:
            ledger.check(await read_store(client))
    await _check_again(directory, ledger)
    return (
        f"went on after {rounds} outages without a restart, {time.perf_counter() - began:.0f} s:"
        f" {len(load.refusals)} requests refused, {len(ledger.acknowledged)} events"
        " acknowledged, all of them stored"
    )


async def _failed_and_failed_again(load: Load) -> None:
    """A commit, and then the first try to go on."""
    n_refused = len(load.refusals)
    await load.until(lambda: any(_TRIED in i for i in load.refusals[n_refused:]))


async def _failed_and_went_on(load: Load) -> None:
    n_refused = len(load.refusals)
    await load.until(lambda: len(load.refusals) > n_refused)
    await load.until_acknowledged(1)


async def _check_again(directory: Path, ledger: Ledger) -> None:
    async with gateway(directory) as running, connected(running) as client:
        ledger.check(await read_store(client))


async def run_delays(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let every sync take long; everything but acknowledgements goes on meanwhile.

    Raises:
        ViolationError: an acknowledgement did not wait, or something else did.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    injection = f"inject=fdatasync:delay_enter={round(DELAY_S * 1e6)}:when={_NOT_DELAYED}+"
    wrapper = strace(directory / "strace.txt", "-e", "trace=fdatasync", "-e", injection)
    async with gateway(directory, wrapper=wrapper) as running:
        acknowledged_s, ping_s = await _measure(running, ledger, rounds, progress)
    await _check_again(directory, ledger)
    if min(acknowledged_s) < DELAY_S:
        raise ViolationError(f"acknowledged after {min(acknowledged_s):.3f} s, before the sync")
    if sorted(ping_s)[len(ping_s) // 2] > DELAY_S / 2:
        raise ViolationError("pings wait for syncs")
    return (
        f"syncs of {DELAY_S} s: {len(ledger.acknowledged)} events acknowledged, the first"
        f" request after {min(acknowledged_s):.2f} s; {len(ping_s)} pings meanwhile, the"
        f" slowest {max(ping_s) * 1000:.0f} ms"
    )


async def _measure(
    running: Gateway, ledger: Ledger, rounds: int, progress: Progress
) -> tuple[list[float], list[float]]:
    acknowledged_s: list[float] = []
    ping_s: list[float] = []
    async with connected(running) as client:
        for _ in range(_NOT_DELAYED):
            ledger.acknowledge(await client.register(ledger.request()))
        for n in range(1, rounds + 1):
            began = time.perf_counter()
            requests = [
                asyncio.ensure_future(client.register(ledger.request())) for _ in range(100)
            ]
            while not all(i.done() for i in requests):
                ping_s.append(await client.ping())
                await asyncio.wait(requests, timeout=DELAY_S / 20)
                if any(i.done() for i in requests) and len(acknowledged_s) < n:
                    acknowledged_s.append(time.perf_counter() - began)
            for request in requests:
                ledger.acknowledge(await request)
            progress(n, rounds)
    return acknowledged_s, ping_s
