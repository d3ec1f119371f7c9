"""Each configuration and unit of deploy/ is started as its comments say, in a folder of its own."""

import asyncio
import contextlib
import json
import logging
import os
import re
import shlex
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from eventer_bridge import tls
from eventer_bridge.control.client import ANY, Addressee
from eventer_bridge.core import tokens
from eventer_bridge.model import QueryLatestParams, Status
from mariner.gateway import config_check, config_file, connection_requests, status
from mariner.gateway.connection_requests import ConnectionRequest
from mariner.gateway.counts import StatusReport
from mariner.gateway.gateway import Gateway, create
from mariner_certs import authority, files
from tests.deploy import test_group
from tests.deploy.test_containers import DEPLOY, GROUP, GROUP_COMPOSE, found
from tests.support import process as processes
from tests.support.event_servers import events_of
from tests.support.inprocess import APP, running_gateway
from tests.support.machine import free_port
from tests.support.peer import RawPeer, event, register_req
from tests.support.postgresql import Cluster
from tests.support.shell import Shell
from tests.support.shell import started as started_in
from tests.support.waiting import until

HOST: Final = "127.0.0.1"
PLACES: Final = (
    *("/etc/mariner", "/var/lib/mariner", "/run/mariner", "/run/secrets"),
    *("var/certs", "var/data"),
)


@pytest.fixture
def here(tmp_path: Path) -> Callable[[str], str]:
    """Puts what a text names into a folder, where there are all certificates that one names."""
    etc = tmp_path / "etc/mariner"
    of_pod, tokens_of_pod = tmp_path / "etc/mariner-tls", tmp_path / "etc/mariner-tokens"
    ca = authority.make_ca("CA")
    for folder in (etc, tmp_path / "var/certs"):
        files.save(folder, "ca", ca)
        files.save(folder, "server", authority.make_server(ca, ["localhost", HOST]))
    for name in ("meter", "dashboard", "relay", "gateway"):
        files.save(etc, name, authority.make_client(ca, name))
    files.save(of_pod, "tls", authority.make_server(ca, ["localhost", HOST]))
    (of_pod / "tls.pem").rename(of_pod / "tls.crt")
    tokens_of_pod.mkdir()
    (tokens_of_pod / "app").write_text(tokens.sha256_text("change-me-app"))
    for place in PLACES:
        (tmp_path / place.strip("/")).mkdir(parents=True, exist_ok=True)
    for secret in ("run/secrets/mariner", "etc/mariner-log/password"):
        (tmp_path / secret).parent.mkdir(exist_ok=True)
        (tmp_path / secret).write_text("secret\n")

    def move(text: str) -> str:
        for place in PLACES:
            text = text.replace(place, str(tmp_path / place.strip("/")))
        return re.sub(r"(host: )[\w-]+\.example\b", r"\1localhost", text)

    return move


@contextlib.asynccontextmanager
async def started(text: str, folder: Path, ports: Mapping[int, int] = {}) -> AsyncIterator[Gateway]:
    """A gateway with this configuration; it listens at free ports, or those that take its own."""
    text = re.sub(r"\bport: (\d+)", lambda found: f"port: {ports.get(int(found[1]), 0)}", text)
    path = folder / "gateway.yaml"
    path.write_text(text)
    conf = config_file.load(path)
    config_check.check(conf)
    gateway = await create(conf)
    try:
        StatusReport(gateway)
        yield gateway
    finally:
        await gateway.async_close()


def context(folder: Path, name: str | None = None) -> ssl.SSLContext:
    etc = folder / "etc/mariner"
    if name is None:
        return tls.client_context(etc / "ca.pem")
    return tls.client_context(etc / "ca.pem", etc / f"{name}.pem", etc / f"{name}.key")


async def as_client(port: int, tls: ssl.SSLContext, name: str, **keys: Any) -> RawPeer:
    return await RawPeer.init(port, tls, client_name=name, client_token=f"change-me-{name}", **keys)


