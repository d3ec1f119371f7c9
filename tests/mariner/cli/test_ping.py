"""``mariner ping`` as a process, against a real gateway."""

import asyncio
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.gateway import Gateway, gateway
from tests.support.shell import Shell, check_pinged, read_line, shell_for, started

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_ping(shell: Shell, server: Gateway) -> None:
    result = await shell.run("ping", "--count", "3", "--interval", "0.01")
    address = f"127.0.0.1:{server.port}"
    check_pinged(result, address, 3)


async def test_ping_as_json(shell: Shell, server: Gateway) -> None:
    result = await shell.run("ping", "--count", "3", "--interval", "0.01", "--json")
    assert (result.code, result.stderr) == (0, "")
    *answers, summary = result.events
    assert [i["seq"] for i in answers] == [1, 2, 3]
    times_ms = [i["time_ms"] for i in answers]
    assert summary.pop("duration_ms") > 20
    rtt_ms = summary.pop("rtt_ms")
    assert (rtt_ms["min"], rtt_ms["max"]) == (min(times_ms), max(times_ms))
    assert rtt_ms["min"] <= rtt_ms["avg"] <= rtt_ms["max"]
    assert summary == {
        "address": f"127.0.0.1:{server.port}",
        "status": "OPERATIONAL",
        "transmitted": 3,
        "received": 3,
    }


async def test_ping_until_interrupted(shell: Shell) -> None:
    forever = ("--count", "0", "--interval", "0.01")
    async with started(shell, "ping", *forever, is_fresh=True) as process:
        assert (await read_line(process.stdout)).startswith("PING ")
        assert "seq=1 " in await read_line(process.stdout)
        process.send_signal(signal.SIGINT)
        stdout, stderr = await process.communicate()
        assert process.returncode == 0
        assert "0% loss" in stdout.decode()
        assert stderr == b""


async def test_a_ping_under_way_is_not_lost_by_an_interrupt(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, backend="memory") as running,
        started(
            shell_for("app", "secret", running.port), "ping", "--count", "0", "--interval", "0"
        ) as process,
    ):
        assert (await read_line(process.stdout)).startswith("PING ")
        os.kill(running.pid, signal.SIGSTOP)
        try:
            while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            while "transmitted" not in (line := await read_line(process.stdout)):
                assert line
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert ", 0% loss" in line


async def test_ping_without_connection(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="memory") as running:
        shell = shell_for("app", "secret", running.port)
        os.kill(running.pid, signal.SIGSTOP)
        try:
            result = await shell.run("ping", "--timeout", "2")
        finally:
            os.kill(running.pid, signal.SIGCONT)
    text = f"mariner: error: 127.0.0.1:{running.port}: no answer to init_req within 2 s\n"
    assert result == (1, "", text)


async def test_ping_of_a_server_that_stops(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="memory") as running:
        shell = shell_for("app", "secret", running.port)
        options = ("--count", "0", "--interval", "0.01", "--timeout", "3")
        async with started(shell, "ping", *options) as process:
            await read_line(process.stdout)
            await read_line(process.stdout)
            os.kill(running.pid, signal.SIGSTOP)
            try:
                line = await read_line(process.stderr)
            finally:
                os.kill(running.pid, signal.SIGCONT)
            pattern = rf"mariner: no answer from 127\.0\.0\.1:{running.port}: seq=\d+ within 3 s\n"
            assert re.fullmatch(pattern, line)
            os.kill(running.pid, signal.SIGKILL)
            stdout, stderr = await process.communicate()
    assert process.returncode == 1
    assert "ping statistics" in stdout.decode()
    last_line = stderr.decode().splitlines()[-1]
    assert re.fullmatch(r"mariner: error: 127\.0\.0\.1:\d+: .*(closed|reset|lost).*", last_line)
