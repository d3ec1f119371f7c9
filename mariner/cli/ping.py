"""``mariner ping``: round-trip times and their statistics."""

import asyncio
import math
import signal
import time
from collections.abc import Coroutine
from typing import Any, Final

from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, CommandError, report
from mariner.cli.target import Target, TargetClient
from mariner.errors import ClosedError

_MS: Final = 1000


class Statistics:
    """Counts and round-trip times."""

    def __init__(self) -> None:
        self.transmitted = 0
        self.times_s: list[float] = []

    def summary(self, address: str, duration_s: float) -> list[str]:
        """The last lines of the output: counts, and times if any answer was received."""
        received = len(self.times_s)
        loss = 100 * (self.transmitted - received) / max(self.transmitted, 1)
        lines = [
            f"--- {address} ping statistics ---",
            f"{self.transmitted} transmitted, {received} received, {loss:.4g}% loss,"
            f" time {duration_s * _MS:.0f} ms",
        ]
        if received:
            average = math.fsum(self.times_s) / received
            variance = math.fsum((i - average) ** 2 for i in self.times_s) / received
            figures = (min(self.times_s), average, max(self.times_s), math.sqrt(variance))
            text = "/".join(f"{i * _MS:.3f}" for i in figures)
            lines.append(f"rtt min/avg/max/mdev = {text} ms")
        return lines


async def ping_server(server: Target, *, count: int, interval_s: float, timeout_s: float) -> None:
    """Ping until ``count`` are sent (0: no limit), interrupted, or the connection is lost.

    Raises:
        CommandError: no ping was answered.
        ClosedError: the connection was lost; the summary was printed.
        ConnectError, InitError: as :meth:`Target.connect`.
    """
    async with await server.connect(timeout_s=timeout_s) as client:
        output.write_text(f"PING {client.address}: connected, status {client.status.name}")
        statistics = Statistics()
        started = time.monotonic()
        pinging = _ping(
            client,
            client.address,
            statistics,
            count=count,
            interval_s=interval_s,
            timeout_s=timeout_s,
        )
        error = None
        try:
            await _until_interrupted(pinging)
        except ClosedError as e:
            error = e
        output.write_text("")
        for line in statistics.summary(client.address, time.monotonic() - started):
            output.write_text(line)
        if error is not None:
            raise error
        if not statistics.times_s:
            raise CommandError("", EXIT_FAILED)


async def _until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; SIGINT cancels it."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _ping(
    client: TargetClient,
    address: str,
    statistics: Statistics,
    *,
    count: int,
    interval_s: float,
    timeout_s: float,
) -> None:
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    while not count or statistics.transmitted < count:
        await asyncio.sleep(next_at - loop.time())
        next_at = max(next_at + interval_s, loop.time())
        statistics.transmitted += 1
        seq = statistics.transmitted
        try:
            async with asyncio.timeout(timeout_s):
                time_s = await client.ping()
        except asyncio.CancelledError:
            statistics.transmitted -= 1  # interrupted before its timeout: not lost
            raise
        except TimeoutError:
            report(f"no answer from {address}: seq={seq} within {timeout_s:g} s")
        else:
            statistics.times_s.append(time_s)
            output.write_text(f"answer from {address}: seq={seq} time={time_s * _MS:.3f} ms")
