"""A writer or a reader, to be killed: ``python -m tests.torture.edge_client``.

What it does is in its journal, each line written before what it says is done, or after it was
answered. One that is started again goes on from there. It uses the gateway that is OPERATIONAL.
"""

import asyncio
import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from eventer_bridge.model import EventId, JsonPayload, RegisterEvent, Status
from mariner import client
from mariner.errors import (
    ClosedError,
    ConnectError,
    GapError,
    InitError,
    OutcomeUnknownError,
    RegisterError,
)

TYPE: Final = "edge"
IN_FLIGHT: Final = 8
"""Requests of a writer that are under way."""

RECONNECT_S: Final = 0.02

PAUSE_S: Final = 0.1
"""Between two requests: readers are to keep up, in spite of all that happens to them."""


class Line(msgspec.Struct, omit_defaults=True):
    """A line of a journal.

    Attributes:
        what: ``begin`` or ``answer``, of a request; of a reader: ``connect`` and ``open`` of a
            connection, ``got`` of events, ``ack`` before they are acknowledged, ``known`` when the
            gateway has said that it has read that.
        at_s: when, by the monotonic clock of the machine.
        request: number of the request.
        ids: of events.
    """

    what: str
    at_s: float
    request: int = 0
    ids: Sequence[EventId] = ()


_decode: Final = msgspec.json.Decoder(Line).decode


class Journal:
    """Lines that outlive the process; one that was cut off was not written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.lines = [*read(path)]
        if os.fstat(self._file).st_size and os.pread(self._file, 1, _size(self._file) - 1) != b"\n":
            os.write(self._file, b"\n")

    def write(self, what: str, request: int = 0, ids: Sequence[EventId] = ()) -> None:
        """Write a line."""
        line = Line(what, time.monotonic(), request, ids)
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def _size(file: int) -> int:
    return os.fstat(file).st_size


def read(path: Path) -> Iterator[Line]:
    """The lines of a journal."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):  # it was killed in the middle of it
            yield _decode(line)


@contextlib.asynccontextmanager
async def connected(port: int, cursor: str | None = None) -> AsyncIterator[client.Client | None]:
    """A client of a gateway that is OPERATIONAL; None: it is not, after a little while."""
    try:
        connection = await client.connect(
            "127.0.0.1",
            port,
            client_name="app",
            client_token="secret",
            subscriptions=[(TYPE, "*")] if cursor else [],
            cursor=cursor,
        )
    except (ConnectError, InitError, ClosedError):
        connection = None
    if connection is not None:
        async with connection:
            if connection.status is Status.OPERATIONAL:
                yield connection
                return
    await asyncio.sleep(RECONNECT_S)
    yield None


class Writer:
    """Sends requests of one to three events, each again until it is answered.

    Args:
        directory: where its journal is.
        number: its number.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self._number = number
        self._journal = Journal(directory / f"writer-{number}")
        begun = {i.request for i in self._journal.lines if i.what == "begin"}
        answered = {i.request for i in self._journal.lines if i.what == "answer"}
        self._n_begun = max(begun, default=0)
        self._outbox = sorted(begun - answered)

    async def run(self, ports: Sequence[int], *, is_last: bool = False) -> None:
        """Write until it is killed; the last time, only what is left."""
        while self._outbox or not is_last:
            for port in ports:
                async with connected(port) as connection:
                    if connection is not None:
                        writing = (self._write(connection, is_last) for _ in range(IN_FLIGHT))
                        await asyncio.gather(*writing)

    async def _write(self, connection: client.Client, is_last: bool) -> None:
        while self._outbox or not is_last:
            if self._outbox:
                request = self._outbox.pop(0)
            else:
                request = self._n_begun = self._n_begun + 1
            self._journal.write("begin", request)
            try:
                answer = await connection.register(
                    events_of(self._number, request), f"{self._number}-{request}"
                )
            except (RegisterError, OutcomeUnknownError, ClosedError) as e:
                self._outbox.append(request)
                await asyncio.sleep(RECONNECT_S)
                if not isinstance(e, RegisterError) or connection.status is not Status.OPERATIONAL:
                    return
                continue
            self._journal.write("answer", request, [i.id for i in answer])
            await asyncio.sleep(PAUSE_S)


def events_of(writer: int, request: int) -> list[RegisterEvent]:
    """The events of a request."""
    return [
        RegisterEvent((TYPE, str(writer)), None, JsonPayload.of([request, part]))
        for part in range(request % 3 + 1)
    ]


class Reader:
    """Reads with a cursor, and acknowledges most of what it gets.

    Args:
        directory: where its journal is.
        name: of its journal; what is before a ``.`` is the cursor.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._journal = Journal(directory / name)
        self._cursor = name.partition(".")[0]
        self._missing: set[EventId] = set()

    async def run(self, ports: Sequence[int], until: Sequence[EventId] | None = None) -> None:
        """Read until it is killed, or until these events came."""
        self._missing = {*(until or ())}
        for path in self._directory.glob(f"{self._cursor}*"):
            for line in read(path):
                self._missing.difference_update(line.ids)
        while until is None or self._missing:
            for port in ports:
                self._journal.write("connect")
                async with connected(port, self._cursor) as connection:
                    if connection is not None:
                        self._journal.write("open")
                        await self._read(connection, is_endless=until is None)

    async def _read(self, connection: client.Client, *, is_endless: bool) -> None:
        leaving = asyncio.create_task(_leave(connection))
        try:
            with contextlib.suppress(ClosedError):  # lost, or another one has the cursor
                async for batch in _batches(connection):
                    ids = [event.id for event in batch.events]
                    self._journal.write("got", ids=ids)
                    self._missing.difference_update(ids)
                    if random.random() < 0.7 or not (is_endless or self._missing):
                        last = {i.server: i for i in ids}
                        self._journal.write("ack", ids=[*last.values()])
                        await batch.ack()
                        await connection.ping()
                        self._journal.write("known", ids=[*last.values()])
                    if not (is_endless or self._missing):
                        return
        finally:
            leaving.cancel()


async def _batches(connection: client.Client) -> AsyncIterator[client.ReplayBatch]:
    """What comes; gaps are of other types, which the replica that tells of them does not know."""
    is_gap = True
    while is_gap:
        is_gap = False
        try:
            async for batch in connection.replay():
                yield batch
        except GapError:
            is_gap = True


async def _leave(connection: client.Client) -> None:
    """Leave a gateway that is not OPERATIONAL any more."""
    with contextlib.suppress(ClosedError):
        await connection.wait_status(Status.STANDBY)
        await connection.async_close()


async def main(directory: Path, name: str, ports: Sequence[int]) -> None:
    """Be a writer or a reader, until it is killed."""
    if name.startswith("writer"):
        await Writer(directory, int(name.removeprefix("writer-"))).run(ports)
    else:
        await Reader(directory, name).run(ports)


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], [*map(int, sys.argv[3:])]))
