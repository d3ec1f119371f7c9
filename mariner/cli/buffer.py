"""``mariner register --buffer`` queues events in a directory, without a network.

``mariner forward``, a service, brings them to a gateway (``mariner.client.buffered``).
"""

import asyncio
import contextlib
import dataclasses
import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from typing_extensions import override

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import RegisterEvent
from mariner import limits
from mariner.cli import output
from mariner.cli.register import read_batches
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, report, run
from mariner.cli.target import Target
from mariner.cli.values import counted
from mariner.client.buffer_file import WhenFull
from mariner.client.buffered import BufferedClient, RegistrationBuffer
from mariner.errors import LocalProtocolError, MarinerError

_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)

_BOUNDS: Final = (
    click.Option(
        ["--buffer-bytes"],
        type=click.IntRange(1),
        default=limits.BUFFER_BYTES,
        show_default=True,
        help="Size of the buffer. Its files take somewhat more.",
    ),
    click.Option(
        ["--when-full"],
        type=click.Choice([i.value for i in WhenFull]),
        default=WhenFull.REFUSE.value,
        show_default=True,
        help="What to do when the buffer has no room for an event.",
    ),
)


def check_named(server: Target) -> None:
    """Ask for ``--name``; raises click.UsageError."""
    if server.name is None:
        raise click.UsageError("Missing option '--name' (env var: 'MARINER_NAME').")


def buffering(command: click.Command) -> click.Command:
    """``register``, with the option to queue the events."""
    call_server = command.callback
    assert call_server is not None

    def call(
        server: Target,
        *,
        buffer: Path | None,
        buffer_bytes: int,
        when_full: str,
        events: Sequence[str],
        batch: int,
        **others: Any,
    ) -> None:
        if buffer is None:
            check_named(server)
            call_server(server=server, events=events, batch=batch, **others)
        else:
            run(_queue(buffer, buffer_bytes, WhenFull(when_full), batch, events))

    option = click.Option(
        ["--buffer"],
        type=_DIRECTORY,
        help="Queue the events in this directory, for `mariner forward`, and exit with 0 when they"
        " are on disk. They are not printed, no server is needed, and an event without a source"
        " timestamp gets the current time. Several processes may do so at once.",
    )
    return click.Command(
        command.name,
        context_settings=command.context_settings,
        callback=call,
        params=[*command.params, option, *_BOUNDS],
        help=command.help,
    )


async def _queue(
    directory: Path, max_bytes: int, when_full: WhenFull, batch: int, arguments: Sequence[str]
) -> None:
    batches = read_batches(arguments, batch)
    errors: list[CommandError] = []
    slots = asyncio.Semaphore(limits.MAX_QUEUEING)
    async with (
        await RegistrationBuffer.open(directory, max_bytes=max_bytes, when_full=when_full) as it,
        asyncio.TaskGroup() as tasks,
    ):

        async def add(label: str, events: Sequence[RegisterEvent]) -> None:
            try:
                await it.add(events)
            except MarinerError as e:
                is_wrong = isinstance(e, InvalidEventError | LocalProtocolError)
                code = EXIT_USAGE if is_wrong else EXIT_FAILED
                errors.append(CommandError(f"{label}: {e}", code))
            finally:
                slots.release()

        try:
            async for label, events in batches:
                await slots.acquire()
                tasks.create_task(add(label, events))
                if errors:
                    break
        except CommandError as e:
            errors.append(e)
    if errors:
        raise errors[0]


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise click.BadParameter(f"{text!r}: expected HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option("--buffer", type=_DIRECTORY, required=True, help="Directory of the buffer.")
@click.option(
    "--fallback",
    "fallbacks",
    metavar="HOST:PORT",
    multiple=True,
    callback=lambda _context, _option, texts: [_address(i) for i in texts],
    help="Another gateway (of a pair), used while those before it are not OPERATIONAL. Can be"
    " repeated.",
)
@click.option("--status", "is_status", is_flag=True, help="Show what is in the buffer, and exit.")
@click.option("--json", "is_json", is_flag=True, help="With --status: print JSON.")
@click.option(
    "--retry-refused",
    is_flag=True,
    help="Queue again, behind everything else, what was refused for good, and exit.",
)
@click.option("--drop-refused", is_flag=True, help="Drop what was refused for good, and exit.")
def forward(
    server: Target,
    buffer: Path,
    fallbacks: Sequence[tuple[str, int]],
    *,
    is_status: bool,
    is_json: bool,
    retry_refused: bool,
    drop_refused: bool,
) -> None:
    """Forward a buffer's events to a gateway, as they come, until SIGTERM or SIGINT.

    `mariner register --buffer` puts events into a buffer. They are registered in order, each once,
    whatever is killed or cut, under request keys assigned when they were queued. What the gateway
    refuses for good (no right, invalid by a schema) is set aside, with the reason. Only one process
    forwards a buffer.

    Exit code 0: ended by a signal; 1: the buffer is damaged, or forwarded by another process; 2:
    wrong usage.
    """
    if is_status or retry_refused or drop_refused:
        if not buffer.is_dir():
            raise CommandError(f"{buffer}: there is no buffer", EXIT_USAGE)
        run(_look(buffer, is_json=is_json, retry=retry_refused, drop=drop_refused))
        return
    check_named(server)
    run(_forward(server, buffer, fallbacks))


async def _look(directory: Path, *, is_json: bool, retry: bool, drop: bool) -> None:
    async with await RegistrationBuffer.open(directory) as buffer:
        if retry or drop:
            count = await (buffer.retry_refused() if retry else buffer.drop_refused())
            what = "queued again" if retry else "dropped"
            output.write_text(f"{what}: {counted(count, 'registration')}")
            return
        status = await buffer.status()
    if is_json:
        output.write_json(status)
        return
    lines = {
        "waiting": status.waiting,
        "oldest": None if status.oldest is None else status.oldest.to_iso(),
        "forwarded": status.forwarded,
        "refused": status.refused,
        "last refusal": status.last_reason,
        "dropped": status.dropped,
        "bytes": status.bytes,
    }
    for name, value in lines.items():
        if value is not None:
            output.write_text(f"{name:<14}{value}")


class _Reporter(logging.Handler):
    """Prints what the client logs."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text, server = record.getMessage(), vars(record).get("server")
            report(text if server is None or server in text else f"{text}: {server}")
        except Exception:
            self.handleError(record)


async def _forward(server: Target, directory: Path, fallbacks: Sequence[tuple[str, int]]) -> None:
    server.ssl_context()  # else its errors would be repeated for ever
    others = [dataclasses.replace(server, host=host, port=port) for host, port in fallbacks]
    connects: list[Any] = [i.connect for i in (server, *others)]
    with reporting(logging.INFO, logging.WARNING, logging.ERROR):
        async with await BufferedClient.open(directory, connects) as buffered:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, buffered.close)
            report(f"forwarding {directory}")
            await buffered.wait_closed()
            if buffered.close_reason is not None:
                raise CommandError(buffered.close_reason, EXIT_FAILED)


@contextlib.contextmanager
def reporting(*levels: int) -> Iterator[None]:
    """Print what the client logs at these levels, on standard error."""
    logger, reporter = logging.getLogger("mariner.client"), _Reporter()
    reporter.addFilter(lambda record: record.levelno in levels)
    level = logger.level
    logger.addHandler(reporter)
    logger.setLevel(min(levels))
    try:
        yield
    finally:
        logger.removeHandler(reporter)
        logger.setLevel(level)
