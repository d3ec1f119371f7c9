"""Flipped, overwritten and cut off files of a store: noticed, or without effect.

Three stores: one that was closed, one as after ``kill -9``, and one as after ``kill -9``
whose list of files (MANIFEST) and logs were added to meanwhile. A copy of one is damaged in
one place, opened, and asked everything. Either an error says that it is damaged, or every
answer is right. What cannot be noticed is that the list of files of a crashed store ends earlier
than it did, exactly between two records: then the last sessions are missing, whole.
"""

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.rocksdb import directories, log_files
from eventer_bridge.errors import StorageError, StoreLockedError
from eventer_bridge.model import (
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from tests.eventer_bridge.backends.oracle import answer
from tests.eventer_bridge.backends.putting import put
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

SESSIONS: int = 300

QUERIES: Final[Sequence[QueryParams]] = (
    QueryServerParams(1),
    QueryTimeseriesParams(order=Order.ASCENDING),
    QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP),
    QueryTimeseriesParams([("torture", str(i)) for i in range(3)]),
    QueryLatestParams(),
)

_MATTERS: Final = ("*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*", "CLOSED", "ACKNOWLEDGED")


def _leave(data: bytearray, offset: int, chance: random.Random) -> None:
    """An undamaged copy is not refused."""


def _flip_bit(data: bytearray, offset: int, chance: random.Random) -> None:
    data[offset] ^= 1 << chance.randrange(8)


def _change_byte(data: bytearray, offset: int, chance: random.Random) -> None:
    data[offset] ^= chance.randrange(1, 256)


def _zero(data: bytearray, offset: int, chance: random.Random) -> None:
    end = min(offset + chance.randrange(1, 100), len(data))
    data[offset:end] = bytes(end - offset)


def _truncate(data: bytearray, offset: int, _: random.Random) -> None:
    del data[offset:]


_DAMAGES: Final[dict[str, Callable[[bytearray, int, random.Random], None]]] = {
    "nothing": _leave,
    "bit": _flip_bit,
    "byte": _change_byte,
    "zeros": _zero,
    "cut off": _truncate,
}


class _Original(NamedTuple):
    """A store that is damaged, what it holds, and what it answers then."""

    name: str
    path: Path
    events: list[Event]
    answers: list[list[Event]]


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Damage every kind of file of every store ``rounds`` times in every way.

    Raises:
        ViolationError: a wrong answer was given.
    """
    verdicts: Counter[str] = Counter()
    originals = [await _closed(directory), await _crashed(directory), await _grown(directory)]
    for n in range(1, rounds + 1):
        for original in originals:
            for pattern in _MATTERS:
                files = [i for i in original.path.glob(pattern) if i.stat().st_size]
                for damage in _DAMAGES if files else ():
                    file = chance.choice(files)
                    verdict = await _damaged(original, file, damage, chance, directory / "copy")
                    verdicts[verdict] += 1
        progress(n, rounds)
    counted = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
    return f"{verdicts.total()} damages: {counted}"


def _change(file: Path, damage: str, chance: random.Random) -> str:
    data = bytearray(file.read_bytes())
    size = len(data.rstrip(b"\0"))  # a log ends in zeros, which mean nothing
    offset = chance.randrange(size or len(data))
    _DAMAGES[damage](data, offset, chance)
    file.write_bytes(data)
    return f"{file.name}, {damage} at {offset} of {size}"


async def _damaged(
    original: _Original, file: Path, damage: str, chance: random.Random, copy: Path
) -> str:
    shutil.copytree(original.path, copy)
    try:
        where = f"{original.name} store, {_change(copy / file.name, damage, chance)}"
        with _Warnings() as warnings:
            try:
                answers = await _ask(copy)
            except StorageError as e:
                if isinstance(e, StoreLockedError) or not str(e).startswith(f"{copy}: "):
                    raise ViolationError(f"{where}: not said clearly: {e}") from e
                if damage == "nothing":
                    raise ViolationError(f"{where}: {e}") from e
                return "refused"
        if answers == original.answers:
            return "without effect"
        kind = file.name.partition("-")[0].rpartition(".")[2]
        said = "said" if warnings.n_warnings else "not noticed"
        if original.name == "closed" or damage != "cut off" or kind != "MANIFEST":
            raise ViolationError(f"{where}: silently wrong")
        _check_beginning(original, answers, where)
        return f"ends earlier ({kind} of a crashed store, {said})"
    finally:
        shutil.rmtree(copy)


def _check_beginning(original: _Original, answers: list[list[Event]], where: str) -> None:
    """The first sessions, whole, and nothing else, by all queries."""
    found = answers[0]
    n_sessions = found[-1].id.session if found else 0
    beginning = [i for i in original.events if i.id.session <= n_sessions]
    if answers != _expected(beginning):
        raise ViolationError(f"{where}: not the first sessions, or not by all queries")


class _Warnings(logging.Handler):
    """Remembers that there was a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.n_warnings = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.n_warnings += 1

    def __enter__(self) -> "_Warnings":
        log_files.mlog.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log_files.mlog.removeHandler(self)


async def _ask(path: Path) -> list[list[Event]]:
    async with await rocksdb.create(path) as backend:
        answers = [list((await backend.query(i)).events) for i in QUERIES]
    answers[-1].sort(key=lambda event: (event.timestamp, event.id))  # latest: in any order
    return answers


def _expected(events: Sequence[Event]) -> list[list[Event]]:
    return [answer(events, i) for i in QUERIES]


def _events(session: int) -> list[Event]:
    return [
        Event(
            EventId(1, session, instance),
            ("torture", str((session + instance) % 10)),
            Timestamp(session, 0),
            Timestamp(-session, instance) if instance % 2 else None,
            JsonPayload.of({"session": session, "x": "y" * (session % 300)}),
        )
        for instance in range(1, 2 + session % 5)
    ]


async def _register(backend: Backend, first: int, last: int) -> list[Event]:
    sessions = [_events(i) for i in range(first, last + 1)]
    for events in sessions:
        await put(backend, events)
    return [event for events in sessions for event in events]


async def _closed(directory: Path) -> _Original:
    path = directory / "closed"
    async with await rocksdb.create(path) as backend:
        events = await _register(backend, 1, SESSIONS)
    return _Original("closed", path, events, _expected(events))


async def _crashed(directory: Path) -> _Original:
    live, path = directory / "live", directory / "crashed"
    async with await rocksdb.create(live) as backend:
        events = await _register(backend, 1, SESSIONS // 2)
    async with await rocksdb.create(live) as backend:
        events += await _register(backend, SESSIONS // 2 + 1, SESSIONS)
        directories.copy(live, path)
    shutil.rmtree(live)
    return _Original("crashed", path, events, _expected(events))


async def _grown(directory: Path) -> _Original:
    live, path = directory / "live", directory / "grown"
    with mock.patch.multiple(limits, WRITE_BUFFER_BYTES=32 << 10, MERGED_BUFFERS=1):
        async with await rocksdb.create(live) as backend:
            events = await _register(backend, 1, SESSIONS)
            directories.copy(live, path)
    shutil.rmtree(live)
    return _Original("grown", path, events, _expected(events))
