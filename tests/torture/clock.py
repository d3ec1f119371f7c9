"""A clock that jumps back an hour, and forth, while the gateway runs and while it does not.

One that jumps days ahead, which deletes nothing and forgets no request key. And one that jumps ten
years ahead and back, with the way back of README.
"""

import asyncio
import os
import random
import signal
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from eventer_bridge.model import Event, EventId, QueryTimeseriesParams, RegisterEvent, Timestamp
from mariner.client.client import Client
from tests.support import process as processes
from tests.support.gateway import Gateway, gateway
from tests.torture.clients import connected, loaded
from tests.torture.ledger import TYPES, Ledger, ViolationError, read_store
from tests.torture.report import Progress
from tests.torture.shifted_clock import CLOCK_FILE, write_offset

HOUR_S: Final = 3600.0
YEARS_S: Final = 10 * 365 * 24 * HOUR_S

DAYS_S: Final = 3 * 24 * HOUR_S
DURATION_S: Final = 12 * HOUR_S
"""For which events are kept, by ``run_days``."""

_MARK: Final = ("mark",)
_PROGRAM: Final = "tests.torture.shifted_clock"

_EVENTS: Final = 150
"""Acknowledged between two jumps."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Jump back twice in each round, once with a restart.

    Raises:
        ViolationError: a timestamp went back, or ids and timestamps are in another order.
    """
    ledger = Ledger()
    file = directory / "clock"
    n_jumps, ahead_s = 0, HOUR_S
    for n in range(1, rounds + 1):
        for shift_s in ahead_s, ahead_s - HOUR_S:
            write_offset(file, shift_s)
            async with gateway(
                directory,
                program=_PROGRAM,
                environment={CLOCK_FILE: str(file)},
            ) as running:
                async with loaded(running, ledger) as load:
                    await load.until_acknowledged(_EVENTS)
                    write_offset(file, shift_s - HOUR_S)
                    await load.until_acknowledged(_EVENTS)
                async with connected(running) as client:
                    stored = await read_store(client)
                ledger.check(stored)
            _check(stored, ahead_s)
            n_jumps += 2
        ahead_s += chance.uniform(0, HOUR_S)
        progress(n, rounds)
    return f"{n_jumps} jumps of an hour back: {len(stored)} events, timestamps and ids in one order"


