"""A small ``systemctl`` for tests: runs what units run, with every absolute path below a folder.

``python -m tests.support.systemctl ROOT start NAME…``; units are in ``ROOT/etc/systemd/system``.
"""

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ABSOLUTE: Final = re.compile(r"(?<![\w/.~*?…])/(?=\w)")
"""Where an absolute path begins; not in ``~/ca``, ``http://host/path`` and ``deploy/pair``."""

_DIRECTORIES: Final = {
    "StateDirectory": "var/lib",
    "CacheDirectory": "var/cache",
    "LogsDirectory": "var/log",
    "RuntimeDirectory": "run",
}

_START_TIMEOUT_S: Final = 90.0
_STOP_TIMEOUT_S: Final = 60.0


def inside(text: str, root: Path) -> str:
    """The text, with each absolute path below ``root``."""
    return _ABSOLUTE.sub(f"{root}/", text)


class Unit:
    """A service unit."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name
        path = root / "etc/systemd/system" / f"{name}.service"
        text = inside(path.read_text(), root)
        self._entries = re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
        self._pid_path = root / "run" / f"{name}.pid"
        self._environment = {
            **os.environ,
            **dict(i.split("=", 1) for i in self._all("Environment")),
        }

    def start(self) -> None:
        for key, parent in _DIRECTORIES.items():
            for names in self._all(key):
                for name in names.split():
                    (self._root / parent / name).mkdir(0o700, parents=True, exist_ok=True)
        if "notify" in self._all("Type"):
            self._run("ExecStartPre")
            self._start_notifying()
            return
        try:
            self._run("ExecStartPre", "ExecStart")
        finally:
            self._run("ExecStopPost")

    def reload(self) -> None:
        self._run("ExecReload")

    def stop(self) -> None:
        """End the process by its id, and wait until it has ended."""
        if not self._pid_path.exists():
            return
        pid = int(self._pid_path.read_text())
        self._pid_path.unlink()
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], _STOP_TIMEOUT_S)[0]:
            signal.pidfd_send_signal(watched, signal.SIGKILL)
            raise SystemExit(f"{self._name} did not stop")

    def _all(self, key: str) -> Iterator[str]:
        return (value for name, value in self._entries if name == key)

    def _commands(self, key: str) -> Iterator[list[str]]:
        for line in self._all(key):
            expanded = re.sub(r"\$\{(\w+)\}", lambda found: self._environment[found[1]], line)
            command = shlex.split(expanded)
            assert command[0].startswith(f"{self._root}/"), command
            yield command

    def _run(self, *keys: str) -> None:
        for key in keys:
            for command in self._commands(key):
                subprocess.run(command, env=self._environment, check=True)

    def _start_notifying(self) -> None:
        [command] = self._commands("ExecStart")
        ready_path = self._root / "run" / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready_path.unlink(missing_ok=True)
            # a path of a socket is short: this folder may have a long one
            os.chdir(ready_path.parent)
            ready.bind(ready_path.name)
            ready.settimeout(_START_TIMEOUT_S)
            with (self._root / "var/log/journal").open("ab") as journal:
                process = subprocess.Popen(
                    command,
                    env={**self._environment, "NOTIFY_SOCKET": f"/proc/{os.getpid()}/cwd/notify"},
                    stdin=subprocess.DEVNULL,
                    stdout=journal,
                    stderr=journal,
                )
            self._pid_path.write_text(str(process.pid))
            while b"READY=1" not in ready.recv(4096):
                pass


def main(root: Path, verb: str, *arguments: str) -> None:
    if verb == "daemon-reload":
        return
    names = [name for name in arguments if not name.startswith("--")]
    assert names
    for name in names:
        if name.endswith(".timer"):
            assert (verb, "--now" in arguments) == ("enable", True)
            assert (root / "etc/systemd/system" / name).exists()
            Unit(root, name.removesuffix(".timer"))
            continue
        unit = Unit(root, name.removesuffix(".service"))
        if verb in ("stop", "restart"):
            unit.stop()
        if verb in ("start", "restart") or (verb == "enable" and "--now" in arguments):
            unit.start()
        if verb == "reload":
            unit.reload()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
