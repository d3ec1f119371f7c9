"""Alerts and the dashboard: with promtool, and with a Prometheus that scrapes a real gateway."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from mariner_certs import authority, files
from tests.eventer_bridge.rsb.peers import RawPeer as RsbPeer
from tests.eventer_bridge.rsb.samples import sample
from tests.support.certificates import make_certificates
from tests.support.gateway import Gateway, gateway
from tests.support.inprocess import APP, metrics_text_of
from tests.support.member_gateway import make_group, member_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.postgresql import Cluster
from tests.support.prometheus import Prometheus, needs_prometheus, needs_promtool, prometheus
from tests.support.waiting import until

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
ALERTS: Final = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
RULES: Final = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: Final = json.loads((DEPLOY / "dashboard.json").read_text())

OF_PROMETHEUS: Final = {"up", "ALERTS"}
"""Metrics that it makes itself."""

LABELS_OF_PROMETHEUS: Final = {"job", "instance", "alertname", "alertstate"}
LABELS_OF_CONFIGURATION: Final = {"pair"}
"""Labels that ``prometheus.yml`` gives, or may give."""

METERED: Final[dict[str, Any]] = {
    **APP,
    "name": "metered",
    "token": "metered",
    "quota": {"events_per_s": 5},
}
LOGIN_OF_METERED: Final = {"client_name": METERED["name"], "client_token": METERED["token"]}

QUERY: Final = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "latest",
    "event_types": [["*"]],
}


def promtool(*arguments: object, given: str | None = None) -> str:
    """Run it; returns what it printed, and fails if it found something."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=DEPLOY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def expressions(value: Any) -> Iterator[str]:
    """All of them in a dashboard, as Prometheus gets them from it."""
    if isinstance(value, dict):
        if "expr" in value:
            text: str = value["expr"]
            for name, replaced in (("instance", ".*"), ("job", "mariner")):
                text = text.replace(f"${name}", replaced)
            yield text.replace("$__rate_interval", "1m")
        value = [*value.values()]
    if isinstance(value, list):
        for i in value:
            yield from expressions(i)


