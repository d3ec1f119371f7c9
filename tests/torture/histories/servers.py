"""Gateways that are killed, stopped and set back, and come back; each behind a proxy."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from tests.support import proxy
from tests.support.gateway import Gateway, gateway
from tests.support.process import ChildError, tail
from tests.torture.histories.record import History, Restore
from tests.torture.histories.wire import NAME, TOKEN
from tests.torture.shifted_clock import CLOCK_FILE, write_offset

PROGRAM: Final = "tests.torture.shifted_clock"

LOGS: Final = 3
"""Logs of earlier processes that are kept for who looks for the cause of a violation."""

STARVED_S: Final = 5.0
"""After so long without a lack, a process does not end of it any more."""

CLIENTS: Final = [
    {
        "name": NAME,
        "token": TOKEN,
        "subscriptions": [["*"]],
        "register_events": [{"subscriptions": [["*"]]}],
    }
]

OTHER_CLIENTS: Final = [{**CLIENTS[0], "subscriptions": [["history", "*"]]}]
"""The same for those who ask for the events of writers; with another filter."""


class Server:
    """A gateway and its store, whatever is done to it.

    Args:
        directory: where both are.
        number: of the server.
        core: its ``event_core``.
        history: what happens is noted there.

    Attributes:
        link: the proxy that its clients use.
    """

    def __init__(
        self, directory: Path, number: int, core: Mapping[str, Any], history: History
    ) -> None:
        self.directory = directory
        self._starved_s = 0.0  # until when it may end by itself
        self._n_starving = 0
        self.link: proxy.Proxy
        self._number = number
        self._core = core
        self._history = history
        self._changing = asyncio.Lock()
        self._running = AsyncExitStack()
        self._gateway: Gateway | None = None
        self._port = 0
        self._n_logs = 0
        self._backup_s = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._clock = directory / "clock"
        write_offset(self._clock, 0)

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._gateway is None else self._gateway.pid

    @property
    def port(self) -> int:
        """Where it listens, without the proxy."""
        return self._port

    @property
    def store(self) -> Path:
        """Directory of its store."""
        return self.directory / "events"

    @contextlib.contextmanager
    def starving(self) -> Iterator[None]:
        """It may end by itself meanwhile, and soon after: it lacks memory, files or a disk."""
        self._n_starving += 1
        try:
            yield
        finally:
            self._n_starving -= 1
            self._starved_s = time.monotonic() + STARVED_S

    @property
    def _is_starved(self) -> bool:
        return self._n_starving > 0 or time.monotonic() < self._starved_s

    def shift_clock(self, seconds: float) -> None:
        """Shift its clock by so much, all together."""
        write_offset(self._clock, seconds)

    async def start(self) -> None:
        """Start it, and the proxy when it is the first time."""
        async with self._changing:
            await self._start()

    async def _start(self) -> None:
        running = gateway(
            self.directory,
            clients=CLIENTS,
            core=self._core,
            port=self._port,
            program=PROGRAM,
            environment={CLOCK_FILE: str(self._clock)},
        )
        self._gateway = await self._running.enter_async_context(running)
        if not self._port:
            self._port = self._gateway.port
            self.link = proxy.create(self._port)
        self._watching = asyncio.create_task(self._watch(self._gateway))

    async def _watch(self, running: Gateway) -> None:
        """Start it again if it ended by itself."""
        code = await running.process.wait()
        async with self._changing:
            if self._gateway is not running:
                return
            if not self._is_starved:
                log = tail(running.stderr_path, 2_000)
                self._history.problems.append(f"server {self._number} ended: {code}: {log}")
            try:
                await self._end(is_kill=True)
                await self._start()
            except ChildError as e:
                self._history.problems.append(f"server {self._number} does not start: {e}")

    async def _end(self, *, is_kill: bool) -> None:
        running, self._gateway = self._gateway, None
        assert running is not None
        begin_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL if is_kill else signal.SIGCONT)
        if is_kill:
            await running.process.wait()
        try:
            await self._running.aclose()
        except ChildError as e:
            if not self._is_starved:
                self._history.problems.append(f"server {self._number}: {e}")
        self._history.ends.append((begin_s, self._number, is_kill))
        shutil.copyfile(running.stderr_path, self.directory / f"log.{self._n_logs % LOGS}")
        self._n_logs += 1

    async def again(self, *, is_kill: bool, pause_s: float = 0.0) -> None:
        """Kill it, or have it end; and start it again after a while."""
        async with self._changing:
            await self._end(is_kill=is_kill)
            await asyncio.sleep(pause_s)
            await self._start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._gateway is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._gateway.pid, number)

    def reload(self, *, is_other: bool) -> None:
        """Give it a configuration with other rights, which are enough for all."""
        conf = self.directory / "gateway.json"
        value = json.loads(conf.read_text())
        value["clients"] = OTHER_CLIENTS if is_other else CLIENTS
        conf.write_text(json.dumps(value))
        self.signal(signal.SIGHUP)

    async def back_up(self) -> None:
        """Back the store up, if there is a process that does it."""
        async with self._changing:
            backup = self.directory / "backup.new"
            shutil.rmtree(backup, ignore_errors=True)
            begin_s = time.monotonic()
            if await self._command("backup", str(self.store), str(backup)):
                shutil.rmtree(self.directory / "backup", ignore_errors=True)
                backup.rename(self.directory / "backup")
                self._backup_s = begin_s

    async def set_back(self) -> None:
        """Kill it, and restore the last backup."""
        async with self._changing:
            if not self._backup_s:
                return
            await self._end(is_kill=True)
            shutil.rmtree(self.store)
            if not await self._command("restore", str(self.directory / "backup"), str(self.store)):
                self._history.problems.append("the backup cannot be restored")
            await self._start()
            self._history.restores.append(Restore(self._backup_s, time.monotonic()))

    async def _command(self, *arguments: str) -> bool:
        """Run a command of the gateway; whether it succeeded."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mariner", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await process.wait() == 0

    async def close(self) -> None:
        """End it for good."""
        if self._watching is not None:
            self._watching.cancel()
        async with self._changing:
            if self._gateway is not None:
                self.signal(signal.SIGCONT)
                await self._end(is_kill=True)
        await self.link.async_close()


@contextlib.asynccontextmanager
async def closing(*servers: Server) -> AsyncIterator[None]:
    """Start servers, and end them on the way out."""
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            await server.close()
