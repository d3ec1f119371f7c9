"""A group in containers: what its files name is there, and one server alone commits nothing."""

import json
import re
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from mariner import limits
from mariner.cli import main
from mariner.gateway import config, config_file
from tests.deploy.test_containers import DEPLOY, GROUP, GROUP_COMPOSE, GROUP_KUBERNETES, USER

SERVICES: Final = GROUP_COMPOSE["services"]
GATEWAYS: Final = ("gateway-1", "gateway-2")
SERVERS: Final = ("postgres-1", "postgres-2", "postgres-3")
PATRONI: Final = yaml.safe_load((GROUP / "postgresql" / "patroni.yaml").read_text())


def found(kind: str, name: str) -> dict[str, Any]:
    """A document of the manifest."""
    [document] = [i for i in GROUP_KUBERNETES if (i["kind"], i["metadata"]["name"]) == (kind, name)]
    return dict(document.get("spec", document))


POD: Final = found("StatefulSet", "gateway")["template"]
JOB: Final = found("Job", "gateway-group-init")["template"]


def group_of(path: Path) -> config.GroupConfig:
    core = config_file.load(path).event_core
    assert core is not None
    assert core.group is not None
    return core.group


def test_the_servers_of_compose_are_those_of_the_configuration() -> None:
    its = group_of(GROUP / "conf" / "gateway.yaml")
    assert its.log.place == f"{','.join(f'{i}' for i in SERVERS)}/mariner"
    assert its.log.user == "mariner"
    assert its.log.files() == {"sslrootcert": Path("/etc/mariner/ca.pem")}
    assert f"/run/secrets/{SERVICES['gateway-1']['secrets'][0]}" == str(its.log.password_file)
    for name, service in SERVICES.items():
        assert service.get("hostname", name) == name  # what others call it, and a member is called
        assert {*service.get("secrets", [])} <= {*GROUP_COMPOSE["secrets"]}
        for volume in service["volumes"]:
            assert volume.startswith("./") or volume.partition(":")[0] in GROUP_COMPOSE["volumes"]
    etcd = [i for i in SERVICES if i.startswith("etcd-")]
    assert PATRONI["etcd3"]["hosts"] == [f"{i}:2379" for i in etcd]
    used = [*SERVERS, *GATEWAYS, *etcd]
    of_each = [i.partition(":")[0] for name in used for i in SERVICES[name]["volumes"]]
    own = [i for i in of_each if not i.startswith("./")]
    assert len(own) == len({*own}) == len(used)


def test_one_server_alone_commits_nothing() -> None:
    shared = PATRONI["bootstrap"]["dcs"]
    assert (shared["synchronous_mode"], shared["synchronous_mode_strict"]) == ("quorum", True)
    assert shared["loop_wait"] + 2 * shared["retry_timeout"] <= shared["ttl"]  # Patroni's rule
    cluster = found("Cluster", "mariner-log")
    assert cluster["instances"] == len(SERVERS)
    assert cluster["postgresql"]["synchronous"] == {
        "method": "any",
        "number": 1,
        "dataDurability": "required",
        "failoverQuorum": True,
    }


def test_strangers_need_a_password_and_tls() -> None:
    rules = [i.split() for i in PATRONI["postgresql"]["pg_hba"]]
    assert {i[0] for i in rules} == {"local", "hostssl"}
    assert {i[-1] for i in rules if i[0] == "hostssl"} == {"scram-sha-256"}
    assert all("ports" not in SERVICES[i] for i in SERVICES if i not in GATEWAYS)


def test_nothing_more_is_allowed_than_is_needed() -> None:
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for pod in (POD, JOB):
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert pod["spec"]["securityContext"]["runAsUser"] == USER
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not any("subPath" in mount for mount in container["volumeMounts"])


