"""The control socket: who may listen there, and which process a request means."""

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.control import client
from eventer_bridge.control.client import ANY, Addressee, Identity
from eventer_bridge.control.server import ControlServer, listen
from eventer_bridge.errors import ControlError

RACER = """
import asyncio, pathlib, sys
from eventer_bridge.control.server import listen
from eventer_bridge.errors import ControlError

async def main():
    try:
        server = await listen(pathlib.Path(sys.argv[1]))
    except ControlError as e:
        return print(e, flush=True)
    print("listens", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.async_close()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[ControlServer]:
    async def echo(argument: Any) -> Any:
        return argument

    server = await listen(path)
    server.handle("echo", echo)
    server.handle("look", echo, is_for_any=True)
    try:
        yield server
    finally:
        await server.async_close()


async def ask(path: Path, to: Addressee, name: str = "echo", answer: type = int) -> Any:
    return await asyncio.to_thread(
        client.request, path, name, 5, answer, to=to, what=f"{path}: it", timeout_s=10
    )


async def test_an_answer_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    text = f"{path}: it is of another version: Expected `str`, got `int`"
    async with serving(path):
        with pytest.raises(ControlError, match=re.escape(text)):
            await ask(path, Addressee(pid=os.getpid()), answer=str)


async def test_a_request_says_which_process_it_means(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    ours, theirs = tmp_path / "a.yaml", tmp_path / "b.yaml"
    for file in (ours, theirs):
        file.touch()
    (tmp_path / "link.yaml").symlink_to(ours)
    async with serving(path) as server:
        server.configuration = ours
        for good in (
            Addressee(pid=os.getpid()),
            Addressee(configuration=Identity.of(ours)),
            Addressee(configuration=Identity.of(tmp_path / "link.yaml")),
        ):
            assert await ask(path, good) == 5
        who = f"{path}: process {os.getpid()} answers here"
        for bad, reason in (
            (Addressee(pid=1), f"{who}, not process 1"),
            (
                Addressee(configuration=Identity.of(theirs)),
                f"{who}, whose configuration is {ours}, and not the one of configuration {theirs}",
            ),
            (
                Addressee(pid=os.getpid(), store=Identity.of(tmp_path)),
                f"{who}, which has none, and not the one of store {tmp_path}",
            ),
            (ANY, "not a request: expected 'to', which says what process it is for"),
        ):
            with pytest.raises(ControlError) as raised:
                await ask(path, bad)
            assert str(raised.value) == reason
        assert await ask(path, ANY, "look") == 5
        # replaced or removed meanwhile: it is the path that counts
        ours.unlink()
        assert await ask(path, Addressee(configuration=Identity.of(ours))) == 5


async def test_a_socket_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(path):
        for _ in range(2):
            with pytest.raises(ControlError) as raised:
                await listen(path)
            assert str(raised.value) == (
                f"{path}: process {os.getpid()} listens there: each gateway needs its own socket"
            )
        assert await ask(path, ANY, "look") == 5
    async with serving(path):  # the one before is closed
        assert await ask(path, ANY, "look") == 5


async def test_a_socket_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ControlError, match=f"process {os.getpid()} listens there"):
            await listen(path)
        assert path.exists()
    async with serving(path):  # nobody listens there any more
        assert await ask(path, ANY, "look") == 5


async def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("precious")
    with pytest.raises(ControlError, match="exists already, and is no socket"):
        await listen(path)
    assert path.read_text() == "precious"


async def test_of_many_that_start_at_once_one_listens(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    racers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RACER, str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(6)
    ]
    said = []
    for racer in racers:
        assert racer.stdout is not None
        said.append((await racer.stdout.readline()).decode().strip())
    running = client.server_pid(path)
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
        await racer.wait()
        assert racer.returncode == 0
    [pid] = [i.pid for i, text in zip(racers, said, strict=True) if text == "listens"]
    assert running == pid
    others = [text for text in said if text != "listens"]
    assert set(others) == {
        f"{path}: process {pid} listens there: each gateway needs its own socket"
    }


async def test_one_that_is_about_to_listen_is_not_overtaken(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with (tmp_path / "control.sock.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        with pytest.raises(ControlError, match="process 4711 listens there"):
            await listen(path)
        assert not path.exists()
    async with serving(path):
        assert await ask(path, ANY, "look") == 5