async def run_days(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Jump days ahead in each round: while the gateway runs, and while it, or the machine, is off.

    Raises:
        ViolationError: an event was deleted, or stored twice under its key; or what is old is kept.
    """
    file = directory / "clock"
    passed_s = shift_s = 0.0
    start = n_kept = n_keys = 0
    for n in range(1, rounds + 1):
        ledger, answers = Ledger(), dict[str, list[Event]]()
        write_offset(file, shift_s, passed_s, start)
        async with _keeping(directory, file) as running:
            passed_s += 3 * DURATION_S  # the store is older than what is to be kept
            write_offset(file, shift_s, passed_s, start)
            async with loaded(running, ledger) as load, connected(running) as client:
                await load.until_acknowledged(_EVENTS)
                await _register_keyed(client, n, answers)
                shift_s += DAYS_S + chance.uniform(0, DAYS_S)
                write_offset(file, shift_s, passed_s, start)
                await load.until_acknowledged(_EVENTS)
                await _until_retained(client)
                await _register_keyed(client, n, answers)
            if chance.random() < 0.5:
                os.kill(running.pid, signal.SIGKILL)
                await running.process.wait()
        start += chance.randint(0, 1)
        shift_s += DAYS_S + chance.uniform(0, DAYS_S)
        write_offset(file, shift_s, passed_s, start)
        async with _keeping(directory, file) as running, connected(running) as client:
            await _until_retained(client)
            ledger.check(await read_store(client))
            await _register_keyed(client, n, answers)
            n_kept += len(ledger.acknowledged)
            n_keys += len(answers)
            passed_s += DURATION_S + HOUR_S  # and now it is old
            write_offset(file, shift_s, passed_s, start)
            await _until_retained(client)
            if len(await read_store(client)) > TYPES:
                raise ViolationError("what is old enough is not deleted")
        progress(n, rounds)
    return (
        f"{2 * rounds} jumps of days ahead: {n_kept} events kept until their time had passed,"
        f" {n_keys} requests stored once"
    )


def _keeping(directory: Path, file: Path) -> AbstractAsyncContextManager[Gateway]:
    """A gateway with retention by age, and a rule whose work can be seen."""
    rules = [
        {"subscriptions": [["torture", "*"]], "duration": DURATION_S},
        {"subscriptions": [[*_MARK]], "max_entries": 1},
    ]
    backend = {"type": "rocksdb", "path": str(directory / "events"), "retention": rules}
    environment = {CLOCK_FILE: str(file)}
    return gateway(directory, program=_PROGRAM, environment=environment, core={"backend": backend})


async def _until_retained(client: Client) -> None:
    """Wait until retention has looked twice at everything."""
    for _ in range(2):
        for _ in range(3):
            await client.register([RegisterEvent(_MARK, None, None)])
        params = QueryTimeseriesParams([_MARK])
        while len([i async for i in client.query_all(params)]) > 1:
            await asyncio.sleep(0.1)


async def _register_keyed(client: Client, n: int, answers: dict[str, list[Event]]) -> None:
    for i in range(20):
        key = f"{n}-{i}"
        found = [*await client.register([RegisterEvent(("keyed", str(i)), None, None)], key)]
        if answers.setdefault(key, found) != found:
            raise ViolationError(f"stored twice under its key {key}: {answers[key]}, {found}")


async def run_years(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Jump ten years ahead and back, and restore the store as of the moment before.

    Raises:
        ViolationError: what came before is not there, or the clock is still ahead.
    """
    file = directory / "clock"
    environment = {CLOCK_FILE: str(file)}
    n_kept = n_later = n_refused = 0
    for n in range(1, rounds + 1):
        here = directory / str(n)
        here.mkdir()
        ledger, later = Ledger(), Ledger()
        write_offset(file, 0)
        async with gateway(here, program=_PROGRAM, environment=environment) as running:
            async with loaded(running, ledger) as load:
                await load.until_acknowledged(chance.randint(1, _EVENTS))
            until = Timestamp.now()
            write_offset(file, YEARS_S + chance.uniform(0, HOUR_S))
            async with loaded(running, later) as load:
                await load.until_acknowledged(_EVENTS)
                write_offset(file, 0)
                await load.until(lambda: bool(load.refusals))
                n_refused += len(load.refusals)
            if "are ahead of the clock of this machine" not in load.refusals[0]:
                raise ViolationError(f"refused for another reason: {load.refusals[0]}")
            n_later += len(later.acknowledged)
        restored = here / "restored"
        await _restore(until, here / "events", restored)
        async with (
            gateway(here, store=restored, program=_PROGRAM, environment=environment) as running,
            connected(running) as client,
        ):
            ledger.check(await read_store(client))
            [after] = await client.register([RegisterEvent(("after",), None, None)])
        n_kept += len(ledger.acknowledged)
        if after.timestamp > Timestamp.now():
            raise ViolationError(f"the clock is still ahead: {after.timestamp}")
        progress(n, rounds)
    return (
        f"{rounds} jumps of ten years: {n_kept} events acknowledged before, {n_later}"
        f" left out that came with wrong timestamps, {n_refused} refusals"
    )


async def _restore(until: Timestamp, store: Path, restored: Path) -> None:
    arguments = ("restore", "--until", until.to_iso(), str(store), str(restored))
    output = store.parent / "restore.txt"
    async with processes.child("mariner", *arguments, output=output) as process:
        if await process.wait() != 0:
            raise ViolationError(f"not restored: {processes.tail(output)}")


def _check(stored: list[Event], ahead_s: float) -> None:
    """That the clock was ahead at all, and that no timestamp went back."""
    order: list[tuple[EventId, Timestamp]] = [(i.id, i.timestamp) for i in stored]
    if order != sorted(order, key=lambda i: (i[1], i[0])):
        raise ViolationError("timestamps went back")
    greatest = stored[-1].timestamp
    if greatest.to_float() < time.time() + ahead_s - HOUR_S / 2:
        raise ViolationError(f"the clock was not shifted: {greatest}")
