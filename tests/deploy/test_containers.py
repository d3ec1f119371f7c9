"""Containers: the manifests are valid and fit the gateway, which runs as they run it."""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import jsonschema_rs
import psutil
import pytest
import yaml

from mariner.cli.serve import serve
from mariner.gateway import config, config_file
from tests.support.gateway import gateway
from tests.support.inprocess import APP
from tests.support.peer import RawPeer, event, register_req
from tests.support.schemas import LARGE, NUMBERS, checkers

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
KUBERNETES: Final = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "gateway.yaml").read_text())]
COMPOSE: Final = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
GROUP: Final = DEPLOY / "group"
GROUP_KUBERNETES: Final = [*yaml.safe_load_all((GROUP / "kubernetes.yaml").read_text())]
GROUP_COMPOSE: Final = yaml.safe_load((GROUP / "compose.yaml").read_text())
USER: Final = 10001

READ_ONLY: Final = """
mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,bind,ro / &&
mount -o remount,bind,rw "$1" && shift &&
exec setpriv --reuid={user} --regid={user} --clear-groups --bounding-set=-all,+dac_read_search \
    --inh-caps=+dac_read_search --ambient-caps=+dac_read_search --no-new-privs "$@"
"""
"""Runs a command as a container does: another user, who may write to one directory only. That user
may read everything, because the interpreter of the tests may be in a home directory."""


def can_be_read_only() -> bool:
    """Whether a root file system of its own can be made here."""
    if os.geteuid() != 0:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount --make-rprivate / && mount -o remount,bind,ro /"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def found(kind: str) -> dict[str, Any]:
    [document] = [i for i in KUBERNETES if i["kind"] == kind]
    return dict(document.get("spec", document))


def containers() -> Iterator[dict[str, Any]]:
    yield from found("StatefulSet")["template"]["spec"]["containers"]


def named(name: str) -> dict[str, Any]:
    [container] = [i for i in containers() if i["name"] == name]
    return container


