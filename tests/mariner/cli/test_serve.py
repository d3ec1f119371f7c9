"""``mariner serve`` as a process: TLS, signals, health, exit codes and their texts."""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from hat.drivers import net
from hat.event import common
from hat.mariner import client as hat_client

from eventer_bridge import tls
from eventer_bridge.core import tokens
from tests.support import forked
from tests.support.certificates import make_certificates
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import write_conf
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.support.process import START_TIMEOUT_S


async def hat_connect(port: int, context: ssl.SSLContext | None) -> hat_client.Connection:
    return await hat_client.connect(
        net.TcpAddress("127.0.0.1", port), "app", client_token="secret", ssl=context
    )


async def run(*arguments: str) -> tuple[int, str]:
    process = await forked.start("mariner", *arguments, environment=os.environ)
    _, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stderr.decode()


async def test_hat_client_over_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    keys = {"cert": str(made.server_cert), "key": str(made.server_key)}
    async with gateway(tmp_path, tls=keys) as running:
        connection = await hat_connect(running.port, tls.client_context(made.ca))
        events = await connection.register([common.RegisterEvent(("a",), None, None)])
        assert events is not None
        result = await connection.query(common.QueryLatestParams([("a",)]))
        assert result.events == events
        await connection.async_close()
        # plain TCP does not get through
        async with await RawPeer.connect(running.port) as peer:
            peer.send({"msg_type": "ping_req", "ping_id": 1})
            await peer.reader.read()  # at most a TLS alert
            assert peer.reader.at_eof()
        # the end of a connection is nothing to warn of, also while it is being closed
        async with await RawPeer.connect(running.port, tls.client_context(made.ca)) as peer:
            peer.send({**INIT, "client_token": "wrong"})
            assert not (await peer.receive())["success"]
        log = running.stderr_path
    assert "eof_received" not in log.read_text()


async def test_mutual_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    keys = {"cert": str(made.server_cert), "key": str(made.server_key), "client_ca": str(made.ca)}
    async with gateway(tmp_path, tls=keys) as running:
        context = tls.client_context(made.ca, made.client_cert, made.client_key)
        connection = await hat_connect(running.port, context)
        assert connection.status is common.Status.OPERATIONAL
        await connection.async_close()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await hat_connect(running.port, tls.client_context(made.ca))


async def register_for_a_while(running: Gateway, answers: list[dict[str, Any]]) -> None:
    async with await RawPeer.init(running.port) as peer:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for i in range(1_000_000):
                peer.send(register_req(i, event("a", value=i)))
                answer = await peer.receive()
                while answer["msg_type"] == "status":
                    assert answer["status"] == "STANDBY"
                    answer = await peer.receive()
                answers.append(answer)
                if not answer["success"]:
                    return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    answers: list[dict[str, Any]] = []
    async with gateway(tmp_path, is_fresh=True) as running:
        task = asyncio.create_task(register_for_a_while(running, answers))
        while len(answers) < 100:
            await asyncio.sleep(0.01)
        running.process.send_signal(number)
        assert await running.process.wait() == 0
        await task
    registered = [a["events"][0] for a in answers if a["success"]]
    async with gateway(tmp_path) as running, await RawPeer.init(running.port) as peer:
        last = await peer.request(
            {"msg_type": "query_req", "query_id": 1, "query_type": "latest", "event_types": [["a"]]}
        )
        assert last["events"] == registered[-1:]


async def test_health_readiness_and_metrics(tmp_path: Path) -> None:
    async with gateway(tmp_path, http=True) as running, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{running.http_port}"
        async with await RawPeer.init(running.port, subscriptions=[["a"]]) as peer:
            await peer.request(register_req(1, event("a"), event("b")))
            await peer.receive()
            refused = await peer.request(register_req(2, event("?")))
            assert not refused["success"]
            async with session.get(f"{base}/healthz") as response:
                assert (response.status, await response.text()) == (200, "ok\n")
            async with session.get(f"{base}/readyz") as response:
                assert (response.status, await response.text()) == (200, "OPERATIONAL\n")
            async with session.get(f"{base}/metrics") as response:
                assert response.status == 200
                lines = (await response.text()).splitlines()
        for expected in (
            'mariner_connections{wire="mariner"} 1.0',
            'mariner_clients{wire="mariner"} 1.0',
            "mariner_operational 1.0",
            'mariner_events_registered_total{wire="mariner"} 2.0',
            'mariner_events_notified_total{wire="mariner"} 1.0',
            'mariner_frames_total{direction="in",wire="mariner"} 3.0',
            'mariner_registrations_rejected_total{reason="invalid event",wire="mariner"} 1.0',
            "mariner_pending_events 0.0",
            "mariner_clock_ahead_seconds 0.0",
            "mariner_store_event_types 6.0",
        ):
            assert expected in lines
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert float(values["mariner_commit_seconds_count"]) >= 1
        assert float(values["mariner_store_bytes"]) > 0


