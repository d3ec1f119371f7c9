"""Writers and readers of a gateway to which everything is done, and what is to be true of it.

Writers with and without request keys, and readers with ``start`` and cursors, fast and slow, work
all the time (``writing``, ``reading``). In each round one to three faults are done to the gateway
at the same time (``faults``). In the end all that is stored is read over the wire, and compared
with what everybody was told (``checks``). The clients and the checks share no code with the
product: a mistake of it is not made by them, too.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.torture.histories import faults
from tests.torture.histories.checks import check
from tests.torture.histories.doors import Doors
from tests.torture.histories.reading import Reader, readers
from tests.torture.histories.record import History, Row, rows_of
from tests.torture.histories.servers import Server, closing
from tests.torture.histories.wire import DeclinedError, LostError, read_server
from tests.torture.histories.writing import Writer, writers
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

RETENTION: Final = [{"subscriptions": [["history", "short", "*"]], "max_entries": 100}]

PROGRESS_S: Final = 90.0
"""Until somebody writes and somebody reads after faults, and until all has been read in the end."""

POLL_S: Final = 0.05

KEPT_HISTORIES: Final = Path(__file__).parents[3] / "var"
"""Where the history is written of a run with a violation."""


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Do ``rounds`` times several things to a gateway.

    Raises:
        ViolationError: the history is not one that docs/delivery.md allows.
    """
    history = History()
    backend = {"type": "rocksdb", "path": str(directory / "events"), "retention": RETENTION}
    server = Server(directory, 1, {"backend": backend}, history)
    known = faults.available(faults.OF_DISKS, faults.OF_BACKUPS)
    async with closing(server):
        await work([server], history, chance, known, (rounds, progress))
        history.note_stored(1, await read_rows(server.port, 1))
        await _note_parked(server, history)
    return judge(history, rounds)


async def work(
    servers: Sequence[Server],
    history: History,
    chance: random.Random,
    known: Mapping[str, tuple[int, faults.FaultCb]],
    rounds: tuple[int, Progress],
) -> None:
    """Write and read during faults, and then until all that is stored has been read."""
    doors = Doors([i.link for i in servers])
    writing = writers(doors, history, chance)
    reading = readers(doors, history, chance, are_many=len(servers) > 1)
    async with at_work(doors, writing, reading) as (written, read):
        for n in range(1, rounds[0] + 1):
            doing = faults.combined(servers, chance, history, known)
            await _in_time(doing, "faults do not end", history)
            await _in_time(_progress(history), "nobody writes, or nobody reads", history)
            rounds[1](n, rounds[0])
        for writer in writing:
            writer.end()
        await _in_time(asyncio.wait(written), "not all keys are answered", history)
        await _in_time(_settle(servers), "the servers do not have the same", history)
        for reader in reading:
            reader.end()
        await _in_time(asyncio.wait(read), "readers are not up to date", history)
        for task in (*written, *read):
            task.result()


async def _settle(servers: Sequence[Server]) -> None:
    """Wait until all servers have the same events of the writers."""
    numbers = range(1, len(servers) + 1)
    has: list[dict[int, list[Row]]] = [{n: [] for n in numbers} for _ in servers]
    while len(servers) > 1:
        for server, rows in zip(servers, has, strict=True):
            for n in numbers:
                with contextlib.suppress(LostError, DeclinedError):
                    rows[n] += await read_rows(server.port, n, rows[n][-1:])
        if all(rows == has[0] for rows in has):
            return
        await asyncio.sleep(POLL_S * 10)


async def read_rows(port: int, server: int, behind: Sequence[Row] = ()) -> list[Row]:
    """The stored events of writers, of a server.

    Args:
        port: of the server that is asked.
        server: whose events.
        behind: the last one that is known.

    Raises:
        LostError, DeclinedError: they could not be read.
    """
    last = behind[-1].event_id if behind else None
    pages = read_server(port, server, PROGRESS_S, last)
    return [row async for page in pages for row in rows_of(page)]


@contextlib.asynccontextmanager
async def at_work(
    doors: Doors, writing: Sequence[Writer], reading: Sequence[Reader]
) -> AsyncIterator[tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]]:
    """Have writers and readers work; gives their tasks, and ends them on the way out."""
    written = [asyncio.create_task(i.run()) for i in writing]
    read = [asyncio.create_task(i.run()) for i in reading]
    try:
        yield written, read
    finally:
        for task in (*written, *read):
            task.cancel()
        await asyncio.gather(*written, *read, return_exceptions=True)
        await doors.close()


async def _progress(history: History) -> None:
    begin_s = time.monotonic()
    while not history.problems:
        is_written = any(
            i.outcome == "ok" and i.begin_s > begin_s for i in reversed(history.attempts[-200:])
        )
        is_read = any(
            item[0] == "events" and item[1] > begin_s
            for visits in history.visits.values()
            for visit in visits[-1:]
            for item in visit.items[-1:]
        )
        if is_written and is_read:
            return
        await asyncio.sleep(POLL_S)
    raise _violation(history, history.problems)


async def _in_time(waiting: object, problem: str, history: History) -> None:
    try:
        async with asyncio.timeout(PROGRESS_S):
            await waiting  # type: ignore[misc]
    except TimeoutError:
        raise _violation(history, [f"{problem}, within {PROGRESS_S:g} s"]) from None


async def _note_parked(server: Server, history: History) -> None:
    """Have the gateway's operator list what is parked."""
    for cursor in {i.cursor for i in history.visits if i.cursor is not None}:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mariner", "cursors", "show", "--json"),
            *("--conf", str(server.directory / "gateway.json"), "app", cursor),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        rows = json.loads(output)["parked"]
        history.parked[cursor] = {
            (i["id"]["server"], i["id"]["session"], i["id"]["instance"]) for i in rows
        }


def judge(history: History, rounds: int) -> str:
    """What was done.

    Raises:
        ViolationError: it was not as promised.
    """
    if problems := [*history.problems, *check(history)]:
        raise _violation(history, problems)
    outcomes = [i.outcome for i in history.attempts]
    n_stored = sum(map(len, history.stored.values()))
    n_visits = sum(map(len, history.visits.values()))
    n_read = sum(len(i.events()) for visits in history.visits.values() for i in visits)
    return (
        f"{rounds} rounds, {len(history.faults)} faults; {len(outcomes)} requests, of which"
        f" {outcomes.count('unknown')} had no answer and {outcomes.count('refused')} were refused;"
        f" {n_stored} events stored, {n_read} read by {len(history.visits)} readers over"
        f" {n_visits} connections: as promised"
    )


def _violation(history: History, problems: Sequence[str]) -> ViolationError:
    KEPT_HISTORIES.mkdir(exist_ok=True)
    path = KEPT_HISTORIES / f"history-{time.time_ns()}.jsonl"
    history.dump(path)
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    return ViolationError(f"{'; '.join(problems[:5])}{more}. Faults: {history.told()}. See {path}")
