"""``kill -9`` of the gateway, and then a log that is gone, empty, another store's, or cut.

After each kill the store is copied and the log of the copy is damaged, in each way. Whatever was
acknowledged is lost then: ``mariner store verify`` and the start both say so and leave the store
as it is, and with ``--accept-loss`` it starts with the sessions before the damage, whole, and
gives no id again. A copy that is not damaged has everything that was acknowledged.
"""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from eventer_bridge.backends.rocksdb import log_files, log_tail
from tests.support import process as processes
from tests.support.gateway import gateway
from tests.support.process import ChildError
from tests.torture.clients import connected, loaded
from tests.torture.ledger import Ledger, ViolationError, read_store
from tests.torture.report import Progress

N_EVENTS: int = 500
"""Acknowledged events before each kill, at least."""

LOST: Final = "events that were acknowledged are lost"


def _remove(log: Path, _: Path, __: random.Random) -> None:
    log.unlink()


def _empty(log: Path, _: Path, __: random.Random) -> None:
    os.truncate(log, 0)


def _swap(log: Path, other: Path, _: random.Random) -> None:
    shutil.copyfile(other, log)


def _tear(log: Path, _: Path, chance: random.Random) -> None:
    os.truncate(log, chance.randrange(_acknowledged_bytes(log)))


def _cut(log: Path, _: Path, chance: random.Random) -> None:
    """Between two records, which no checksum notices."""
    begin = log.read_bytes()[: chance.randrange(_acknowledged_bytes(log))]
    os.truncate(log, log_files._walk(begin).end)


DAMAGES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "deleted": _remove,
    "emptied": _empty,
    "swapped": _swap,
    "torn": _tear,
    "cut": _cut,
}


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Kill it ``rounds`` times, and damage the log in every way after each.

    Raises:
        ViolationError: a loss was not said, or whatever else must not happen.
    """
    ours, other, copy = (directory / name for name in ("ours", "other", "copy"))
    for path in ours, other:
        path.mkdir()
    await _work(other, Ledger())
    ledger = Ledger()
    n_lost = 0
    for n in range(1, rounds + 1):
        await _work(ours, ledger)
        for damage in (None, *DAMAGES):
            shutil.copytree(ours, copy, ignore=shutil.ignore_patterns("control.sock"))
            store = copy / "events"
            if damage is None:
                if refusal := await _verify(store):
                    raise ViolationError(f"not damaged, but: {refusal}")
                async with gateway(copy) as running, connected(running) as client:
                    ledger.check(await read_store(client))
            else:
                DAMAGES[damage](_last_log(store), _last_log(other / "events"), chance)
                n_lost += await _check_loss(copy, ledger, damage)
            shutil.rmtree(copy)
        progress(n, rounds)
    return (
        f"{rounds} kills, {rounds * len(DAMAGES)} damaged logs: all said by verify and the start;"
        f" {len(ledger.acknowledged)} events acknowledged, {n_lost} lost where that was accepted"
    )


async def _work(directory: Path, ledger: Ledger) -> None:
    async with gateway(directory) as running:
        async with loaded(running, ledger) as load:
            await load.until_acknowledged(N_EVENTS)
            os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()


async def _check_loss(directory: Path, ledger: Ledger, damage: str) -> int:
    """Returns how many acknowledged events are lost."""
    store = directory / "events"
    before = {i.name: i.read_bytes() for i in store.iterdir()}
    said = {"verify": await _verify(store), "the start": await _start(directory)}
    for who, text in said.items():
        if LOST not in text or "--accept-loss" not in text or "exit code 1" not in text:
            raise ViolationError(f"log {damage}: {who} said: {text or 'nothing'}")
    if before != {i.name: i.read_bytes() for i in store.iterdir()}:
        raise ViolationError(f"log {damage}: the store was changed, but not started")
    greatest = ledger.greatest_seen
    async with (
        gateway(directory, arguments=["--accept-loss"]) as running,
        connected(running) as client,
    ):
        stored = await read_store(client)
        [event] = await client.register(Ledger().request()[:1])
    if event.id.session <= greatest:
        raise ViolationError(f"log {damage}: an id up to {greatest} was given again")
    left = {i.id for i in stored}
    lost = [i for i in ledger.acknowledged if i not in left]
    # the last commit may have been synced, but nobody told of it any more
    is_some_lost = bool(lost) or damage in {"torn", "cut"}
    if not is_some_lost or (lost and left and max(left) > min(lost)):
        raise ViolationError(f"log {damage}: {len(lost)} lost, and not those behind the others")
    return len(lost)


async def _verify(store: Path) -> str:
    output = store.with_suffix(".verify")
    try:
        async with processes.child("mariner", "store", "verify", str(store), output=output) as it:
            await it.wait()
    except ChildError as e:
        return str(e)
    return ""


async def _start(directory: Path) -> str:
    try:
        async with gateway(directory):
            return ""
    except ChildError as e:
        return str(e)


def _last_log(store: Path) -> Path:
    return log_files.list_logs(store)[-1]


def _acknowledged_bytes(log: Path) -> int:
    return log_tail.read(log.parent)[-1].n_bytes
