"""The operator's guide: its commands run, its links lead somewhere, each alert has a section."""

import inspect
import math
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
import yaml
from hat.drivers import chatter

from eventer_bridge import limits
from eventer_bridge.net import limits as net_limits
from eventer_bridge.remote import limits as remote_limits
from mariner.cli import main
from mariner_console import config as console_config
from tests.deploy.test_prometheus import RULES
from tests.support.machine import Machine
from tests.support.postgresql import Cluster
from tests.support.systemctl import Unit

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = (ROOT / "docs" / "operators-guide.md").read_text()
DEPLOY: Final = (ROOT / "deploy" / "README.md").read_text()
ALERTS: Final = (ROOT / "docs" / "alerts.md").read_text()
PAGES: Final = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "deploy/README.md",
]


def section(title: str) -> str:
    """A section of the guide, with those below it."""
    [found] = re.findall(rf"^### {title}\n.*?(?=^#{{2,3}} )", GUIDE, re.MULTILINE | re.DOTALL)
    return str(found)


A_GROUP: Final = section("A group")

ADDED: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
    "mariner.commands"
]
"""Commands that other packages add, by name."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield Machine(tmp_path / "machine")
    for root in tmp_path.iterdir():
        if (root / "etc/systemd/system/mariner.service").exists():
            Unit(root, "mariner").stop()


def connect(machine: Machine, servers: Cluster) -> None:
    """Have a machine find PostgreSQL where the guide has its own, which has no TLS here."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in servers.nodes)
    machine.names = {
        "db-1.example,db-2.example,db-3.example": hosts,
        "?sslmode=verify-full&sslrootcert=/etc/mariner/ca.pem": "",
    }
    psql = f"{servers.folder_of_programs}/psql -X -v ON_ERROR_STOP=1"
    machine.script(
        "bin/psql",
        f'[ "$1 $2" = "-h db-1.example" ] && shift 2 &&'
        f' exec {psql} -h 127.0.0.1 -p {servers.primary.port} "$@"',
    )


def run(machine: Machine, text: str) -> None:
    """The commands of a text, and what they are said to print; some are of a second machine."""
    printed = ""
    second: Machine | None = None
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if block.startswith("# on gateway-2\n"):
            second = second or machine.clone(machine.root.with_name("second"))
            printed = second.run(block)
        elif language == "sh":
            printed = machine.run(block)
        elif language == "yaml":
            machine.configure(block)
        else:
            assert language == "text"
            assert machine.is_shown(block, printed), f"{block}\n{printed}"


@pytest.mark.timeout(900)
def test_the_commands_run(machine: Machine) -> None:
    run(machine, GUIDE.replace(A_GROUP, ""))
    assert console_config.load(machine.root / "etc/mariner/console.yaml").gateways
    kept = machine.root / "var/lib/mariner-backup"
    assert len([i for i in kept.iterdir() if i.is_dir()]) == 2
    Unit(machine.root, "mariner").stop()  # then everything is written
    audited = (machine.root / "var/log/mariner/audit.jsonl").read_text()
    for action in ("connected", "reload", "backup"):
        assert f'"action": "{action}"' in audited


@pytest.mark.timeout(900)
def test_the_commands_of_a_group_run(machine: Machine, postgresql: Cluster) -> None:
    connect(machine, postgresql)
    run(machine, section("With systemd") + A_GROUP)


def test_nothing_leaves_the_machine_of_the_test(machine: Machine) -> None:
    root = machine.root
    for text, expected in {
        "cp a/b /etc/c": f"cp a/b {root}/etc/c",
        ">/d <~/e": f">{root}/d <~/e",
        "f=/g:/h": f"f={root}/g:{root}/h",
        "'/i' \"/j\" {/k,/l}": f"'{root}/i' \"{root}/j\" {{{root}/k,{root}/l}}",
        "http://x/y": "http://x/y",
    }.items():
        assert machine.translate(text) == expected
    assert machine.run("cd ~; echo $PWD") == f"{machine.root}/root\n"
    with pytest.raises(AssertionError, match="apt-get: command not found"):
        machine.run("apt-get --version")
    assert machine.is_shown("OPERATIONAL\n", "OPERATIONAL\n")
    assert not machine.is_shown("OPERATIONAL\n", "STANDBY\n")
    with pytest.raises(AssertionError):
        machine.run("false\ntrue")


