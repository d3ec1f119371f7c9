"""A client that sends ten times what it may, beside clients that keep to what they may.

It sends exactly at its quota, and then as much as the gateway takes, in turns. The others register
and ping on schedule all the time. At ten times its quota their p99 has to be what it is at the
quota, within :data:`MAX_FACTOR`. It is the median of the p99 of all turns: what else this machine
does, it does in some of them.
"""

import asyncio
import contextlib
import functools
import json
import random
import signal
import socket
import statistics
import struct
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from tests.support.gateway import gateway
from tests.support.process import tail
from tests.torture.attacks.observer import NAME, Address, Honest, Observation
from tests.torture.attacks.wire import Peer, encode, event, register_req
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

EVENTS_PER_S: Final = 2_000
"""Quota of the greedy client."""

TIMES: Final = 10
"""How much more it sends."""

PHASE_S: float = 6.0
SETTLING_S: Final = 1.5
"""Beginning of a phase that does not count: the events of a second are taken at once."""

PERIOD_S: Final = 0.005
MAX_FACTOR: Final = 1.2
TICK_S: Final = 0.002


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Compare ``rounds`` times.

    Raises:
        ViolationError: the others noticed, or the greedy client was not held to its quota.
    """
    rights = {"subscriptions": [], "register_events": [{"subscriptions": [["*"]]}]}
    clients: list[dict[str, Any]] = [
        {**rights, "name": NAME, "token": NAME},
        {**rights, "name": "greedy", "token": "greedy", "quota": {"events_per_s": EVENTS_PER_S}},
    ]
    seen: dict[int, list[Observation]] = {1: [], TIMES: []}
    rates: dict[int, list[float]] = {1: [], TIMES: []}
    async with (
        gateway(directory, clients=clients) as running,
        Honest.connected(Address(running.port)) as pinging,
        Honest.connected(Address(running.port)) as registering,
    ):
        for n in range(rounds):
            for times in chance.sample([1, TIMES], 2):
                async with _greedy(directory, running.port, times) as greedy:
                    await greedy.settled()
                    seen[times].append(turn := Observation())
                    await asyncio.gather(
                        _observe(turn, "ping", pinging.ping),
                        _observe(turn, "register", functools.partial(registering.register, 1)),
                    )
                    rates[times].append(await greedy.events_per_s())
            progress(n + 1, rounds)
    return _judge(seen, rates)


def _judge(seen: dict[int, list[Observation]], rates: dict[int, list[float]]) -> str:
    if lost := [lost for turns in seen.values() for turn in turns for lost in turn.lost]:
        raise ViolationError(f"others lost {lost}")
    got = max(rates[TIMES])
    if got > 1.1 * EVENTS_PER_S:
        raise ViolationError(f"it got {got:.0f} events/s, its quota is {EVENTS_PER_S}")
    facts = [f"at {TIMES} times its quota it got {got:.0f} of {EVENTS_PER_S} events/s"]
    for kind in ("ping", "register"):
        before_ms, after_ms = (
            statistics.median(turn.times(kind).p99_ms for turn in seen[times])
            for times in (1, TIMES)
        )
        facts.append(f"p99 of {kind}: {after_ms:.2f} ms, {before_ms:.2f} at the quota")
        if after_ms > MAX_FACTOR * before_ms:
            raise ViolationError("; ".join(facts))
    return "; ".join(facts)


async def _observe(seen: Observation, kind: str, act: Any) -> None:
    """Do something on schedule, whether what was before has ended or not."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    end = due + PHASE_S - SETTLING_S
    under_way = []
    while due < end:
        under_way.append(asyncio.create_task(seen.time(kind, act)))
        due += PERIOD_S
        await asyncio.sleep(due - loop.time())
    await asyncio.gather(*under_way)


class _Greedy:
    """Process of the greedy client."""

    def __init__(self, process: Process, errors: Path) -> None:
        self._process = process
        self._errors = errors

    async def settled(self) -> None:
        """Wait until what it sends counts."""
        assert self._process.stdout is not None
        await self._process.stdout.readline()

    async def events_per_s(self) -> float:
        """End it; events that were acknowledged a second, after the first ones."""
        self._process.send_signal(signal.SIGINT)
        output, _ = await self._process.communicate()
        if self._process.returncode != 0:
            raise RuntimeError(f"the greedy client failed: {tail(self._errors)}")
        return float(json.loads(output))


@contextlib.asynccontextmanager
async def _greedy(directory: Path, port: int, times: int) -> AsyncIterator[_Greedy]:
    errors = directory / "greedy.log"
    with errors.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.torture.quota", str(port), str(times)),
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
        )
    try:
        yield _Greedy(process, errors)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def send(port: int, times: int) -> float:
    """What the greedy client does until SIGINT: register single events at ``times`` its quota.

    It prints a line when it has settled.

    Returns:
        Events that were acknowledged a second since then.
    """
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True

    signal.signal(signal.SIGINT, stop)
    request = encode(register_req(1, [event(["greedy"], 1)]))
    with Peer(port, "greedy") as peer:
        # what it sent and was not read is dropped at the end, not worked off
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.setblocking(False)
        began = time.monotonic()
        n_sent = n_answered = n_counted = 0
        counted_at = None
        unsent = b""
        while not is_stopped:
            now = time.monotonic()
            due = int((now - began) * EVENTS_PER_S * times) - n_sent
            n_new = min(due, 4_000) if not unsent else 0
            n_sent += n_new if unsent == b"" else 0
            unsent += request * n_new
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[peer.socket.send(unsent) :] if unsent else unsent
            with contextlib.suppress(BlockingIOError):
                n_answered += peer.socket.recv(1 << 20).count(b'"register_res"')
            if counted_at is None and now - began > SETTLING_S:
                counted_at, n_counted = now, n_answered
                print("settled", flush=True)
            time.sleep(TICK_S)
        assert counted_at is not None
        return (n_answered - n_counted) / (time.monotonic() - counted_at)


if __name__ == "__main__":
    print(json.dumps(send(int(sys.argv[1]), int(sys.argv[2]))))
