"""`make demo`, in small."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from tests.support.inprocess import running_gateway

ROOT = Path(__file__).parent.parent.parent


def test_demo(tmp_path: Path) -> None:
    few = ["--count", "2", "--period", "0.05", "--events", "600"]
    arguments = ["--folder", tmp_path / "demo", *few]
    done = subprocess.run(
        [sys.executable, "deploy/demo/run.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "development certificates: made ca, server, client",
        "3 transmitted, 3 received, 0% loss",
        "machine: registered ",
        "machine/cpu/0",
        "machine/memory/used",
        '"type":["machine","cpu","0"]',
        ": ok\n",
        "counter: registers 600 events: kill the gateway, and start it again\ncounter: seen 150\n",
        "counter: registered 600, stored 600 (0 twice), seen 600 (0 twice): ok",
        "gateway stopped by SIGTERM, exit code 0",
    ):
        assert expected in done.stdout
    assert "counter: connection lost" in done.stderr
    before, _, after = done.stdout.partition("\n$ kill -9 ")
    assert "counter: seen 600" not in before
    assert "listening: mariner" in after


@pytest.mark.parametrize(
    ("program", "prefix", "suffix"),
    [
        ("machine", "machine: ", "; connecting again"),
        ("counter", "counter: client is not connected: ", r"; next try in \d\.\d s"),
    ],
)
def test_why_there_is_no_connection_is_told_once(program: str, prefix: str, suffix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        command = [sys.executable, f"deploy/demo/{program}.py", "--port", str(port)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MARINER_")}
        with subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        ) as process:
            try:
                for _ in range(4):
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1 << 16)
            finally:
                process.kill()
            assert process.stderr is not None
            told = process.stderr.read()
    reason = "the server closed the connection, before it answered init_req; it may require TLS"
    assert re.fullmatch(f"{prefix}127.0.0.1:{port}: {reason}{suffix}\n", told)


async def test_a_wrong_token_ends_the_counter() -> None:
    async with running_gateway() as running:
        port = running.mariner.port
        command = [sys.executable, "deploy/demo/counter.py", "--port", str(port), "--count", "4"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MARINER_")}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=DEVNULL, stderr=PIPE, cwd=ROOT, env=environment
        )
        async with asyncio.timeout(60):
            _, told = await process.communicate()
    assert process.returncode == 1
    last = told.decode().splitlines()[-1]
    assert last == f"counter: 127.0.0.1:{port}: invalid client name or token"
