"""``mariner eventer …`` as processes, against our Eventer server and a real hat-event-server."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from click.testing import CliRunner

from eventer_bridge.model import JsonPayload, RegisterEvent
from mariner.cli import main
from mariner.cli.eventer_server import EventerTarget
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway
from tests.support.hat_peers import hat_event_server
from tests.support.inprocess import running_gateway
from tests.support.shell import Result, Shell, check_pinged, lines, read_line, started

TOKEN: Final = "secret"

module_loop = pytest.mark.asyncio(loop_scope="module")


class Server(NamedTuple):
    kind: str
    address: str
    shell: Shell

    def invoke(self, *arguments: str, **variables: str) -> Result:
        """Run a command that does not read its input, faster than as a process."""
        result = CliRunner().invoke(
            main, ["eventer", *arguments], env={**self.shell.environment, **variables}
        )
        return Result(result.exit_code, result.stdout, result.stderr)


def listening(**keys: Any) -> dict[str, Any]:
    """``event_core`` of a gateway that Eventer clients can connect to."""
    return {"eventer_server": {"host": "127.0.0.1", "port": 0, **keys}}


def shell_for(port: int, token: str = TOKEN, name: str = "gui/1") -> Shell:
    variables = {"PORT": str(port), "NAME": name, "TOKEN": token}
    return Shell({f"MARINER_EVENTER_{key}": value for key, value in variables.items()})


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["ours", "hat"])
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    if request.param == "ours":
        async with gateway(directory, core=listening(token=TOKEN)) as ours:
            assert ours.eventer_port is not None
            yield _server("ours", ours.eventer_port)
    else:
        async with hat_event_server(directory, server_token=TOKEN, flush_period_s=0.1) as hat:
            yield _server("hat", hat.port)


def _server(kind: str, port: int) -> Server:
    return Server(kind, f"tcp+sbs://127.0.0.1:{port}", shell_for(port))


# --- both servers -------------------------------------------------------------------------------


def test_ping(server: Server) -> None:
    result = server.invoke("ping", "--count", "3", "--interval", "0.01")
    check_pinged(result, server.address, 3)


def test_register_and_query(server: Server) -> None:
    binary = {"payload_type": "binary", "data_type": "t", "data": "AP8="}
    payloads = [1, True, {"a": [1], "b": None}, 1.0, binary, {"payload_type": "json", "data": None}]
    events = [
        json.dumps({"type": f"back/{i % 2}", "payload": payload, "source_timestamp": i})
        for i, payload in enumerate(payloads)
    ]
    registered = server.invoke("register", "--batch", "2", *events)
    assert (registered.code, registered.stderr) == (0, "")
    assert [e["source_timestamp"]["s"] for e in registered.events] == list(range(6))
    assert len({e["id"]["session"] for e in registered.events}) == 3
    ids = ["{server}/{session}/{instance}".format(**e["id"]) for e in registered.events]

    def query(*options: str) -> list[int]:
        result = server.invoke("query", *options)
        assert (result.code, result.stderr) == (0, "")
        found = [e for e in result.events if e["type"][0] == "back"]
        return [registered.events.index(e) for e in found]

    everything = ("--type", "back/?", "--order", "asc")
    assert query(*everything) == list(range(6))
    assert query(*everything, "--limit", "2") == [0, 1]
    assert query(*everything, "--source-from", "4") == [4, 5]
    # what Eventer cannot ask
    assert query(*everything, "--id", ids[4], "--id", "1/1/77", "--id", ids[0]) == [0, 4]
    assert query(*everything, "--payload", "1", "--limit", "1") == [0]
    assert query(*everything, "--payload", '{"b": null, "a": [1.0]}') == [2]
    assert query("--type", "back/?", "--unique-type") == [5, 4]
    assert query("latest", "--type", "back/1") == [5]
    durable = ("server", "--server-id", "1", "--persisted")
    while server.kind == "hat" and len(query(*durable)) < 6:
        pass  # it writes now and then, and answers before
    assert query(*durable) == list(range(6))


@module_loop
async def test_more_than_one_page(server: Server) -> None:
    stdin = lines(*range(5_000), event_type="many")
    quiet = await server.shell.run("eventer", "register", "--batch", "100", "--quiet", stdin=stdin)
    assert quiet == (0, "", "")
    options = ("eventer", "query", "--type", "many", "--order", "asc")
    assert (await server.shell.run(*options)).values == list(range(5_000))
    assert (await server.shell.run(*options, "--payload", "4999")).values == [4999]


@module_loop
@pytest.mark.parametrize("options", [(), ("--persisted",)])
async def test_subscribe(server: Server, options: tuple[str, ...]) -> None:
    command = ("eventer", "subscribe", "--type", "news/?", "--count", "3", *options)
    async with started(server.shell, *command) as process:
        assert await read_line(process.stderr) == f"mariner: subscribed at {server.address}\n"
        stdin = (
            lines(1, event_type="news/a")
            + lines(2, event_type="other")
            + lines(3, 4, 5, event_type="news/b")
        )
        assert (await server.shell.run("eventer", "register", stdin=stdin)).code == 0
        stdout, stderr = await process.communicate()
    assert (process.returncode, stderr) == (0, b"")
    assert Result(0, stdout.decode(), "").values == [1, 3, 4]


def test_wrong_token(server: Server) -> None:
    result = server.invoke("query", MARINER_EVENTER_TOKEN="wrong")
    assert result == (1, "", f"mariner: error: {server.address}: invalid client token\n")


def test_dialect(server: Server) -> None:
    result = server.invoke("ping", "--count", "1", "--dialect", "classic")
    if server.kind == "ours":
        assert (result.code, result.stderr) == (0, "")
    else:
        assert (result.code, result.stdout) == (1, "")
        assert re.fullmatch(
            r"mariner: error: [\d.:]+: (peer closed|connection lost).*, before it answered"
            r" MsgInitReq; it may require TLS or another dialect\n",
            result.stderr,
        )


def test_tls_of_a_server_without(server: Server) -> None:
    answers = server.kind == "ours"
    result = server.invoke("ping", "--tls", "--timeout", "60" if answers else "0.5")
    address = server.address.replace("tcp", "ssl")
    problem = "TLS: the server .*" if answers else "no connection within 0.5 s"
    assert (result.code, result.stdout) == (1, "")
    assert re.fullmatch(f"mariner: error: {re.escape(address)}: {problem}\n", result.stderr)


# --- connecting ---------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    result = await shell_for(1).run("eventer", "query")
    assert result == (1, "", "mariner: error: tcp+sbs://127.0.0.1:1: connection refused\n")


async def test_variables_of_mariner_commands_are_not_for_these() -> None:
    result = await shell_for(1).run("eventer", "query", MARINER_PORT="2", MARINER_TLS="1")
    assert result == (1, "", "mariner: error: tcp+sbs://127.0.0.1:1: connection refused\n")


async def test_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    keys = {"cert": str(made.server_cert), "key": str(made.server_key)}
    async with gateway(tmp_path, core=listening(token=TOKEN, tls=keys)) as running:
        assert running.eventer_port is not None
        shell = shell_for(running.eventer_port)
        trusted = await shell.run(
            "eventer", "register", "--tls-ca", str(made.ca), '{"type": "over/tls", "payload": 1}'
        )
        assert (trusted.values, trusted.stderr) == ([1], "")
        untrusted = await shell.run("eventer", "ping", "--tls")
        assert (untrusted.code, untrusted.stdout) == (1, "")
        assert untrusted.stderr.startswith(
            f"mariner: error: ssl+sbs://127.0.0.1:{running.eventer_port}:"
            " TLS: the server's certificate was not issued by a certificate authority"
        )
        plain = await shell.run("eventer", "ping")
        assert (plain.code, plain.stdout) == (1, "")
        assert plain.stderr.endswith("it may require TLS or another dialect\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ping", "--dialect", "old"], "'old' is not one of 'current', 'classic'"),
        (["query", "latest", "--id", "1/2/3"], "--id does not apply to a query of 'latest'."),
        (
            ["query", "--token", "a", "--token-file", "b"],
            "Give either --token or --token-file, not both.",
        ),
        (["register", "--batch", "0"], "Invalid value for '--batch'"),
    ],
)
def test_usage(arguments: list[str], text: str) -> None:
    options = ["--port", "1", "--name", "gui/1"]
    result = CliRunner().invoke(main, ["eventer", *arguments, *options])
    assert result.exit_code == 2
    assert text in result.stderr


# --- what goes wrong later ----------------------------------------------------------------------


async def test_refused_events(tmp_path: Path) -> None:
    rights = [{"subscriptions": [["allowed", "*"]]}]
    app = {"name": "gui/1", "token": TOKEN, "subscriptions": [["*"]], "register_events": rights}
    async with gateway(tmp_path, backend="memory", core=listening(clients=[app])) as running:
        assert running.eventer_port is not None
        stdin = lines(1, event_type="allowed/a") + lines(2, event_type="forbidden")
        result = await shell_for(running.eventer_port).run("eventer", "register", stdin=stdin)
    assert (result.code, result.values) == (1, [1])
    assert result.stderr == "mariner: error: line 2: the event server refused the registration\n"


async def test_a_server_that_stops(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="memory", core=listening()) as running:
        assert running.eventer_port is not None
        shell = shell_for(running.eventer_port, token="")
        address = f"tcp+sbs://127.0.0.1:{running.eventer_port}"
        options = ("--count", "0", "--interval", "0.01", "--timeout", "3")
        async with (
            started(shell, "eventer", "ping", *options) as ping,
            started(shell, "eventer", "subscribe") as subscribe,
            started(shell, "eventer", "register") as register,
        ):
            assert (
                await read_line(ping.stdout) == f"PING {address}: connected, status OPERATIONAL\n"
            )
            assert "seq=1 " in await read_line(ping.stdout)
            await read_line(subscribe.stderr)
            assert register.stdin is not None
            register.stdin.write(lines(1, event_type="a").encode())
            await read_line(register.stdout)
            os.kill(running.pid, signal.SIGSTOP)
            try:
                unanswered = await read_line(ping.stderr)
                unconnected = await shell.run("eventer", "ping", "--timeout", "2")
            finally:
                os.kill(running.pid, signal.SIGCONT)
            os.kill(running.pid, signal.SIGKILL)
            stdout, stderr = await ping.communicate()
            lost = [await read_line(i.stderr) for i in (subscribe, register)]
            # register ends although its input is still open
            codes = [await i.wait() for i in (ping, subscribe, register)]
    assert re.fullmatch(
        rf"mariner: no answer from {re.escape(address)}: seq=\d+ within 3 s\n", unanswered
    )
    assert unconnected == (
        1, "", f"mariner: error: {address}: no answer to MsgInitReq within 2 s\n"
    )  # fmt: skip
    assert "ping statistics" in stdout.decode()
    pattern = r"mariner: error: .*127\.0\.0\.1:\d+: (peer closed|connection lost.*)\n"
    for line in [stderr.decode().splitlines(keepends=True)[-1], *lost]:
        assert re.fullmatch(pattern, line)
    assert codes == [1, 1, 1]


# --- the client, without a shell ----------------------------------------------------------------


async def test_notifications_that_nobody_takes_hold_the_server_back() -> None:
    payload = JsonPayload(msgspec.Raw(b'"' + b"x" * (1 << 20) + b'"'))
    count = 40
    core: dict[str, Any] = {
        "server_id": 1,
        "backend": {"type": "memory"},
        "eventer_server": {"host": "127.0.0.1", "port": 0},
    }
    async with running_gateway(event_core=core) as running:
        assert running.eventer_server is not None
        port = running.eventer_server.address.port
        named = EventerTarget("127.0.0.1", port, "a", None, False, None, None, None, "current")
        async with (
            await named.connect(subscriptions=[("a",)]) as watcher,
            await named.connect() as client,
        ):
            for i in range(count):
                timestamps = await client.register([RegisterEvent(("a",), None, payload)])
                assert timestamps[0].id.session, i
            connection = watcher.client._connection  # type: ignore[attr-defined]  # not of every client
            while not connection.pauses:
                await asyncio.sleep(0.001)
            heard = 0
            async for events in watcher.events():
                heard += len(events)
                if heard == count:
                    break
            assert connection.pauses == set()
