"""A machine of its own for the commands of documents, as far as they can see."""

import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.systemctl import inside

ROOT: Final = Path(__file__).parents[2]

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

    Attributes:
        root: the folder.
        ports: free ports in place of those of the documents.
        names: other words of the documents, and what is in their place.
    """

    def __init__(self, path: Path) -> None:
        self.root = path
        self.ports = {"23014": str(free_port()), "23080": str(free_port())}
        self.names: dict[str, str] = {}
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
            self.script(f"bin/{name}", "exit 0")
        self.script("bin/sudo", '[ "$1 $2" = "-u mariner" ] && shift 2 && exec "$@"')
        python = f"PYTHONPATH='{os.pathsep.join(sys.path)}' exec '{sys.executable}'"
        self.script("bin/systemctl", f'{python} -m tests.support.systemctl {path} "$@"')
        # a virtual environment whose pip has nothing to do
        self.script("opt/program", f'{python} -m mariner "$@"')
        made = f'mkdir -p "$3/bin" && cp {path}/opt/program "$3/bin/mariner"'
        link = f'ln -s {path}/bin/chown "$3/bin/pip"'
        self.script("bin/python3", f'[ "$1 $2" = "-m venv" ] && {made} && {link}')

    def script(self, name: str, text: str) -> None:
        """Make a program of the shell."""
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(stat.S_IRWXU)

    def translate(self, text: str) -> str:
        """A block of the guide for this machine."""
        for old, new in {
            **self.ports,
            **self.names,
            "0.0.0.0": "127.0.0.1",  # noqa: S104  # what the guide has
            "gateway.example": "127.0.0.1",
            "2026-12-31": "2999-12-31",
        }.items():
            text = text.replace(old, new)
        return inside(text, self.root)

    def clone(self, path: Path) -> "Machine":
        """Another machine, with the program and the configuration of this one; they share /srv."""
        made = Machine(path)
        made.names = self.names
        (self.root / "srv").mkdir(exist_ok=True)
        (path / "srv").symlink_to(self.root / "srv")
        made.run(
            "python3 -m venv /opt/mariner && ln -s /opt/mariner/bin/mariner /usr/local/bin/mariner"
        )
        shutil.copytree(self.root / "etc/mariner", path / "etc/mariner")
        configuration = path / "etc/mariner/gateway.yaml"
        text = configuration.read_text().replace(str(self.root), str(path))
        for port, own in self.ports.items():
            text = text.replace(own, made.ports[port])
        configuration.write_text(text)
        return made

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
                "MARINER_PORT": self.ports["23014"],  # nobody else's gateway
            },
            timeout=300,
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
