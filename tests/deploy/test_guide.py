"""The operator's guide: its commands run, its links lead somewhere, each alert has a section."""

import os
import pkgutil
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from eventer_bridge import limits
from mariner.cli import main
from mariner_console import config as console_config
from tests.deploy.test_prometheus import RULES
from tests.support.systemctl import Unit, inside

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = (ROOT / "docs" / "operators-guide.md").read_text()
ALERTS: Final = (ROOT / "docs" / "alerts.md").read_text()
PAGES: Final = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "deploy/README.md",
]

USED: Final = [
    "cat",
    "chmod",
    "cp",
    "curl",
    "env",
    "grep",
    "head",
    "install",
    "ln",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "tail",
]
"""Programs that the commands of the guide, and units, may use; there are no others."""

NOT_RUN: Final = ["chgrp", "chown", "docker", "kubectl", "useradd"]
"""Programs that do nothing here: they need root, a daemon or a cluster."""

ADDED: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
    "mariner.commands"
]
"""Commands that other packages add, by name."""

FREE_PORTS: Final = range(20_000, 32_000)
"""Below those that the system picks for port 0, so that no other test gets them."""


def free_port() -> int:
    for port in random.sample(FREE_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there is no free port")


def merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    """Put mappings of a configuration into each other; anything else is replaced."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


class Machine:
    """A machine of its own, as far as commands can see: a folder, and programs that stay in it.

    Blocks of the guide are run in their order. Each absolute path is one below the folder, and only
    the programs named above are found.
    """

    def __init__(self, path: Path) -> None:
        self.root = path
        self._ports = {"23014": str(free_port()), "23080": str(free_port())}
        for name in (
            "bin",
            "etc/systemd/system",
            "opt",
            "root",
            "run",
            "usr/local/bin",
            "var/lib",
            "var/log",
        ):
            (path / name).mkdir(parents=True)
        shutil.copytree(ROOT / "deploy", path / "src" / "deploy")
        for name in USED:
            found = shutil.which(name)
            assert found is not None, f"{name} is not here"
            (path / "bin" / name).symlink_to(found)
        for name in NOT_RUN:
            self._script(f"bin/{name}", "exit 0")
        self._script("bin/sudo", '[ "$1 $2" = "-u mariner" ] && shift 2 && exec "$@"')
        python = f"PYTHONPATH='{os.pathsep.join(sys.path)}' exec '{sys.executable}'"
        self._script("bin/systemctl", f'{python} -m tests.support.systemctl {path} "$@"')
        # a virtual environment whose pip has nothing to do
        self._script("opt/program", f'{python} -m mariner "$@"')
        made = f'mkdir -p "$3/bin" && cp {path}/opt/program "$3/bin/mariner"'
        link = f'ln -s {path}/bin/chown "$3/bin/pip"'
        self._script("bin/python3", f'[ "$1 $2" = "-m venv" ] && {made} && {link}')

    def _script(self, name: str, text: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(stat.S_IRWXU)

    def translate(self, text: str) -> str:
        """A block of the guide for this machine."""
        for old, new in {
            **self._ports,
            "0.0.0.0": "127.0.0.1",  # noqa: S104  # what the guide has
            "gateway.example": "127.0.0.1",
            "2026-12-31": "2999-12-31",
        }.items():
            text = text.replace(old, new)
        return inside(text, self.root)

    def run(self, block: str) -> str:
        """Run commands; returns what they print.

        Raises:
            AssertionError: one of them failed.
        """
        state = self.root / "state"
        before = f". {state}" if state.exists() else ":"
        after = f"export -p | grep -v '^declare -[a-z]*r' >{state}"
        done = subprocess.run(
            [
                *("/bin/bash", "--noprofile", "--norc", "-aeu", "-o", "pipefail", "-c"),
                f"{before}\n{self.translate(block)}\n{after}",
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.root / "src",
            env={
                "PATH": f"{self.root}/bin:{self.root}/usr/local/bin",
                "HOME": f"{self.root}/root",
                "LANG": "C.UTF-8",
                "MARINER_PORT": self._ports["23014"],  # nobody else's gateway
            },
            timeout=120,
        )
        journal = self.root / "var/log/journal"
        log = journal.read_text()[-2_000:] if journal.exists() else ""
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}\n{log}"
        return done.stdout

    def configure(self, block: str) -> None:
        """Put a part of a configuration into that of the gateway."""
        for name in ("APP", "NEW", "CONSOLE"):
            path = self.root / "root" / f"{name.lower()}.txt"
            if path.exists():
                hash_ = path.read_text().splitlines()[1].removeprefix("token: ")
                block = block.replace(f"sha256:{name}", hash_)
        assert not re.search("sha256:[A-Z]", block)
        path = self.root / "etc/mariner/gateway.yaml"
        whole = yaml.safe_load(path.read_text())
        merge(whole, yaml.safe_load(self.translate(block)))
        path.write_text(yaml.safe_dump(whole))

    def is_shown(self, expected: str, printed: str) -> bool:
        """Whether this was printed; ``…`` stands for anything within a line."""
        pattern = re.escape(self.translate(expected)).replace("…", ".*")
        return re.search(f"^{pattern}", printed, re.MULTILINE) is not None


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    yield made
    if (made.root / "etc/systemd/system/mariner.service").exists():
        Unit(made.root, "mariner").stop()


@pytest.mark.timeout(240)
def test_the_commands_run(machine: Machine) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert {language for language, _ in blocks} == {"sh", "text", "yaml"}
    printed = ""
    for language, block in blocks:
        if language == "sh":
            printed = machine.run(block)
        elif language == "yaml":
            machine.configure(block)
        else:
            assert machine.is_shown(block, printed), f"{block}\n{printed}"
    assert console_config.load(machine.root / "etc/mariner/console.yaml").gateways
    kept = machine.root / "var/lib/mariner-backup"
    assert len([i for i in kept.iterdir() if i.is_dir()]) == 2
    audited = (machine.root / "var/log/mariner/audit.jsonl").read_text()
    for action in ("connected", "reload", "backup"):
        assert f'"action": "{action}"' in audited


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


def test_bounds_are_those_of_the_code() -> None:
    promise = (
        f"kept in memory: {limits.MAX_EVENT_TYPES:,} in total. A client may add"
        f" `quota.max_event_types` new ones ({limits.MAX_CLIENT_EVENT_TYPES:,} by default)"
    )
    assert promise in " ".join(GUIDE.split())