async def test_the_example_and_a_relay_to_it(tmp_path: Path, here: Callable[[str], str]) -> None:
    text = (DEPLOY / "gateway.yaml").read_text()
    # the relay speaks TLS to its Event Server, as is commented out there
    text, n_found = re.subn(
        r"(?m)^        #(tls:|    (?:cert|key|client_ca): .*)$", r"        \1", text
    )
    assert n_found == 4
    (tmp_path / "core").mkdir()
    async with started(here(text), tmp_path / "core") as core:
        of_core = core.eventer_server
        assert of_core is not None
        assert core.core.status is Status.OPERATIONAL
        dashboard = context(tmp_path, "dashboard")
        async with (
            await as_client(core.mariner.port, context(tmp_path, "meter"), "meter") as meter,
            await as_client(
                core.mariner.port, dashboard, "dashboard", subscriptions=[["alarm", "*"]]
            ) as watching,
        ):
            power = event("meter", "7", "power", value={"value": 6_000, "unit": "W"})
            assert (await meter.request(register_req(1, power)))["success"]
            told = await watching.receive()
            assert told["events"][0]["payload"]["data"]["state"] == "RAISED"
        relay = here((DEPLOY / "relay.yaml").read_text())
        async with started(relay, tmp_path, {23012: of_core.address.port}) as relaying:
            await until(lambda: relaying.core.status is Status.OPERATIONAL)
            async with await as_client(relaying.mariner.port, context(tmp_path), "app") as app:
                assert (await app.request(register_req(1, event("app", "x"))))["success"]
                # its socket is where its comments say, and answers
                socket = tmp_path / "run/mariner/control.sock"
                shown = await asyncio.to_thread(status.ask, socket, ANY)
                assert (shown.name, shown.store, shown.status) == ("relay", None, "OPERATIONAL")
                to = Addressee(pid=os.getpid())
                request = ConnectionRequest("list")
                ask = connection_requests.ask
                told = await asyncio.to_thread(ask, socket, request, to)
                assert [i.client for i in told.connections] == ["app"]


