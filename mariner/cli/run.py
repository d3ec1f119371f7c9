"""Running commands: exit codes, and errors as one line on standard error.

Exit codes: 0 success; 1 the server refused, is unreachable or did not answer in time; 2 wrong usage
or input; 4 unknown whether some events are registered; 5 a condition of ``report --fail-if`` holds;
130 interrupted (SIGINT); 141 standard output was closed (SIGPIPE). An error line begins with
``mariner: error:``.
"""

import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterator
from typing import IO, Any, Final, NoReturn, TypeVar

import click
import uvloop
from typing_extensions import override

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import printable
from mariner.errors import MarinerError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 4
EXIT_CONDITION: Final = 5
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_NO_READER: Final = 128 + signal.SIGPIPE

T = TypeVar("T")


class CommandError(click.ClickException):
    """Ends the command with an exit code; an empty text prints nothing."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # a class attribute by default

    @override
    def show(self, file: IO[Any] | None = None) -> None:
        if self.message:
            report(f"error: {self.message}", file)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Convert errors, and SIGINT, to an exit code and a line."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("", EXIT_INTERRUPTED) from None
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    except MarinerError as e:
        raise CommandError(str(e), EXIT_FAILED) from e


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine, with :func:`errors`."""
    # the log would repeat the error
    logging.basicConfig(handlers=[logging.NullHandler()])
    with errors():
        return uvloop.run(main)


def fail(text: str, exit_code: int = EXIT_USAGE) -> NoReturn:
    """End the command with an error line for each line of a text."""
    for line in text.splitlines():
        report(f"error: {line}")
    raise SystemExit(exit_code)


def report(text: str, file: IO[Any] | None = None) -> None:
    """Print a line for the user, on standard error; nothing fails because nobody reads it."""
    with contextlib.suppress(OSError):
        click.echo(f"mariner: {printable(text)}", file=file, err=True)
