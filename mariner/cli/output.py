"""Standard output: events as JSON lines or as a table, other tables, and progress bars."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from eventer_bridge.model import Event, format_event_id, format_event_type, payload_text, printable
from mariner.cli.run import EXIT_FAILED, EXIT_NO_READER, CommandError

_WIDE: Final = 10_000  # columns of an output that is no terminal: nothing is wrapped

_encode = msgspec.json.Encoder().encode


def write_jsonl(events: Iterable[Event]) -> None:
    """Print each event as a line of JSON, in the form of the protocol, and flush.

    Raises CommandError if standard output was closed, or cannot be written.
    """
    # a JSON payload is stored verbatim, and may have line ends between its tokens
    lines = [_encode(event).replace(b"\n", b" ").replace(b"\r", b" ") for event in events]
    _write(b"".join([line + b"\n" for line in lines]))


def write_table(events: Sequence[Event]) -> None:
    """Print a table of events; in a terminal it is wrapped to its width."""
    shown = table("ID", "TYPE")
    shown.add_column("TIMESTAMP", min_width=27)
    shown.add_column("SOURCE TIMESTAMP", min_width=16)
    shown.add_column("PAYLOAD", overflow="fold")
    for event in events:
        source_timestamp = event.source_timestamp
        cells = (
            format_event_id(event.id),
            format_event_type(event.type),
            event.timestamp.to_iso(),
            "" if source_timestamp is None else source_timestamp.to_iso(),
            payload_text(event.payload),
        )
        shown.add_row(*[Text(printable(cell)) for cell in cells])
    write_rich(shown)


def table(*columns: str, left: int | None = None, rows: Iterable[Iterable[str]] = ()) -> Table:
    """A table, as all commands show them: ``left`` columns of text, then numbers; None: all text.

    ``rows`` are texts from outside: nothing in them can control the terminal.
    """
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        is_text = left is None or index < left
        made.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        made.add_row(*[Text(printable(cell)) for cell in row])
    return made


def write_rich(table: RenderableType) -> None:
    """Print a table, or several; in a terminal they are wrapped to its width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    console = Console(width=width, force_terminal=sys.stdout.isatty())
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    _write("".join([line.rstrip() + "\n" for line in lines]).encode(errors="backslashreplace"))


def write_text(line: str) -> None:
    """Print a line."""
    _write(line.encode(errors="backslashreplace") + b"\n")


def write_json(value: object) -> None:
    """Print a value as a line of JSON."""
    _write(_encode(value) + b"\n")


def write_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print a table of names and values from outside, without a header."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        shown.add_column(overflow="fold")
    for name, value in pairs:
        shown.add_row(Text(name, style="bold"), Text(printable(value)))
    write_rich(shown)


def _write(data: bytes) -> None:
    output = sys.stdout.buffer
    try:
        output.write(data)
        output.flush()
    except OSError as e:
        # keeps Python from flushing again when it exits
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
        if isinstance(e, BrokenPipeError):
            raise CommandError("", EXIT_NO_READER) from None
        raise CommandError(f"standard output: {e.strerror}", EXIT_FAILED) from e


@contextlib.contextmanager
def progress(what: str, *, is_shown: bool = True) -> Iterator[Callable[[int, int | None], None]]:
    """Progress bar on standard error, if that is a terminal.

    Called with done and total: None is not known, and how many are done is shown.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield lambda _done, _total: None
        return
    from rich import progress  # noqa: PLC0415  # few commands need it

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(text_format_no_percentage="{task.fields[count]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=None, count="")
        yield lambda done, total: bar.update(task, completed=done, total=total, count=f"{done:,}")