CONFIGURATIONS: Final = {
    "development": (DEPLOY / "development.yaml").read_text(),
    "compose": (DEPLOY / "compose/conf/gateway.yaml").read_text(),
    "kubernetes": found("ConfigMap")["data"]["gateway.yaml"],
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
async def test_configurations_start(name: str, tmp_path: Path, here: Callable[[str], str]) -> None:
    text = here(CONFIGURATIONS[name])
    async with started(text, tmp_path) as gateway:
        assert gateway.http is not None
        [client] = gateway.config.clients
        token = "development" if name == "development" else "change-me-app"
        async with await RawPeer.init(
            gateway.mariner.port, context(tmp_path), client_name=client.name, client_token=token
        ) as peer:
            assert (await peer.request(register_req(1, event("app", "x"))))["success"]
        # what Docker asks
        check = (DEPLOY / "Dockerfile").read_text().partition("HEALTHCHECK")[2]
        [command] = re.findall(r"^ +(\[.*\])$", check, re.MULTILINE)
        _, *arguments = json.loads(command.replace(":23080", f":{gateway.http.port}"))
        asking = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        assert await asking.wait() == 0


async def test_the_pair(
    tmp_path: Path, here: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two new gateways: one is active, the other one has its events, and nothing is logged but
    that they waited for each other."""
    caplog.set_level(logging.INFO, "eventer_bridge")
    ports = {number: free_port() for number in (1, 2, 3, 4)}
    monitors = [here((DEPLOY / f"pair/monitor-{i}.yaml").read_text()) for i in (1, 2)]
    places = [{23010: ports[1], 23011: ports[2]}, {23010: ports[3], 23011: ports[4]}]
    async with contextlib.AsyncExitStack() as stack:
        for number, (text, used) in enumerate(zip(monitors, places, strict=True), 1):
            conf = yaml.safe_load(text)
            for listener in (conf["server"], conf["master"]):
                listener["port"] = used[listener["port"]]
            for parent in conf["slave"]["parents"]:
                parent["port"] = ports[2]  # the other one
            path = tmp_path / f"monitor-{number}.yaml"
            path.write_text(yaml.safe_dump(conf))
            running = processes.child(
                "hat.monitor.server", "--conf", str(path), output=tmp_path / f"monitor-{number}.log"
            )
            await stack.enter_async_context(running)
        gateways = []
        for number, used in enumerate(places, 1):
            text = here((DEPLOY / f"pair/gateway-{number}.yaml").read_text())
            text = text.replace("events}", f"events{number}}}")
            folder = tmp_path / str(number)
            folder.mkdir()
            gateways.append(await stack.enter_async_context(started(text, folder, used)))
        first, second = gateways
        await until(lambda: first.core.status is Status.OPERATIONAL)
        assert second.core.status is Status.STANDBY
        async with await RawPeer.init(first.mariner.port, client_token="change-me-app") as peer:
            assert (await peer.request(register_req(1, event("x"))))["success"]
        while ("x",) not in {i.type for i in await events_of(second, 1)}:
            await asyncio.sleep(0.02)
        assert [await readyz(i) for i in gateways] == [200, 503]  # as a load balancer asks
    warnings = [vars(i) for i in caplog.records if i.levelno >= logging.WARNING]
    assert {i["levelname"] for i in warnings} == {"WARNING"}
    reasons = {str(i.get("reason")) for i in warnings}
    assert not [i for i in reasons if "history" in i], reasons


async def test_the_group(tmp_path: Path, here: Callable[[str], str], postgresql: Cluster) -> None:
    """What makes it does no harm again. A member as in compose is active, one as on Kubernetes has
    its events, and takes over when the first stops."""
    texts = {
        "gateway-1": (GROUP / "conf/gateway.yaml").read_text(),
        "gateway-2": test_group.found("ConfigMap", "mariner-gateway")["data"]["gateway.yaml"],
    }
    for member, text in texts.items():
        moved = here(text).replace("lib/mariner/events", f"lib/mariner/{member}")
        moved = re.sub(r"dsn: .*", f"dsn: {postgresql.dsn()}", moved)
        its = rf"\1member: {member}\n\1name: deployed"
        texts[member] = re.sub(r"( +)name: plant\b", its, moved)
    (tmp_path / "etc/mariner/gateway.yaml").write_text(texts["gateway-1"])
    [script] = GROUP_COMPOSE["services"]["group-init"]["command"]
    assert test_group.JOB["spec"]["containers"][0]["args"] == [script]
    script = re.sub(r"\bmariner (?=group)", f"{sys.executable} -m mariner ", here(script))
    for shown in ("made: group deployed ", "group    deployed, "):
        process = await asyncio.create_subprocess_shell(script, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0
        assert printed.decode().startswith(shown)
    async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as of_first:
        gateways = []
        for member, owner in (("gateway-1", of_first), ("gateway-2", stack)):
            folder = tmp_path / member
            folder.mkdir()
            gateways.append(await owner.enter_async_context(started(texts[member], folder)))
            await until(lambda: gateways[0].core.status is Status.OPERATIONAL)
        first, second = gateways
        assert [await readyz(i) for i in gateways] == [200, 503]
        async with await as_client(first.mariner.port, context(tmp_path), "app") as app:
            assert (await app.request(register_req(1, event("app", "x"))))["success"]
        await of_first.aclose()
        await until(lambda: second.core.status is Status.OPERATIONAL)
        assert await readyz(second) == 200
        found = await second.core.query(QueryLatestParams([("app", "x")]))
        assert [i.type for i in found.events] == [("app", "x")]


async def readyz(gateway: Gateway) -> int:
    assert gateway.http is not None
    url = f"http://{HOST}:{gateway.http.port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def test_the_unit_that_forwards(tmp_path: Path, here: Callable[[str], str]) -> None:
    """Its commands, with the environment of its comments, which an application has as well."""
    unit = here((DEPLOY / "mariner-forward.service").read_text())
    variables = dict(re.findall(r"^#   (MARINER_\w+)=(.*)$", unit, re.MULTILINE))
    [program] = re.findall(r"^ExecStart=/opt/mariner/bin/mariner (.*)$", unit, re.MULTILINE)
    [register] = re.findall(r"^#   mariner (register .*)$", unit, re.MULTILINE)
    [asked] = re.findall(r"`mariner (forward .* --status)`", unit)
    etc = tmp_path / "etc/mariner"
    mariner = {"host": HOST, "port": 0}
    keys = {"cert": str(etc / "server.pem"), "key": str(etc / "server.key")}
    token_file = etc / "station-7.token"
    token_file.write_text("secret\n")
    assert variables["MARINER_TOKEN_FILE"] == str(token_file)
    (tmp_path / "var/lib/mariner-forward").mkdir()  # StateDirectory
    client = {**APP, "name": variables["MARINER_NAME"]}
    async with running_gateway([client], mariner={**mariner, "tls": keys}) as gateway:
        port = str(gateway.mariner.port)
        shell = Shell({**variables, "MARINER_HOST": "localhost", "MARINER_PORT": port})
        done = await shell.run(*shlex.split(register))
        assert done.code == 0, done.stderr
        async with started_in(shell, *shlex.split(program)) as forwarding:
            params = QueryLatestParams([("pump", "1")])
            while not (await gateway.core.query(params)).events:
                await asyncio.sleep(0.02)
            told = await shell.run(*shlex.split(asked))
            assert told.code == 0, told.stderr
            forwarding.terminate()
            assert await forwarding.wait() == 0
