"""``mariner ping``: round-trip times and their statistics."""

import asyncio
import math
import signal
import time
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, CommandError, report
from mariner.cli.target import Target, TargetClient
from mariner.errors import ClosedError

_MS: Final = 1000
_FIGURES: Final = ("min", "avg", "max", "mdev")


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
        if (figures := self.figures_ms()) is not None:
            text = "/".join(f"{i:.3f}" for i in figures)
            lines.append(f"rtt {'/'.join(_FIGURES)} = {text} ms")
        return lines

    def figures_ms(self) -> list[float] | None:
        """What :data:`_FIGURES` names, in milliseconds; None: no answer was received."""
        received = len(self.times_s)
        if not received:
            return None
        average = math.fsum(self.times_s) / received
        variance = math.fsum((i - average) ** 2 for i in self.times_s) / received
        figures = (min(self.times_s), average, max(self.times_s), math.sqrt(variance))
        return [round(i * _MS, 3) for i in figures]


class Printer:
    """What is told of pings, for people."""

    def connected(self, address: str, status: str) -> None:
        """There is a connection."""
        output.write_text(f"PING {address}: connected, status {status}")

    def answered(self, address: str, seq: int, time_s: float) -> None:
        """An answer came."""
        output.write_text(f"answer from {address}: seq={seq} time={time_s * _MS:.3f} ms")

    def ended(self, address: str, status: str, statistics: Statistics, duration_s: float) -> None:
        """No more are sent."""
        output.write_text("")
        for line in statistics.summary(address, duration_s):
            output.write_text(line)


class JsonPrinter(Printer):
    """The same as lines of JSON: one for each answer, and one for all of them."""

    def connected(self, address: str, status: str) -> None:
        """See :class:`Printer`; the last line says it."""

    def answered(self, address: str, seq: int, time_s: float) -> None:
        """See :class:`Printer`."""
        _write_json({"seq": seq, "time_ms": round(time_s * _MS, 3)})

    def ended(self, address: str, status: str, statistics: Statistics, duration_s: float) -> None:
        """See :class:`Printer`."""
        times = statistics.figures_ms()
        _write_json(
            {
                "address": address,
                "status": status,
                "transmitted": statistics.transmitted,
                "received": len(statistics.times_s),
                "duration_ms": round(duration_s * _MS, 3),
                "rtt_ms": None if times is None else dict(zip(_FIGURES, times, strict=True)),
            }
        )


def _write_json(fields: dict[str, Any]) -> None:
    output.write_text(msgspec.json.encode(fields).decode())


async def ping_server(
    server: Target, printer: Printer, *, count: int, interval_s: float, timeout_s: float
) -> None:
    """Ping until ``count`` are sent (0: no limit), interrupted, or the connection is lost.

    Raises:
        CommandError: no ping was answered.
        ClosedError: the connection was lost; the summary was printed.
        ConnectError, InitError: as :meth:`Target.connect`.
    """
    async with await server.connect(timeout_s=timeout_s) as client:
        printer.connected(client.address, client.status.name)
        statistics = Statistics()
        started = time.monotonic()
        pinging = _ping(
            client,
            printer,
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
        duration_s = time.monotonic() - started
        printer.ended(client.address, client.status.name, statistics, duration_s)
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
    printer: Printer,
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
            report(f"no answer from {client.address}: seq={seq} within {timeout_s:g} s")
        else:
            statistics.times_s.append(time_s)
            printer.answered(client.address, seq, time_s)
