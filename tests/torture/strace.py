"""A gateway under strace: system calls that fail or are slow, and a record of them."""

import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.torture.report import UnavailableError

_LINE: Final = re.compile(r"^(\d+) +(?:(\d+\.\d+) )?(.*)$")
_RESUMED: Final = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$", re.DOTALL)
_UNFINISHED: Final = " <unfinished ...>"


class Call(NamedTuple):
    """A system call of one thread.

    Attributes:
        begin: position of its beginning among all that was recorded.
        end: of its end.
        text: name, arguments, result.
        at_s: the time of day when it began; 0: it was not recorded (``-ttt``).
    """

    begin: int
    end: int
    text: str
    at_s: float


@functools.cache
def require_strace() -> None:
    """Check that processes can be traced here.

    Raises:
        UnavailableError: they cannot; it says why.
    """
    try:
        done = subprocess.run(
            ["strace", "-D", "-f", "-e", "trace=none", "true"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except FileNotFoundError:
        raise UnavailableError("there is no strace") from None
    if done.returncode != 0:
        raise UnavailableError(f"strace cannot trace here: {done.stderr.strip()}")


def strace(output: Path, *arguments: str) -> Sequence[str]:
    """A wrapper for ``gateway``, which stays the process that was started (``-D``).

    Args:
        output: file of the record.
        arguments: of strace.
    """
    return ("strace", "-D", "-f", "-o", str(output), *arguments, "--")


@contextlib.asynccontextmanager
async def attached(pid: int, *arguments: str) -> AsyncIterator[None]:
    """Trace a process that runs already, while the body runs.

    Args:
        pid: the process.
        arguments: of strace.

    Raises:
        UnavailableError: it cannot be traced; says why.
    """
    tracer = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-o", os.devnull, *arguments, "-p", str(pid)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert tracer.stderr is not None
    told = await tracer.stderr.readline()
    try:
        if b"attached" not in told:
            raise UnavailableError(f"strace cannot trace here: {told.decode().strip()}")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            tracer.send_signal(signal.SIGINT)  # it lets go of the process
        await tracer.communicate()


def read_record(output: Path) -> Iterator[Call]:
    """System calls of a record, in the order in which they ended."""
    begun: dict[str, Call] = {}
    for position, line in enumerate(output.read_text(errors="replace").splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        thread, time, text = match.groups()
        at_s = float(time or 0)
        if text.endswith(_UNFINISHED):
            begun[thread] = Call(position, position, text.removesuffix(_UNFINISHED), at_s)
        elif resumed := _RESUMED.match(text):
            before = begun.pop(thread)
            yield before._replace(end=position, text=before.text + resumed[2])
        else:
            yield Call(position, position, text, at_s)