def commands(text: str) -> Iterator[list[str]]:
    """Commands of ``mariner`` in a text, and in its blocks."""
    for found in re.findall(
        r"`(mariner [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    ):
        words = found.split()
        last = next((i for i, word in enumerate(words) if "|" in word), None)
        for choice in [""] if last is None else words[last].split("|"):
            yield [*words[1:last], choice] if last is not None else words[1:]


@pytest.mark.parametrize("text", [GUIDE, ALERTS], ids=["guide", "alerts"])
def test_commands_in_the_text_exist(text: str) -> None:
    found = [*commands(text)]
    assert found
    for words in found:
        command: click.Command = main
        args = words
        if args[0] in ADDED:
            command, args = pkgutil.resolve_name(ADDED[args[0]]), args[1:]
        while isinstance(command, click.Group) and args:
            context = click.Context(command, info_name="mariner")
            name, resolved, args = command.resolve_command(context, args)
            assert resolved is not None, name
            command = resolved
        context = click.Context(command)
        options = {option for param in command.get_params(context) for option in param.opts}
        assert {arg for arg in args if arg.startswith("--")} <= options, words


def anchors(text: str) -> set[str]:
    bare = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    sections = re.findall(r"^### (\w+)\n\n\*\*(\w+)\.\*\* ", ALERTS, re.MULTILINE)
    assert [name for name, _ in sections] == re.findall(r"^### (.*)$", ALERTS, re.MULTILINE)
    assert sections == [(rule["alert"], rule["labels"]["severity"].capitalize()) for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"


def noticed_s() -> float:
    """How long a Monitor Server takes at most to notice that a member is silent."""
    parameters = inspect.signature(chatter.connect).parameters
    return float(parameters["ping_delay"].default + parameters["ping_timeout"].default)


def silent_host_s() -> float:
    """How long a standby takes at most to be active when the host of the other one falls silent.

    Its Monitor Server follows the other one's: it has to miss a ping, and to try to connect again.
    """
    monitor = yaml.safe_load((ROOT / "deploy/pair/monitor-2.yaml").read_text())["slave"]
    retries, delay_s = monitor["connect_retry_count"], monitor["connect_retry_delay"]
    connecting_s = (retries + 1) * monitor["connect_timeout"] + retries * delay_s
    return noticed_s() + float(connecting_s + remote_limits.TAKE_OVER_CATCH_UP_S)


def test_bounds_of_silence_are_those_of_the_code() -> None:
    words = " ".join(GUIDE.split())
    bound_s = math.ceil(silent_host_s() / 10) * 10
    stopped_s = noticed_s() + remote_limits.MEMBER_ANSWER_S
    promise = f"{stopped_s:.0f} s if it stands still, {bound_s} s if its whole host falls silent"
    assert promise in words
    ping_s = net_limits.PING_DELAY_S + net_limits.PING_TIMEOUT_S
    assert (
        f"when a request is not answered for {limits.RESPONSE_TIMEOUT_S:.0f} s, or, without"
        f" requests, when a ping is not answered, up to {ping_s:.0f} s later."
    ) in words
    assert remote_limits.READY_CATCH_UP_S == 60
    assert "One that is back first catches up with the active one, for a minute at most;" in words
    for text in (GUIDE, DEPLOY):
        unit = (ROOT / "deploy/mariner.service").read_text()
        [watchdog_s] = re.findall(r"^WatchdogSec=(\d+)s$", unit, re.MULTILINE)
        assert f"its event loop hangs for {watchdog_s} s" in " ".join(text.split())


def test_bounds_are_those_of_the_code() -> None:
    promise = (
        f"kept in memory: {limits.MAX_EVENT_TYPES:,} in total. A client may add"
        f" `quota.max_event_types` new ones ({limits.MAX_CLIENT_EVENT_TYPES:,} by default)"
    )
    assert promise in " ".join(GUIDE.split())
