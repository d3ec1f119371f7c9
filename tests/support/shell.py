"""The command ``mariner`` as a process, as from a shell."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_FORK_SERVER: Final = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["mariner.cli"])
"""Has imported the command once, which costs more than most commands do."""


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
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mariner", *arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._variables(variables),
        )

    async def run(self, *arguments: str, stdin: str | bytes = b"", **variables: str) -> Result:
        """Run a command to its end, in a process that has imported it already."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        environment = self._variables(variables)
        return await asyncio.to_thread(_run, arguments, data, environment)


def _run(arguments: tuple[str, ...], stdin: bytes, environment: dict[str, str]) -> Result:
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / i for i in ("stdin", "stdout", "stderr")]
        files[0].write_bytes(stdin)
        target_arguments = (arguments, environment, files)
        process = _FORK_SERVER.Process(target=_be_command, args=target_arguments)
        process.start()
        process.join()
        assert process.exitcode is not None
        return Result(process.exitcode, *(i.read_text() for i in files[1:]))


def _be_command(arguments: tuple[str, ...], environment: dict[str, str], files: list[Path]) -> None:
    for number, path in enumerate(files):
        flags = os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY
        os.dup2(os.open(path, flags), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # the fork server's is /dev/null
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["mariner", *arguments]
    runpy.run_module("mariner", run_name="__main__")


def shell_for(name: str, token: str, port: int) -> Shell:
    return Shell({"MARINER_PORT": str(port), "MARINER_NAME": name, "MARINER_TOKEN": token})


def lines(*values: Any, event_type: str) -> str:
    return "".join(json.dumps({"type": event_type, "payload": i}) + "\n" for i in values)


@contextlib.asynccontextmanager
async def started(shell: Shell, *arguments: str) -> AsyncIterator[Process]:
    process = await shell.start(*arguments)
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
