"""What a gateway logs while peers do their worst, and while nobody reads what it logs."""

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eventer_bridge import limits as core_limits
from mariner import limits
from tests.support import forked
from tests.support.gateway import gateway, listening
from tests.support.hat_peers import CLIENTS, HOST, write_conf
from tests.support.peer import INIT, RawPeer, event, register_req

PIPE_BYTES = 4_096
"""The smallest pipe that there is."""

N_REFUSED = 60


async def refuse(port: int, name: str) -> None:
    async with await RawPeer.connect(port) as peer:
        peer.send({**INIT, "client_name": name})
        assert not (await peer.receive())["success"]
        assert await peer.is_closed_by_server()


async def test_a_flood_leaves_a_few_short_lines(tmp_path: Path) -> None:
    text = "\u0416" * 30_000  # each of them takes six bytes of a line
    async with gateway(tmp_path, backend="memory", http=True) as running:
        await refuse(running.port, text)
        async with await RawPeer.init(running.port) as peer:
            for i in range(N_REFUSED):
                wrong = {**event("a"), "source_timestamp": text}
                assert not (await peer.request(register_req(i, wrong)))["success"]
        url = f"http://{HOST}:{running.http_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            metrics = (await response.text()).splitlines()
    lines = [json.loads(i) for i in running.stderr_path.read_text().splitlines() if i[0] == "{"]
    [declined] = [i for i in lines if i["message"] == "closing connection"]
    assert len(declined["client"]) == core_limits.MAX_LOG_CHARACTERS
    refused = [i for i in lines if i["message"] == "invalid registration"]
    # more than the burst where it took a while
    assert limits.LOG_ADDRESS_BURST_LINES - 1 <= len(refused) < N_REFUSED
    n_left_out = N_REFUSED - len(refused)
    told = [i for i in lines if i["message"].startswith("lines left out")]
    assert sum(i["lines"] for i in told) == n_left_out
    assert told[0]["left_out"].keys() == {HOST}
    assert f"mariner_log_left_out_total {float(n_left_out)}" in metrics
    assert "mariner_log_dropped_total 0.0" in metrics
    assert running.stderr_path.stat().st_size < N_REFUSED * 2_000


@pytest.fixture
async def unread(
    tmp_path: Path,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, int]]]:
    """A gateway whose standard error is read until it listens, and then no more; its ports."""
    conf: dict[str, Any] = {
        "name": "gateway",
        "mariner": {"host": HOST, "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": CLIENTS,
        "http": {"host": HOST, "port": 0},
    }
    path = write_conf(tmp_path / "gateway.json", conf)
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    process = await forked.start(
        *("mariner", "serve", "--conf", str(path)), environment=os.environ, stderr=write_end
    )
    os.close(write_end)
    text = ""
    while "http" not in listening(text):
        text += (await asyncio.to_thread(os.read, read_end, PIPE_BYTES)).decode()
    yield process, listening(text)
    if process.returncode is None:
        process.kill()
        await process.wait()
    os.close(read_end)


async def test_nobody_waits_for_a_log_that_nobody_reads(
    unread: tuple[asyncio.subprocess.Process, dict[str, int]],
) -> None:
    process, ports = unread
    async with await RawPeer.init(ports["mariner"]) as peer:
        for i in range(limits.LOG_ADDRESS_BURST_LINES):  # of more than 200 bytes each
            wrong = {**event("a"), "source_timestamp": "x" * 400}
            assert not (await peer.request(register_req(i, wrong)))["success"]
        assert (await peer.request({"msg_type": "ping_req", "ping_id": 1}))["ping_id"] == 1
        url = f"http://{HOST}:{ports['http']}/healthz"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert response.status == 200
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


def log_of(path: Path, kind: str = "logging.FileHandler") -> dict[str, Any]:
    """A configuration of the log: a file with messages."""
    handler = {"class": kind, "filename": str(path)}
    return {
        "version": 1,
        "handlers": {"file": handler},
        "loggers": {"mariner": {"level": "INFO"}},
        "root": {"level": "WARNING", "handlers": ["file"]},
    }


async def reload(directory: Path) -> tuple[int | None, str]:
    command = "mariner", "reload", "--conf", str(directory / "gateway.json")
    process = await forked.start(*command, environment=os.environ)
    stdout, stderr = await process.communicate()
    return process.returncode, (stdout + stderr).decode()


@pytest.mark.parametrize("kind", ["logging.FileHandler", "logging.handlers.RotatingFileHandler"])
async def test_a_reload_opens_a_file_that_was_moved_away(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "logs" / "mariner.log"
    path.parent.mkdir()
    async with gateway(tmp_path, log=log_of(path, kind)):
        assert await reload(tmp_path) == (0, "reloaded\n")
        inode = path.stat().st_ino
        path.rename(path.with_suffix(".1"))
        assert await reload(tmp_path) == (0, "reloaded\n")
        assert path.stat().st_ino != inode
        path.unlink()
        path.parent.rename(tmp_path / "away")
        code, said = await reload(tmp_path)
        assert (code, said) == (
            2,
            f"mariner: error: {tmp_path}/gateway.json: log: {path}: No such file or directory\n",
        )
        (tmp_path / "away").rename(path.parent)
        assert await reload(tmp_path) == (0, "reloaded\n")
    moved = path.with_suffix(".1").read_text()
    assert moved.count("configuration reloaded") == 1
    assert path.read_text().count("configuration reloaded") == 1


async def test_a_log_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "file"
    reason = f"log: Unable to configure handler 'file': {path}: No such file or directory"
    async with gateway(tmp_path) as running:
        conf = tmp_path / "gateway.json"
        good = conf.read_text()
        conf.write_text(json.dumps({**json.loads(good), "log": log_of(path)}))
        assert await reload(tmp_path) == (2, f"mariner: error: {conf}: {reason}\n")
        assert "configuration not reloaded" in running.stderr_path.read_text()
        second = await forked.start("mariner", "serve", "--conf", str(conf), environment=os.environ)
        _, stderr = await second.communicate()
        assert second.returncode == 2
        assert stderr.decode() == f"mariner: error: {conf}: {reason}\n"
        conf.write_text(good)
