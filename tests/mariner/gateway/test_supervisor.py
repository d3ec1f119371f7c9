"""What systemd is told, through a socket as systemd makes it."""

import asyncio
import contextlib
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mariner.gateway.stopping import Supervisor
from tests.support.gateway import gateway
from tests.support.process import ChildError


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
        here.bind(address)
        here.setblocking(False)
        yield here


async def heard(here: socket.socket) -> str:
    return (await asyncio.get_running_loop().sock_recv(here, 1_000)).decode()


async def test_of_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listening(path) as here:
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "100000"}
        async with gateway(tmp_path, environment=environment) as running:
            # it accepts connections by then
            assert await heard(here) == "READY=1"
            async with asyncio.timeout(60):
                for _ in range(5):
                    assert await heard(here) == "WATCHDOG=1"
            running.process.terminate()
            while (text := await heard(here)) == "WATCHDOG=1":
                pass
            assert text == "STOPPING=1"


async def test_what_a_watchdog_ends_says_where_it_hung(tmp_path: Path) -> None:
    async def run() -> None:
        async with gateway(tmp_path) as running:
            running.process.send_signal(signal.SIGABRT)
            await running.process.wait()

    with pytest.raises(ChildError, match="exit code -6"):
        await run()
    log = (tmp_path / "gateway.log").read_text()
    assert "Fatal Python error: Aborted" in log
    assert "in _ext_run" in log  # the storage thread
    assert "in run" in log  # the event loop


async def test_an_abstract_address(tmp_path: Path) -> None:
    name = f"mariner-{uuid.uuid4()}"
    with listening(f"\0{name}") as here:
        Supervisor({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert await heard(here) == "READY=1"


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)}]
)
async def test_a_watchdog_that_is_not_for_this_process(
    tmp_path: Path, watchdog: dict[str, str]
) -> None:
    path = str(tmp_path / "notify")
    with listening(path) as here:
        supervisor = Supervisor({"NOTIFY_SOCKET": path, **watchdog})
        await supervisor.stay_alive()  # it ends
        supervisor.stopping()
        assert await heard(here) == "STOPPING=1"


async def test_nobody_listens(tmp_path: Path) -> None:
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    Supervisor({}).ready()
    await Supervisor({"WATCHDOG_USEC": "1000"}).stay_alive()  # it ends


async def test_a_full_socket_holds_nothing_up(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listening(path):
        supervisor = Supervisor({"NOTIFY_SOCKET": path})
        for _ in range(10_000):  # nobody reads
            supervisor.ready()
