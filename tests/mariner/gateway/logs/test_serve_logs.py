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
