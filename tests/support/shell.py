"""The command ``mariner`` as a process, as from a shell."""

import asyncio
import contextlib
import json
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from tests.support import forked


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def values(self) -> list[Any]:
        return [event["payload"]["data"] for event in self.events]


class Shell(NamedTuple):
    """Runs the command with an environment; nothing of the tests' own comes through."""

    environment: dict[str, str]

    def _variables(self, more: dict[str, str]) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MARINER_")}
        environment |= self.environment | more
        return {k: v for k, v in environment.items() if v}

    async def start(self, *arguments: str, **variables: str) -> Process:
        """Start a command with pipes for its three files."""
        environment = self._variables(variables)
        return await forked.start("mariner", *arguments, environment=environment, stdin=PIPE)

    async def start_fresh(self, *arguments: str, **files: Any) -> Process:
        """The same in an interpreter of its own, for tests of how that ends.

        Args:
            arguments: of the command.
            files: ``stdin``, ``stdout`` and ``stderr``, if not pipes.
        """
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mariner", *arguments),
            **(pipes | files),
            env=self._variables({}),
        )

    async def run(self, *arguments: str, stdin: str | bytes = b"", **variables: str) -> Result:
        """Run a command to its end."""
        process = await self.start(*arguments, **variables)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        stdout, stderr = await process.communicate(data or None)  # it may have ended already
        assert process.returncode is not None
        return Result(process.returncode, stdout.decode(), stderr.decode())

    async def run_in_terminal(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Run a command whose output and errors go to a terminal: its code, and what is written."""
        terminal, its_end = os.openpty()
        environment = self._variables({"TERM": "xterm", "COLUMNS": "200"})
        files: dict[str, Any] = {"stdin": PIPE, "stdout": its_end, "stderr": its_end}
        process = await forked.start("mariner", *arguments, environment=environment, **files)
        os.close(its_end)
        reading = asyncio.create_task(asyncio.to_thread(_read_terminal, terminal))
        await process.communicate(stdin.encode())
        assert process.returncode is not None
        return process.returncode, await reading


def _read_terminal(terminal: int) -> str:
    data = b""
    with open(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):  # it is closed
        while chunk := file.read(1 << 16):
            data += chunk
    return data.decode().replace("\r\n", "\n")


def shell_for(name: str, token: str, port: int) -> Shell:
    return Shell({"MARINER_PORT": str(port), "MARINER_NAME": name, "MARINER_TOKEN": token})


def lines(*values: Any, event_type: str) -> str:
    return "".join(json.dumps({"type": event_type, "payload": i}) + "\n" for i in values)


@contextlib.asynccontextmanager
async def started(shell: Shell, *arguments: str, is_fresh: bool = False) -> AsyncIterator[Process]:
    process = await (shell.start_fresh if is_fresh else shell.start)(*arguments)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def read_line(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await stream.readline()).decode()


def check_pinged(result: Result, address: str, count: int) -> None:
    """Every one of so many pings was answered."""
    assert (result.code, result.stderr) == (0, "")
    name = re.escape(address)
    expected = [
        rf"PING {name}: connected, status OPERATIONAL",
        *[rf"answer from {name}: seq={i + 1} time=\d+\.\d{{3}} ms" for i in range(count)],
        r"",
        rf"--- {name} ping statistics ---",
        rf"{count} transmitted, {count} received, 0% loss, time \d+ ms",
        r"rtt min/avg/max/mdev = [\d.]+/[\d.]+/[\d.]+/[\d.]+ ms",
    ]
    printed = result.stdout.splitlines()
    assert len(printed) == len(expected)
    for line, pattern in zip(printed, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