def test_the_log_of_kubernetes_is_that_of_its_cluster(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    text = found("ConfigMap", "mariner-gateway")["data"]["gateway.yaml"]
    path.write_text(text)
    its = group_of(path)
    made = found("Cluster", "mariner-log")["bootstrap"]["initdb"]
    # as CloudNativePG calls what it makes
    assert its.log.place == f"mariner-log-rw/{made['database']}"
    assert its.log.user == made["owner"]
    assert str(its.log.password_file) == "/etc/mariner-log/password"
    assert its.log.files() == {"sslrootcert": Path("/etc/mariner-log-ca/ca.crt")}
    claims = {
        i["metadata"]["name"] for i in found("StatefulSet", "gateway")["volumeClaimTemplates"]
    }
    for pod in (POD["spec"], JOB["spec"]):
        volumes = {i["name"]: i for i in pod["volumes"]}
        assert volumes["log"]["secret"]["secretName"] == "mariner-log-app"
        assert volumes["log-ca"]["secret"]["secretName"] == "mariner-log-ca"
        for container in pod["containers"]:
            mounts = {i["mountPath"]: i["name"] for i in container["volumeMounts"]}
            assert {*mounts.values()} <= {*volumes, *claims}
            assert mounts["/etc/mariner-log"] == "log"
            assert mounts["/etc/mariner-log-ca"] == "log-ca"
    mounted = {i["mountPath"] for i in POD["spec"]["containers"][0]["volumeMounts"]}
    assert {str(Path(i).parent) for i in re.findall(r"(?<=[ =])/[\w/.-]+", text)} <= mounted


def test_clients_reach_the_active_member() -> None:
    [gateway, _] = POD["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert ports == {"mariner": 23014, "http": 23080}
    assert gateway["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    for probe in ("startup", "liveness"):  # as a follower lives
        assert gateway[f"{probe}Probe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    members = found("StatefulSet", "gateway")["serviceName"]
    assert found("Service", members)["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in found("Service", "gateway")
    labels = POD["metadata"]["labels"]
    [apart] = POD["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    for selector in (
        found("StatefulSet", "gateway")["selector"]["matchLabels"],
        found("Service", "gateway")["selector"],
        found("Service", members)["selector"],
        found("PodDisruptionBudget", "gateway")["selector"]["matchLabels"],
        found("NetworkPolicy", "gateway")["podSelector"]["matchLabels"],
        apart["labelSelector"]["matchLabels"],
    ):
        assert selector == labels
    # one is never ready: nothing may wait for it
    assert found("StatefulSet", "gateway")["podManagementPolicy"] == "Parallel"
    assert found("StatefulSet", "gateway")["updateStrategy"] == {"type": "OnDelete"}
    budget = found("PodDisruptionBudget", "gateway")
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    program, step_down_s, *_ = gateway["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "timeout"
    least_s = float(step_down_s) + limits.MAX_STOP_S
    assert POD["spec"]["terminationGracePeriodSeconds"] > least_s


def lines() -> list[list[str]]:
    """Commands of the containers, without the program."""
    [gateway, _] = POD["spec"]["containers"]
    called = [SERVICES["gateway-1"]["command"], gateway["args"]]
    called.append(gateway["lifecycle"]["preStop"]["exec"]["command"][3:])
    for script in (SERVICES["group-init"]["command"][0], JOB["spec"]["containers"][0]["args"][0]):
        called += [i.split()[1:] for i in script.split("||")]
    return called


@pytest.mark.parametrize("args", lines(), ids=" ".join)
def test_what_containers_run_exists(args: list[str]) -> None:
    command: click.Command = main
    context = click.Context(command, info_name="mariner")
    while isinstance(command, click.Group):
        name, resolved, args = command.resolve_command(context, args)
        assert resolved is not None, name
        command = resolved
    command.make_parser(context).parse_args(list(args))


def test_what_the_image_of_the_servers_has() -> None:
    dockerfile = (GROUP / "postgresql" / "Dockerfile").read_text()
    start = (GROUP / "postgresql" / "start.sh").read_text()
    assert "\nUSER postgres\n" in dockerfile
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    assert json.loads(entry) == ["/usr/local/bin/start.sh"]
    for secret in re.findall(r"/run/secrets/([\w.]+)", start):
        assert secret in SERVICES["postgres-1"]["secrets"]
    assert PATRONI["bootstrap"]["post_bootstrap"] == "/usr/local/bin/make-database.sh"
    for script in (GROUP / "postgresql").glob("*.sh"):
        assert script.name in dockerfile
    assert ".[backup,group]" in (DEPLOY / "Dockerfile").read_text()
