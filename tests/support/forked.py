"""Processes that have everything imported when they begin: forked off one that did it once.

Importing the gateway takes ten times the CPU of what most tests ask of it then. Each process
is one of its own all the same, with its own pipes, signals and exit code. Only how an
interpreter starts and ends is not to be seen in them.
"""

import asyncio
import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Final

MODULES: Final = (
    "mariner",
    "hat.event.server",
    "hat.mariner.server",
    "hat.monitor.server",
    "tests.eventer_bridge.backends.rocksdb.unfinished_child",
)
"""Those that can be run; ``preloaded`` imports what they need."""

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.support.preloaded"])

_MAX_LINE_BYTES: Final = 1 << 16  # as asyncio's

_is_enabled = False


def enable() -> None:
    """For the tests; what is measured and tortured by itself is run as users run it."""
    global _is_enabled  # noqa: PLW0603
    _is_enabled = True


def can_run(module: str) -> bool:
    return _is_enabled and module in MODULES


async def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    stdin: int | IO[Any] = DEVNULL,
    stdout: int | IO[Any] = PIPE,
    stderr: int | IO[Any] = PIPE,
) -> Process:
    """Run ``python -m module arguments``, without starting a Python.

    Args:
        module: one of :data:`MODULES`.
        arguments: its arguments.
        environment: all its variables.
        stdin: as for ``asyncio.create_subprocess_exec``, as are the other two.
    """
    assert can_run(module)
    loop = asyncio.get_running_loop()
    protocol = SubprocessStreamProtocol(_MAX_LINE_BYTES, loop)
    connected = loop.create_future()
    transport = _Transport(
        loop,
        protocol,
        (module, *arguments),
        False,
        stdin,
        stdout,
        stderr,
        0,
        waiter=connected,
        environment=environment,
    )
    await connected
    return Process(transport, protocol, loop)


class _Transport(BaseSubprocessTransport):
    """What asyncio does with a child, for one that the fork server is the parent of."""

    def _start(self, *, args: Any, environment: Any, **keys: Any) -> None:  # type: ignore[override]  # asyncio gives names
        files = [keys[i] for i in ("stdin", "stdout", "stderr")]
        child = _Child(args, files, environment)
        self._proc: Any = child
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(child.sentinel)
            self._process_exited(child.wait())

        loop.add_reader(child.sentinel, ended)


class _Child:
    """A forked process, as ``subprocess.Popen`` shows one."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        files: Sequence[int | IO[Any]],
        environment: Mapping[str, str],
    ) -> None:
        ours: list[IO[bytes] | None] = []
        theirs = []
        for number, file in enumerate(files):
            mine, its = _ends(number, file)
            ours.append(mine)
            theirs.append(its)
        self.stdin, self.stdout, self.stderr = ours
        self.returncode: int | None = None
        where = Path.cwd()
        self._process = _SERVER.Process(
            target=_run, args=(arguments, where, dict(environment), theirs)
        )
        self._process.start()
        for its in theirs:
            its.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ends(number: int, file: int | IO[Any]) -> tuple[IO[bytes] | None, "Connection[Any, Any]"]:
    """Our end of a pipe, if it is one, and what the child gets as its file of this number."""
    if file == PIPE:
        read, write = os.pipe()
        if number == 0:
            return os.fdopen(write, "wb", 0), Connection(read)
        return os.fdopen(read, "rb", 0), Connection(write)
    if file == DEVNULL:
        return None, Connection(os.open(os.devnull, os.O_RDWR))
    return None, Connection(os.dup(file if isinstance(file, int) else file.fileno()))


def _run(
    arguments: tuple[str, ...],
    where: Path,
    environment: dict[str, str],
    files: "list[Connection[Any, Any]]",
) -> None:
    """What the child does."""
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(where)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [*arguments]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
