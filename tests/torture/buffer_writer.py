"""An application that stores and forwards, to be killed: ``python -m tests.torture.buffer_writer``.

It registers numbered events, of two kinds: ``repeated`` under keys of its own, so that it goes on
behind the last one that was acknowledged, and registers again what it does not know of; and
``new``, of which a number that was begun is not used again. What is acknowledged is in a file.
"""

import asyncio
import functools
import logging
import os
import random
import sys
from pathlib import Path
from typing import Final

from eventer_bridge.model import JsonPayload, RegisterEvent, Timestamp
from eventer_bridge.net import limits
from mariner import client
from mariner.client import BufferedClient

REPEATED: Final = ("torture", "repeated")
NEW: Final = ("torture", "new")

MAX_AT_ONCE: Final = 40

PAUSE_S: Final = 0.01
"""Between two groups: forwarding is to keep up, in spite of all the kills."""

DRAIN: Final = "drain"
"""Argument: register nothing more, and end when all is stored."""


class Ledger:
    """Numbers that were begun and acknowledged; kept over ``kill -9``."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.begun, self.acknowledged = read(path)

    def begin(self, number: int) -> None:
        """A number is about to be registered."""
        self._write(f"begin {number}\n")

    def acknowledge(self, number: int) -> None:
        """It is in the buffer."""
        self._write(f"acknowledge {number}\n")

    def _write(self, line: str) -> None:
        os.write(self._file, line.encode())


def read(path: Path) -> tuple[set[int], set[int]]:
    """Numbers that were begun, and acknowledged."""
    found: dict[str, set[int]] = {"begin": set(), "acknowledge": set()}
    for line in path.read_text().splitlines() if path.exists() else ():
        what, number = line.split()
        found[what].add(int(number))
    return found["begin"], found["acknowledge"]


async def register(buffered: BufferedClient, directory: Path) -> None:
    """Register until it is killed."""
    repeated, new = Ledger(directory / "repeated"), Ledger(directory / "new")
    next_repeated = max(repeated.acknowledged, default=0) + 1
    next_new = max(new.begun, default=0) + 1
    chance = random.Random()
    while True:
        n_events = chance.randint(1, MAX_AT_ONCE)
        tasks = []
        for _ in range(n_events):
            tasks.append(_register_repeated(buffered, repeated, next_repeated))
            next_repeated += 1
            if chance.random() < 0.5:
                tasks.append(_register_new(buffered, new, next_new))
                next_new += 1
        await asyncio.gather(*tasks)
        await asyncio.sleep(PAUSE_S)


async def _register_repeated(buffered: BufferedClient, ledger: Ledger, number: int) -> None:
    event = RegisterEvent(REPEATED, Timestamp(number, 0), JsonPayload.of(number))
    await buffered.register([event], f"number {number}")
    ledger.acknowledge(number)


async def _register_new(buffered: BufferedClient, ledger: Ledger, number: int) -> None:
    ledger.begin(number)
    await buffered.register([RegisterEvent(NEW, None, JsonPayload.of(number))])
    ledger.acknowledge(number)


async def main(directory: Path, port: int, *, is_draining: bool) -> None:
    """Run it."""
    connect = functools.partial(
        client.connect, "127.0.0.1", port, client_name="app", client_token="secret"
    )
    async with await BufferedClient.open(directory / "buffer", [connect]) as buffered:
        if is_draining:
            await buffered.drain()
        else:
            await register(buffered, directory)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    limits.RECONNECT_MAX_S = 0.2  # type: ignore[misc]
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), is_draining=sys.argv[3:] == [DRAIN]))
