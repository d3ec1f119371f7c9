"""``mariner register``: sends concurrent requests, and prints their answers in order.

A sender and a printer, with a queue of requests between them; the sender waits when
``MAX_REQUESTS`` are pending.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.model import Event, RegisterEvent
from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE, CommandError, report
from mariner.cli.stdin import read_lines
from mariner.cli.target import TargetClient
from mariner.cli.values import parse_register_event
from mariner.errors import (
    ConnectionLostError,
    LocalProtocolError,
    MarinerError,
    OutcomeUnknownError,
)

MAX_REQUESTS: Final = 64
"""Pending registrations; a durable server commits concurrent ones together."""


class Labelled(NamedTuple):
    """An event, and its origin for messages: ``line 3``."""

    label: str
    event: RegisterEvent


class _Request(NamedTuple):
    label: str
    response: asyncio.Task[Sequence[Event]]


async def read_stdin() -> AsyncIterator[Labelled]:
    """Parse the lines of standard input.

    Raises:
        CommandError: a line is invalid.
    """
    async for number, line in read_lines():
        yield _parse(f"line {number}", line)


async def _iterate(events: list[Labelled]) -> AsyncIterator[Labelled]:
    for event in events:
        yield event


def parse_arguments(arguments: Iterable[str]) -> AsyncIterator[Labelled]:
    """Parse command line arguments, all of them before the first is returned.

    Raises:
        CommandError: an argument is invalid.
    """
    return _iterate([_parse_argument(f"argument {i}", text) for i, text in enumerate(arguments, 1)])


def _parse_argument(label: str, text: str) -> Labelled:
    try:
        return _parse(label, text)
    except CommandError:
        with contextlib.suppress(OSError, ValueError):  # a text that cannot be a name
            if Path(text).is_file():
                reason = "a file: register its lines from standard input (register < FILE)"
                raise CommandError(f"{label}: {text!r} is {reason}", EXIT_USAGE) from None
        raise


def _parse(label: str, text: str | bytes) -> Labelled:
    try:
        return Labelled(label, parse_register_event(text))
    except InvalidEventError as e:
        raise CommandError(f"{label}: {e}", EXIT_USAGE) from e


async def register_events(
    client: TargetClient, events: AsyncIterator[Labelled], *, batch: int, quiet: bool
) -> None:
    """Register events and print them as registered, unless ``quiet``.

    Raises:
        CommandError: an event was refused, or it is unknown whether it is registered (pending
            requests are still awaited and printed), or reading the events raised it (those read
            before are registered and printed).
        ConnectionLostError: the connection was lost while no request was pending.
    """
    requests: asyncio.Queue[_Request | None] = asyncio.Queue()
    slots = asyncio.Semaphore(MAX_REQUESTS)
    sender = asyncio.create_task(_send(client, events, batch, requests, slots))
    printer = asyncio.create_task(_print(requests, slots, sender, quiet))
    closing = asyncio.create_task(client.wait_closing())
    try:
        await asyncio.wait([sender, printer, closing], return_when=asyncio.FIRST_COMPLETED)
        is_input_done = sender.done()
        sender.cancel()
        requests.put_nowait(None)
        await printer
        if is_input_done:
            await sender
        else:
            raise ConnectionLostError(f"{client.address}: {client.close_reason}")
    finally:
        tasks = [sender, printer, closing, *_drain(requests)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(
    client: TargetClient,
    events: AsyncIterator[Labelled],
    batch: int,
    requests: asyncio.Queue[_Request | None],
    slots: asyncio.Semaphore,
) -> None:
    pending: list[Labelled] = []

    async def flush() -> None:
        if pending:
            await slots.acquire()
            response = asyncio.create_task(client.register([i.event for i in pending]))
            first, last = pending[0].label, pending[-1].label
            label = first if first == last else f"{first} to {last}"
            requests.put_nowait(_Request(label, response))
            pending.clear()

    try:
        async for labelled in events:
            pending.append(labelled)
            if len(pending) == batch:
                await flush()
    except CommandError:
        await flush()
        raise
    await flush()


async def _print(
    requests: asyncio.Queue[_Request | None],
    slots: asyncio.Semaphore,
    sender: asyncio.Task[None],
    quiet: bool,
) -> None:
    exit_code = 0
    while (request := await requests.get()) is not None:
        try:
            events = await request.response
        except MarinerError as e:
            report(f"error: {request.label}: {e}")
            exit_code = max(exit_code, _exit_code(e))
            sender.cancel()
        else:
            if not quiet:
                output.write_jsonl(events)
        slots.release()
    if exit_code:
        raise CommandError("", exit_code)


def _exit_code(error: MarinerError) -> int:
    """Exit code of an error; of several errors, the greatest counts."""
    match error:
        case OutcomeUnknownError():
            return EXIT_UNKNOWN
        case LocalProtocolError() | InvalidEventError() | LimitError():
            return EXIT_USAGE
        case _:
            return EXIT_FAILED


def _drain(requests: asyncio.Queue[_Request | None]) -> list[asyncio.Task[Sequence[Event]]]:
    left = []
    while not requests.empty():
        request = requests.get_nowait()
        if request is not None:
            left.append(request.response)
    return left
