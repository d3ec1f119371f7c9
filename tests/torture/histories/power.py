"""Losses of power: the gateway's store as the disk would have it at any moment.

A gateway works under strace, which records what it writes and syncs. The record is cut at a random
system call, the directory is made as a disk might have it then (``disk``), and a gateway starts on
it. What had been acknowledged by then is there, whole and in order; what has a request key is sent
again, and stored once; and no id is given twice (``checks``).
"""

import asyncio
import dataclasses
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support import proxy
from tests.support.gateway import gateway
from tests.support.process import ChildError
from tests.torture.histories.disk import SYSTEM_CALLS, Disk
from tests.torture.histories.doors import Doors
from tests.torture.histories.reading import readers
from tests.torture.histories.record import PLAIN, History
from tests.torture.histories.single import RETENTION, at_work, judge, read_rows
from tests.torture.histories.writing import Writer, writers
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress
from tests.torture.strace import Call, read_record, require_strace, strace

WORK_S: Final = 3.0
"""How long a gateway works."""

CUTS: Final = 10
"""Of a record."""

AGAIN: Final = 30
"""Answered requests that are sent again after a cut, the last ones, besides all others."""

TIMEOUT_S: Final = 60.0


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Cut records ``rounds`` times.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
        UnavailableError: there is no strace.
    """
    require_strace()
    n_acknowledged = n_again = 0
    for begin in range(0, rounds, CUTS):
        here = directory / str(begin)
        here.mkdir()
        recorded = await _record(here, chance)
        for n in range(begin, min(begin + CUTS, rounds)):
            counts = await _cut(here, recorded, chance)
            n_acknowledged += counts[0]
            n_again += counts[1]
            progress(n + 1, rounds)
        shutil.rmtree(here)
    return (
        f"{rounds} losses of power: {n_acknowledged} events acknowledged before, none of them lost;"
        f" {n_again} requests sent again under their keys, each stored once"
    )


@dataclasses.dataclass
class _Recorded:
    """A gateway that worked, and what it wrote.

    Attributes:
        history: what it was asked, and answered.
        calls: of the system.
        first: the first of them when clients came.
        writing: the writers.
    """

    history: History
    calls: Sequence[Call]
    first: int
    writing: Sequence[Writer]


async def _record(here: Path, chance: random.Random) -> _Recorded:
    history = History()
    output = here / "strace.txt"
    arguments = "-ttt", "-xx", "-s", "100000000", "-e", f"trace={SYSTEM_CALLS}"
    async with gateway(here, core=_core(here), wrapper=strace(output, *arguments)) as running:
        begin_s = time.time()
        async with proxy.create(running.port) as link:
            doors = Doors([link])
            writing = writers(doors, history, chance)
            reading = readers(doors, history, chance, are_many=False)
            async with at_work(doors, writing, reading):
                await asyncio.sleep(WORK_S)
        running.process.kill()
        await running.process.wait()
    calls = await asyncio.to_thread(lambda: [*read_record(output)])
    first = next(n for n, call in enumerate(calls) if call.at_s > begin_s)
    return _Recorded(history, calls, first, writing)


def _core(here: Path) -> dict[str, object]:
    backend = {"type": "rocksdb", "path": str(here / "events"), "retention": RETENTION}
    return {"backend": backend}


async def _cut(here: Path, recorded: _Recorded, chance: random.Random) -> tuple[int, int]:
    """How many events were acknowledged before, and how many requests sent again after it."""
    calls = recorded.calls
    n_calls = chance.randrange(recorded.first, len(calls))
    history = _until(recorded.history, calls[n_calls].at_s - (time.time() - time.monotonic()))
    n_asked = len(history.attempts)
    n_acknowledged = sum(len(i.ids) for i in history.attempts)
    after = here / "after"
    disk = Disk(here / "events")
    disk.replay(calls[:n_calls])
    disk.cut(after / "events", chance)
    try:
        async with gateway(after, core=_core(after)) as running:
            async with proxy.create(running.port) as link:
                await _send_again(Doors([link]), recorded.writing, history, chance)
            history.note_stored(1, await read_rows(running.port, 1))
    except ChildError as e:
        raise ViolationError(f"cut after {n_calls} calls: {e}") from None
    judge(history, 1)
    shutil.rmtree(after)
    return n_acknowledged, len(history.attempts) - n_asked


def _until(history: History, at_s: float) -> History:
    """What had happened by a moment, of writers; nobody was answered later."""
    attempts = [dataclasses.replace(i) for i in history.attempts if i.begin_s <= at_s]
    for attempt in attempts:
        if not attempt.end_s or attempt.end_s > at_s:
            attempt.end_s, attempt.outcome, attempt.ids = at_s, "unknown", ()
    return History(attempts=attempts)


async def _send_again(
    doors: Doors, writing: Sequence[Writer], history: History, chance: random.Random
) -> None:
    """Have requests be answered that have a key: all that were not, and some that were."""
    asked: dict[int, dict[int, bool]] = defaultdict(dict)
    for attempt in history.attempts:
        if attempt.mode != PLAIN:
            of_writer = asked[attempt.writer]
            is_answered = attempt.outcome == "ok"
            of_writer[attempt.request] = is_answered or of_writer.get(attempt.request, False)
    again = []
    for number, requests in asked.items():
        answered = [request for request, is_answered in requests.items() if is_answered]
        chosen = [i for i in requests if not requests[i]] + answered[-AGAIN:]
        again.append(writing[number - 1].successor(doors, history, chance, chosen))
    async with asyncio.timeout(TIMEOUT_S), at_work(doors, again, []) as (sent, _):
        await asyncio.wait(sent)
