"""``mariner register``: sends concurrent requests, and tells their answers in order.

One task sends and one awaits answers, with a queue of requests between them; the sender waits while
``limits.MAX_REQUESTS`` are pending. Standard input is read without blocking the event loop.
"""

import asyncio
import codecs
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.model import Event, RegisterEvent
from mariner import errors, limits
from mariner.cli.run import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE, CommandError, report
from mariner.cli.target import TargetClient
from mariner.cli.values import parse_register_event, parse_typed_event

T = TypeVar("T")


class LabelledBatch(NamedTuple):
    """Events that are registered together, and their origin for messages: ``line 3``."""

    label: str
    events: Sequence[RegisterEvent]


_Request: TypeAlias = tuple[str, asyncio.Task[Sequence[Event]]]
_Labelled: TypeAlias = tuple[str, RegisterEvent]


def read_batches(arguments: Sequence[str], size: int) -> AsyncIterator[LabelledBatch]:
    """The events of arguments or, without any, of the lines of standard input.

    Arguments are parsed at once. Lines before a wrong one come before the CommandError about it.
    """
    if len(arguments) == 2 and not (_is_object(arguments[0]) or _is_file(arguments[0])):
        label = repr(arguments[0])
        try:
            parsed = [(label, parse_typed_event(*arguments))]
        except InvalidEventError as e:
            raise CommandError(f"{label}: {e}", EXIT_USAGE) from e
    else:
        parsed = [_parse_argument(f"argument {i}", text) for i, text in enumerate(arguments, 1)]
    return _batches(read_items(parsed, _parse), size)


async def _batches(events: AsyncIterator[_Labelled], size: int) -> AsyncIterator[LabelledBatch]:
    pending: list[_Labelled] = []
    try:
        async for event in events:
            pending.append(event)
            if len(pending) == size:
                yield _batch(pending)
                pending = []
    except CommandError:
        if pending:
            yield _batch(pending)
        raise
    if pending:
        yield _batch(pending)


def _batch(pending: Sequence[_Labelled]) -> LabelledBatch:
    first, last = pending[0][0], pending[-1][0]
    label = first if first == last else f"{first} to {last}"
    return LabelledBatch(label, [event for _, event in pending])


def _parse_argument(label: str, text: str) -> _Labelled:
    if _is_object(text):
        return _parse(label, text)
    if _is_file(text):
        reason = "is a file: register its lines from standard input (register < FILE)"
        raise CommandError(f"{label}: {text!r} {reason}", EXIT_USAGE)
    raise CommandError(f"{label}: expected a JSON object, or TYPE PAYLOAD alone", EXIT_USAGE)


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _is_file(text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):  # a text that cannot be a name
        return Path(text).is_file()
    return False


def _parse(label: str, text: str | bytes) -> _Labelled:
    try:
        return label, parse_register_event(text)
    except InvalidEventError as e:
        raise CommandError(f"{label}: {e}", EXIT_USAGE) from e


async def register_events(
    client: TargetClient,
    batches: AsyncIterator[LabelledBatch],
    on_registered: Callable[[Sequence[Event]], None],
) -> None:
    """Register events; ``on_registered`` is called with them, request by request.

    Raises CommandError if one was refused, its outcome is unknown, or reading them failed: pending
    requests are still awaited and told of, and those read before registered. Raises
    ConnectionLostError if the connection was lost while no request was pending.
    """
    requests: asyncio.Queue[_Request | None] = asyncio.Queue()
    slots = asyncio.Semaphore(limits.MAX_REQUESTS)
    sender = asyncio.create_task(_send(client, batches, requests, slots))
    answers = asyncio.create_task(_answers(requests, slots, sender, on_registered))
    closing = asyncio.create_task(client.wait_closing())
    try:
        await asyncio.wait([sender, answers, closing], return_when=asyncio.FIRST_COMPLETED)
        is_input_done = sender.done()
        sender.cancel()
        requests.put_nowait(None)
        await answers
        if is_input_done:
            await sender
        else:
            raise errors.ConnectionLostError(f"{client.address}: {client.close_reason}")
    finally:
        left = [requests.get_nowait() for _ in range(requests.qsize())]
        tasks = [sender, answers, closing, *(i[1] for i in left if i is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(
    client: TargetClient,
    batches: AsyncIterator[LabelledBatch],
    requests: asyncio.Queue[_Request | None],
    slots: asyncio.Semaphore,
) -> None:
    async for label, events in batches:
        await slots.acquire()
        response = asyncio.create_task(client.register(events))
        requests.put_nowait((label, response))


async def _answers(
    requests: asyncio.Queue[_Request | None],
    slots: asyncio.Semaphore,
    sender: asyncio.Task[None],
    on_registered: Callable[[Sequence[Event]], None],
) -> None:
    exit_code = 0
    while (request := await requests.get()) is not None:
        label, response = request
        try:
            events = await response
        except errors.MarinerError as e:
            report(f"error: {label}: {e}")
            exit_code = max(exit_code, _exit_code(e))
            sender.cancel()
        else:
            on_registered(events)
        slots.release()
    if exit_code:
        raise CommandError("", exit_code)


def _exit_code(error: errors.MarinerError) -> int:
    """Exit code of an error; of several errors, the greatest counts."""
    match error:
        case errors.OutcomeUnknownError():
            return EXIT_UNKNOWN
        case errors.LocalProtocolError() | InvalidEventError() | LimitError():
            return EXIT_USAGE
        case _:
            return EXIT_FAILED


# --- standard input -------------------------------------------------------------------------


def input_bytes() -> tuple[int, int] | None:
    """How much of standard input is read, and its size; None: it is no file."""
    status = os.fstat(0)
    return (os.lseek(0, 0, os.SEEK_CUR), status.st_size) if stat.S_ISREG(status.st_mode) else None


async def read_items(arguments: Sequence[T], parse: Callable[[str, bytes], T]) -> AsyncIterator[T]:
    """The items of arguments or, without any, of the lines of standard input, with their label."""
    for item in arguments:
        yield item
    if not arguments:
        async for number, line in read_lines():
            yield parse(f"line {number}", line)


async def read_lines(fd: int = 0) -> AsyncIterator[tuple[int, bytes]]:
    """Read lines, numbered from 1, as they arrive; blank ones are skipped.

    A byte order mark before the first, as some editors write it, is no part of it. Raises
    CommandError if they are UTF-16, OSError if reading failed.
    """
    number = 0
    parts: list[bytes] = []
    async for chunk in _read_chunks(fd):
        head, *lines = chunk.split(b"\n")
        parts.append(head)
        for line in lines:
            number += 1
            if complete := _stripped(number, b"".join(parts)):
                yield number, complete
            parts = [line]
    if complete := _stripped(number + 1, b"".join(parts)):
        yield number + 1, complete


def _stripped(number: int, line: bytes) -> bytes:
    if number == 1:
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            text = "standard input: begins with the byte order mark of UTF-16, expected UTF-8"
            raise CommandError(text, EXIT_USAGE)
        line = line.removeprefix(codecs.BOM_UTF8)
    return line.strip()


async def _read_chunks(fd: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except PermissionError:
        # epoll supports no regular files: they are always readable
        while chunk := os.read(fd, limits.READ_CHUNK_BYTES):
            yield chunk
            await asyncio.sleep(0)
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            chunk = os.read(fd, limits.READ_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    finally:
        loop.remove_reader(fd)
