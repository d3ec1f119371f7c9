"""``mariner reload`` and SIGHUP, of a gateway in a process of its own."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.gateway import Gateway, gateway
from tests.support.inprocess import APP
from tests.support.peer import INIT, RawPeer

NEW: dict[str, Any] = {**APP, "name": "new"}


async def run(path: Path) -> tuple[int, str, str]:
    """``mariner reload``: exit code, output, errors."""
    process = await forked.start("mariner", "reload", "--conf", str(path), environment=os.environ)
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


def change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


async def is_let_in(running: Gateway, name: str) -> bool:
    async with await RawPeer.connect(running.port) as peer:
        return bool((await peer.request({**INIT, "client_name": name}))["success"])


async def test_a_reload_by_command(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    async with gateway(tmp_path) as running:
        assert await run(path) == (0, "reloaded\n", "")
        change(path, clients=[APP, NEW], name="another")
        lines = "changed: clients[new]: added\nneeds a restart: name\nreloaded\n"
        assert await run(path) == (0, lines, "")
        assert await is_let_in(running, "new")
    assert await run(path) == (
        1,
        "",
        f"mariner: error: {tmp_path}/events/control.sock: the gateway cannot be reached:"
        " No such file or directory\n",
    )


async def test_a_configuration_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    async with gateway(tmp_path) as running:
        good = path.read_text()
        change(path, clients=[{**APP, "token": 5}, {**NEW, "subscriptions": 5}])
        code, stdout, stderr = await run(path)
        assert (code, stdout) == (2, "")
        assert stderr.splitlines() == [
            f"mariner: error: {path}: clients[0].token: ***: expected string or null or object"
            " or array: put it in quotes, without them it is a number",
            f"mariner: error: {path}: clients[1].subscriptions: 5: expected an array",
        ]
        path.write_text("{")
        code, _, stderr = await run(path)
        assert code == 2
        assert stderr.startswith(f"mariner: error: {path}: ")
        assert await is_let_in(running, "app")
        path.write_text(good)
        log = running.stderr_path.read_text()
    [line] = [json.loads(i) for i in log.splitlines() if "configuration not reloaded" in i]
    assert line["level"] == "ERROR"
    assert len(line["reasons"]) == 2


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
async def test_a_reload_by_signal(tmp_path: Path, backend: Any) -> None:
    path = tmp_path / "gateway.json"
    async with (
        gateway(tmp_path, backend=backend, is_fresh=True) as running,
        await RawPeer.init(running.port) as peer,
    ):
        for names in (["a"], ["a", "b"], ["b"]):
            clients = [{**APP, "name": name} for name in names]
            change(path, clients=[APP, *clients])
            running.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                while [await is_let_in(running, i) for i in "ab"] != [i in names for i in "ab"]:
                    await asyncio.sleep(0.01)
        # a wrong one ends nothing
        good = path.read_text()
        path.write_text("{}")
        running.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(60):
            while "configuration not reloaded" not in running.stderr_path.read_text():
                await asyncio.sleep(0.01)
        path.write_text(good)
        assert (await peer.request({"msg_type": "ping_req", "ping_id": 1}))["ping_id"] == 1


async def test_a_gateway_without_a_store_has_a_socket_if_configured(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    async with gateway(tmp_path, backend="memory"):
        code, _, stderr = await run(path)
        assert code == 2
        assert stderr == (
            f"mariner: error: {path}: control: missing, and there is no store that would have a"
            " socket; SIGHUP reloads, too\n"
        )
    socket = tmp_path / "control.sock"
    async with gateway(tmp_path, backend="memory", control=socket) as running:
        assert socket.stat().st_mode & 0o777 == 0o600
        change(path, clients=[NEW])
        assert await run(path) == (
            0,
            "changed: clients[app]: removed\nchanged: clients[new]: added\nreloaded\n",
            "",
        )
        assert not await is_let_in(running, "app")
    assert not socket.exists()


async def test_a_gateway_of_another_configuration_is_not_reloaded(tmp_path: Path) -> None:
    socket = tmp_path / "control.sock"
    (tmp_path / "b").mkdir()
    other = tmp_path / "a.json"
    async with gateway(tmp_path / "b", backend="memory", control=socket) as running:
        path = tmp_path / "b" / "gateway.json"
        other.write_text(path.read_text())
        for command in ("reload", "status"):
            process = await forked.start(
                "mariner", command, "--conf", str(other), environment=os.environ
            )
            stdout, stderr = await process.communicate()
            assert (process.returncode, stdout) == (1, b"")
            assert stderr.decode() == (
                f"mariner: error: {socket}: process {running.pid} answers here, whose configuration"
                f" is {path}, and not the one of configuration {other}\n"
            )
        # nor can another one take its socket
        second = await forked.start(
            "mariner", "serve", "--conf", str(other), environment=os.environ
        )
        _, stderr = await second.communicate()
        assert second.returncode == 1
        last = f"{socket}: process {running.pid} listens there: each gateway needs its own socket"
        assert stderr.decode().splitlines()[-1] == f"mariner: error: {last}"
        assert await run(path) == (0, "reloaded\n", "")