def names_of(expression: str) -> tuple[set[str], set[str]]:
    """Names of metrics and labels in an expression."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare))
    for names in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([\w, ]*)\)", bare):
        labels |= {i.strip() for i in names.split(",") if i.strip()}
    metrics = set(re.findall(r"\b(?:mariner|process)_\w+|\bup\b|\bALERTS\b", bare))
    return metrics, labels


@contextlib.asynccontextmanager
async def busy_gateway(path: Path) -> AsyncIterator[Gateway]:
    """A gateway with all that has metrics, each used once; its certificate is good for two days."""
    certificates = make_certificates(path)
    pair = authority.make_server(files.load_ca(path), ("127.0.0.1",), 2)
    files.save(path, "server", pair, force=True)
    key = str(certificates.server_key)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens there
        remote = {"server_id": 2, "host": "127.0.0.1", "port": unused.getsockname()[1]}
        core = {
            "eventer_server": {
                "host": "127.0.0.1",
                "port": 0,
                "tls": {"cert": str(certificates.server_cert), "key": key},
            },
            "replication": [remote],
            "rsb": {"host": "127.0.0.1", "port": 0, "mode": "server", "scopes_in": ["/"]},
        }
        async with gateway(path, clients=[APP, METERED], core=core, http=True) as running:
            assert running.rsb_port is not None
            async with (
                await RawPeer.init(running.port, subscriptions=[["*"]]) as peer,
                await RawPeer.init(running.port, **LOGIN_OF_METERED) as metered,
                await RsbPeer.connect(running.rsb_port) as robot,
            ):
                n_requests = METERED["quota"]["events_per_s"] + 1
                for i in range(n_requests):  # at once, or else it is not held back
                    metered.send(register_req(i, event("a")))
                for _ in range(n_requests):
                    await metered.receive()
                robot.send(sample(1))
                while "arm" not in str(await peer.receive()):
                    pass
                peer.send(QUERY)
                while (await peer.receive())["msg_type"] != "query_res":
                    pass
                yield running


@contextlib.asynccontextmanager
async def member_port(path: Path, postgresql: Cluster) -> AsyncIterator[int]:
    """Where a member of a group has its metrics, once it knows of itself."""
    dsn, http = postgresql.dsn(), {"host": "127.0.0.1", "port": 0}
    await make_group(dsn, path.name)
    async with member_gateway(path, dsn, "a", path.name, http=http) as gateway:
        assert gateway.member is not None
        await until(lambda: gateway.member.members)  # type: ignore[union-attr]
        assert gateway.http is not None
        yield gateway.http.port


async def all_metrics(path: Path, postgresql: Cluster) -> list[str]:
    async with busy_gateway(path) as running, member_port(path, postgresql) as port:
        return [await metrics_text_of(i) for i in (running.http_port, port)]


@needs_promtool
def test_rules_and_configuration_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_every_alert_fires() -> None:
    files = [path.name for path in DEPLOY.glob("*.test.yml")]
    assert promtool("test", "rules", *files).count("SUCCESS") == 2
    tests = [i for name in files for i in yaml.safe_load((DEPLOY / name).read_text())["tests"]]
    expected = {
        re.findall(r'alertname="(\w+)"', expected["labels"])[0]
        for test in tests
        for expression in test["promql_expr_test"]
        for expected in expression["exp_samples"]
    }
    assert expected == {rule["alert"] for rule in RULES}


def test_every_alert_says_what_to_do() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"runbook", "summary", "action"}


@needs_promtool
async def test_names_are_as_prometheus_wants_them(tmp_path: Path, postgresql: Cluster) -> None:
    for told in await all_metrics(tmp_path, postgresql):
        assert not promtool("check", "metrics", given=told)


async def test_alerts_and_dashboard_ask_for_what_there_is(
    tmp_path: Path, postgresql: Cluster
) -> None:
    told = "".join(await all_metrics(tmp_path, postgresql))
    series = re.findall(r"^(\w+)(?:\{(.*)\})? ", told, re.MULTILINE)
    metrics = {name for name, _ in series} | OF_PROMETHEUS
    labels = {label for _, text in series for label in re.findall(r'(\w+)="', text)}
    of_alerts = [rule["expr"] for rule in RULES]
    of_dashboard = [*expressions(DASHBOARD)]
    assert len(of_dashboard) > 50
    known = labels | LABELS_OF_PROMETHEUS
    for text in [*of_alerts, *of_dashboard]:
        asked_metrics, asked_labels = names_of(text)
        assert asked_metrics, text
        assert asked_metrics <= metrics, text
        assert asked_labels <= known | LABELS_OF_CONFIGURATION, text
    # legends
    texts = re.findall(r"\{\{(\w+)\}\}", json.dumps(DASHBOARD))
    assert set(texts) <= known
    annotations = re.findall(r"\$labels\.(\w+)", json.dumps(ALERTS))
    assert set(annotations) <= known
    # and nothing is measured that nobody looks at
    looked_at = {name for text in [*of_alerts, *of_dashboard] for name in names_of(text)[0]}
    unseen = {re.sub("_(bucket|sum|count)$", "", i) for i in metrics - looked_at}
    unseen -= {re.sub("_(bucket|sum|count)$", "", i) for i in looked_at}
    assert unseen == {"process_virtual_memory_bytes"}


async def until_everything_is_there(asked: Prometheus) -> None:
    """Wait until each expression of the dashboard has a series."""
    for text in expressions(DASHBOARD):
        # restarts and alerts are rare
        while not await asked.query(text) and "changes(" not in text:
            await asyncio.sleep(0.1)


@needs_prometheus
@pytest.mark.timeout(900)
async def test_a_real_prometheus(tmp_path: Path, postgresql: Cluster) -> None:
    async with (
        busy_gateway(tmp_path) as running,
        member_port(tmp_path, postgresql) as port,
        prometheus(
            tmp_path, ALERTS, *(f"127.0.0.1:{i}" for i in (running.http_port, port))
        ) as asked,
    ):
        await until_everything_is_there(asked)
        found = await asked.until_firing(
            "MarinerCertificateExpires",
            "MarinerCertificateExpiresSoon",
            "MarinerRemoteDisconnected",
        )
        # on a busy machine others may fire, too: syncs are slow, or a scrape takes too long
        assert "MarinerReloadFailed" not in found
        [certificate] = found["MarinerCertificateExpires"]
        summary = certificate["annotations"]["summary"]
        instance = f"127.0.0.1:{running.http_port}"
        expected = f"{instance}: event_core.eventer_server.tls.cert expires in 1d 23h"
        assert summary.startswith(expected)

        conf = tmp_path / "gateway.json"
        conf.write_text(conf.read_text().replace('"port"', '"porz"'))
        running.process.send_signal(signal.SIGHUP)
        await asked.until_firing("MarinerReloadFailed")

        while "MarinerDown" in await asked.alerts():
            await asyncio.sleep(0.1)
        running.process.kill()
        [down] = (await asked.until_firing("MarinerDown"))["MarinerDown"]
        assert down["labels"]["severity"] == "critical"
        assert down["annotations"]["summary"] == f"{instance}: the gateway does not answer"