async def test_a_gateway_that_only_distributes(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, backend="dummy") as running,
        await RawPeer.init(running.port, subscriptions=[["a", "*"]]) as subscriber,
        await RawPeer.init(running.port) as peer,
    ):
        query = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}
        sessions = []
        for n in range(3):
            registered = await peer.request(register_req(n, event("a", "b", value=n), event("c")))
            assert registered["success"]
            [notified] = (await subscriber.receive())["events"]
            assert notified == registered["events"][0]
            assert notified["payload"]["data"] == n
            sessions.append(notified["id"]["session"])
            found = await peer.request({**query, "event_types": [["*"]]})
            assert (found["events"], found["more_follows"]) == ([], False)
        assert sessions == sorted(set(sessions))
    assert not (tmp_path / "events").exists()


async def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        code, stderr = await run("serve", "--conf", str(tmp_path / "gateway.json"))
    assert code == 1
    assert f": the event store is in use by process {running.process.pid} (" in stderr
    assert "Traceback" not in stderr


async def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="memory") as running:
        conf = json.loads((tmp_path / "gateway.json").read_text())
        conf["mariner"]["port"] = running.port
        (tmp_path / "second.json").write_text(json.dumps(conf))
        code, stderr = await run("serve", "--conf", str(tmp_path / "second.json"))
    assert code == 1
    assert f"mariner: error: 127.0.0.1:{running.port}: Address already in use\n" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("command", ["serve", "check"])
async def test_a_wrong_configuration_is_exit_code_2(tmp_path: Path, command: str) -> None:
    conf = tmp_path / "gateway.yaml"
    conf.write_text("name: x\nmariner: {host: 127.0.0.1, port: abc}\nclients: []\n")
    code, stderr = await run(command, "--conf", str(conf))
    assert code == 2
    lines = stderr.splitlines()
    assert all(line.startswith("mariner: error: ") for line in lines)
    assert any("mariner.port" in line and "'abc'" in line and "integer" in line for line in lines)
    assert any("event_core" in line for line in lines)


async def test_check_of_a_good_configuration(tmp_path: Path) -> None:
    conf = tmp_path / "gateway.yaml"
    conf.write_text(
        "name: x\nmariner: {host: 127.0.0.1, port: 0}\n"
        "event_core: {server_id: 1, backend: {type: memory}}\n"
        f"clients: [{{name: app, token: '{tokens.sha256_text('secret')}', subscriptions: [],"
        " register_events: []}]\n"
    )
    conf.chmod(0o600)
    code, stderr = await run("check", "--conf", str(conf))
    assert (code, stderr) == (0, "")


def limited_to(open_files: int) -> list[str]:
    """Command that sets the limit of open files (soft 64, hard as said), and becomes another."""
    return ["sh", "-c", f'ulimit -Sn 64 && ulimit -Hn {open_files} && exec "$@"', "sh"]


async def test_silent_connections_leave_the_store_its_files(tmp_path: Path) -> None:
    """As many as there may be files once took them all, and a commit failed."""
    async with (
        gateway(tmp_path, http=True, wrapper=limited_to(512)) as running,
        contextlib.AsyncExitStack() as stack,
    ):
        known = await stack.enter_async_context(await RawPeer.init(running.port))
        for port in (running.port, running.http_port):
            for _ in range(300):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
        for i in range(20):
            assert (await known.request(register_req(i, event(str(i)))))["success"]
        await until_let_in(running.port)
        assert psutil.Process(running.pid).num_fds() < 512 - 300
        log = running.stderr_path.read_text()
    [line] = [i for i in map(json.loads, json_lines(log)) if i["message"] == "limit of open files"]
    assert line["level"] == "WARNING"
    found = line["open_files"], line["max_clients"], line["max_connections_before_init"]
    assert found == (512, 96, 32)


async def until_let_in(port: int) -> None:
    """Try as a client does: not let in, it tries again."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                async with await RawPeer.init(port):
                    return
            await asyncio.sleep(0.05)


def json_lines(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("open_files", "code", "text"),
    [
        (1024, 0, "open files are limited to 1024 (ulimit -n): at most 480 clients and 160 conn"),
        (300, 2, "open files are limited to 300 (ulimit -n): the store and a few connections need"),
    ],
)
async def test_a_low_limit_of_open_files_is_told_by_check(
    tmp_path: Path, open_files: int, code: int, text: str
) -> None:
    conf = {
        "type": "mariner",
        "name": "gateway",
        "mariner": {"host": "127.0.0.1", "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": [],
    }
    path = write_conf(tmp_path / "gateway.json", conf)
    for command in ("check", "serve") if code else ("check",):
        process = await asyncio.create_subprocess_exec(
            *limited_to(open_files),
            sys.executable,
            *("-m", "mariner", command, "--conf", str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert text in output.decode()
        assert process.returncode == (code if command == "check" else 1)