@pytest.mark.parametrize(
    "name", ["kubernetes/gateway.yaml", "group/kubernetes.yaml", "spark/kubernetes.yaml"]
)
@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_manifests_are_valid(name: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all((DEPLOY / name).read_text()):
        if not document["apiVersion"].startswith("postgresql.cnpg.io/"):  # not Kubernetes' own
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("compose", [COMPOSE, GROUP_COMPOSE], ids=["one", "group"])
def test_the_compose_file_is_valid(compose: dict[str, Any]) -> None:
    pytest.importorskip("check_jsonschema")
    files = importlib.metadata.files("check-jsonschema") or []
    [schema] = [i for i in files if i.name == "compose-spec.json"]
    validator = jsonschema_rs.validator_for(json.loads(schema.read_text()))
    validator.validate(compose)
    assert not validator.is_valid({**compose, "services": {"x": {"read_only": 5}}})


def test_configurations_load(tmp_path: Path) -> None:
    text = found("ConfigMap")["data"]["gateway.yaml"]
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    of_kubernetes = config_file.load(path)
    assert of_kubernetes == config_file.load(path)
    of_compose = config_file.load(DEPLOY / "compose" / "conf" / "gateway.yaml")
    for conf in (of_kubernetes, of_compose):
        assert conf.event_core is not None
        assert isinstance(conf.event_core.backend, config.RocksDbConfig)
        assert conf.event_core.backend.path.parent == Path("/var/lib/mariner")
        assert conf.http is not None
        assert (conf.mariner.port, conf.http.port) == (23014, 23080)
    mounts = {mount["mountPath"] for mount in named("gateway")["volumeMounts"]}
    for file in re.findall(r"/[\w/.-]+", text):
        assert str(Path(file).parent) in mounts


def test_what_kubernetes_asks_is_there() -> None:
    container = named("gateway")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"mariner": 23014, "http": 23080}
    for probe, path in (
        ("startup", "/healthz"),
        ("liveness", "/healthz"),
        ("readiness", "/readyz"),
    ):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
    for port in found("Service")["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    labels = found("StatefulSet")["template"]["metadata"]["labels"]
    for selector in (
        found("Service")["selector"],
        found("StatefulSet")["selector"]["matchLabels"],
        found("PodDisruptionBudget")["selector"]["matchLabels"],
        found("NetworkPolicy")["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    claims = [i["metadata"]["name"] for i in found("StatefulSet")["volumeClaimTemplates"]]
    volumes = [i["name"] for i in found("StatefulSet")["template"]["spec"]["volumes"]]
    for each in containers():
        assert {mount["name"] for mount in each["volumeMounts"]} <= {*volumes, *claims}


def test_what_containers_run_exists() -> None:
    [of_image] = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    of_compose = COMPOSE["services"]["gateway"]["command"]
    for name, *args in (json.loads(of_image), of_compose, named("gateway")["args"]):
        assert name == "serve"
        serve.make_parser(click.Context(serve)).parse_args(args)  # raises if there is no option


def test_nothing_more_is_allowed_than_is_needed() -> None:
    pod = found("StatefulSet")["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == USER
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"--uid {USER} " in dockerfile
    assert f"\nUSER {USER}\n" in dockerfile
    for container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        # secrets that Kubernetes replaces are not seen in a subPath
        assert not any("subPath" in mount for mount in container["volumeMounts"])
    for name in ("gateway", "backup"):
        service = COMPOSE["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    # what a gateway is given to stop
    assert pod["terminationGracePeriodSeconds"] == 30
    assert COMPOSE["services"]["gateway"]["stop_grace_period"] == "30s"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that others may read."""
    with tempfile.TemporaryDirectory(prefix="mariner-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def is_root_read_only(pid: int) -> bool:
    """Whether ``/`` is read-only for a process."""
    mounts = [i.split() for i in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    [*_, flags] = [mount[3] for mount in mounts if mount[1] == "/"]
    return flags.startswith("ro,")


async def until_sleeping(pid: int) -> psutil.Process:
    """Wait until a process has a child that sleeps; returns it."""
    while True:
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "sleep":
                    return child
        await asyncio.sleep(0.01)


def jobs() -> list[str]:
    """What the containers run that back up, as the shell gets it."""
    [of_kubernetes] = named("backup")["args"]
    [of_compose] = COMPOSE["services"]["backup"]["command"]
    return [of_kubernetes, of_compose.replace("$$", "$")]


@pytest.mark.parametrize(("code", "pause_s"), [(0, "86400"), (1, "300")])
@pytest.mark.parametrize("script", jobs(), ids=["kubernetes", "compose"])
async def test_the_container_that_backs_up(
    script: str, code: int, pause_s: str, tmp_path: Path
) -> None:
    # a `mariner` of ours: what it is called with, and what follows
    log = tmp_path / "log"
    program = tmp_path / "mariner"
    program.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexit {code}\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", script),
        env={**os.environ, "PATH": path, "BACKUP_PLACE": "/var/lib/mariner-backup"},
    )
    sleeping = await until_sleeping(process.pid)
    assert sleeping.cmdline() == ["sleep", pause_s]
    process.terminate()  # it ends, rather than sleep on
    async with asyncio.timeout(60):
        await process.wait()
    sleeping.terminate()  # in a container it ends with its parent
    expected = "backup --conf /etc/mariner/gateway.yaml --to /var/lib/mariner-backup --keep 14\n"
    assert log.read_text() == expected


@pytest.mark.skipif(
    not can_be_read_only(), reason="no root file system of its own can be made here"
)
async def test_it_runs_without_rights_on_a_read_only_root(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    script = READ_ONLY.format(user=USER)
    wrapper = ["unshare", "-m", "sh", "-c", script, "sh", str(data)]
    rule = {"subscriptions": [["numbers"]], "schema_id": NUMBERS["$id"]}
    clients = [{**APP, "register_events": [rule]}]
    async with gateway(
        folder, clients=clients, schemas=[NUMBERS], store=data / "events", wrapper=wrapper
    ) as running:
        process = psutil.Process(running.pid)
        assert process.uids().real == process.uids().effective == USER
        async with await RawPeer.init(running.port) as peer:
            # its checker is another process
            answer = await peer.request(register_req(1, event("numbers", value=LARGE)))
            assert answer["success"], answer
            assert checkers(running.pid)
        assert is_root_read_only(running.pid)
    assert (data / "events" / "CURRENT").stat().st_uid == USER
