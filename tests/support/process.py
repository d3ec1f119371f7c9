"""Child processes of tests: start, find out where they listen, stop. Always by pid."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import psutil

from tests.support import forked

START_TIMEOUT_S: Final = 90.0
"""Until a child is ready. They need about 1 s; a loaded machine more."""

STOP_TIMEOUT_S: Final = 60.0
"""From SIGTERM to the end of a child; after that it is killed."""

POLL_INTERVAL_S: Final = 0.02

T = TypeVar("T")


class ChildError(RuntimeError):
    """A child process did not start, died, or did not end as it should."""


@contextlib.asynccontextmanager
async def child(
    module: str,
    *args: str,
    output: Path,
    wrapper: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    is_fresh: bool = False,
) -> AsyncIterator[Process]:
    """Run ``python -m module args``, forked where it can be; on the way out end it with SIGTERM.

    Args:
        module: what to run, in the interpreter (and so the environment) of the tests.
        args: its arguments.
        output: file that its standard output and error go to.
        wrapper: command that is put in front, and has to replace itself by what follows.
        environment: variables that are set besides those of the tests.
        is_fresh: not forked, for tests of what an interpreter does at its end.

    Raises:
        ChildError: it did not end in time after SIGTERM, or with another exit code than 0.
            A child that the test itself killed with SIGKILL is fine. Not raised when the
            body already failed.
    """
    variables = {**os.environ, **(environment or {})}
    with output.open("ab") as sink:
        if forked.can_run(module) and not wrapper and not is_fresh:
            process = await forked.start(
                module, *args, environment=variables, stdout=sink, stderr=sink
            )
        else:
            process = await asyncio.create_subprocess_exec(
                *(*wrapper, sys.executable, "-m", module, *args),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=variables,
            )
    try:
        yield process
    except BaseException:
        await _stop(process)
        raise
    code = await _stop(process)
    if code not in {0, -signal.SIGKILL}:
        raise ChildError(f"{module}: exit code {code}\n{tail(output)}")


async def wait_ready(process: Process, output: Path, probe: Callable[[], Awaitable[T | None]]) -> T:
    """Ask ``probe`` until it gives something else than None.

    Raises:
        ChildError: the child ended, or the answer did not come in ``START_TIMEOUT_S``.
    """
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                if process.returncode is not None:
                    raise ChildError(f"ended: exit code {process.returncode}\n{tail(output)}")
                answer = await probe()
                if answer is not None:
                    return answer
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError:
        raise ChildError(f"not ready in {START_TIMEOUT_S} s\n{tail(output)}") from None


async def wait_listening(process: Process, output: Path, host: str | None = None) -> int:
    """Wait until the child listens on TCP (at ``host``) and tell the port, which it chose itself.

    It is read from the kernel's list of the child's sockets, so that the children can be
    given port 0 and two tests never fight for a port.

    Raises:
        ChildError: as :func:`wait_ready`.
    """

    async def probe() -> int | None:
        try:
            connections = psutil.Process(process.pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            return None
        listening = [i.laddr for i in connections if i.status == psutil.CONN_LISTEN]
        ports = [i.port for i in listening if host in {None, i.ip}]
        return ports[0] if ports else None

    return await wait_ready(process, output, probe)


def tail(output: Path, max_bytes: int = 4_000) -> str:
    """The end of what a child wrote."""
    return output.read_bytes()[-max_bytes:].decode(errors="replace")


async def _stop(process: Process) -> int:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise ChildError(
            f"pid {process.pid}: still there {STOP_TIMEOUT_S} s after SIGTERM"
        ) from None
