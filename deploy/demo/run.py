"""``make demo``: a gateway, applications that use it through TLS, and the CLI.

Starts a gateway with development certificates in a folder of its own, runs ``machine.py`` beside it
for a few seconds, queries with the command line what was stored, backs it up, and then pulls the
plug: kills the gateway while ``counter.py`` registers and reads, starts it again, and counts. Each
command is printed before it runs, so that it can be typed again.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

APPLICATION = os.path.relpath(Path(__file__).parent / "machine.py")
COUNTER = os.path.relpath(Path(__file__).parent / "counter.py")
MARINER = [sys.executable, "-m", "mariner"]
TOKEN = "demo"  # noqa: S105  (of a gateway that lives for seconds, on loopback)
STOP_TIMEOUT_S = 20

CONFIGURATION = """\
type: mariner
name: demo
mariner:
    host: 127.0.0.1
    port: {port}
    tls: {{cert: '{folder}/certs/server.pem', key: '{folder}/certs/server.key'}}
event_core:
    server_id: 1
    backend: {{type: rocksdb, path: '{folder}/data'}}
clients:
    - name: development
      token: {token}
      subscriptions: [['*']]
      register_events: [{{subscriptions: [['*']]}}]
"""


def main() -> int:
    """Run the demonstration; 0 if every step succeeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("var/demo"))
    parser.add_argument("--count", type=int, default=5, help="rounds of measurements")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between them")
    parser.add_argument("--events", type=int, default=1_000, help="while the plug is pulled")
    arguments = parser.parse_args()
    folder: Path = arguments.folder

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run([*MARINER, "certs", "development", "--dir", str(folder / "certs")])
    gateway = DemoGateway(folder)
    with gateway.running():
        access = {
            "MARINER_PORT": str(gateway.port),
            "MARINER_TLS_CA": str(folder / "certs" / "ca.pem"),
            "MARINER_NAME": "development",
            "MARINER_TOKEN": TOKEN,
        }
        print(f"# {' '.join(f'{key}={value}' for key, value in access.items())}", flush=True)
        register_and_query(arguments, access)
        inspect(gateway.conf, folder)
        pull_the_plug(gateway, arguments.events, access)
    return 0


def register_and_query(arguments: argparse.Namespace, access: dict[str, str]) -> None:
    """Store measurements of this machine, and ask for them."""
    run([*MARINER, "ping", "--count", "3", "--interval", "0.2"], access)
    run([*MARINER, "register", '{"type": "lamp/1", "payload": "on"}'], access)
    feed = ["--port", access["MARINER_PORT"], "--tls-ca", access["MARINER_TLS_CA"]]
    times = ["--count", str(arguments.count), "--period", str(arguments.period)]
    run([sys.executable, APPLICATION, *feed, *times], access)
    table = ["--format", "table"]
    run([*MARINER, "query", "latest", "--type", "machine/*", *table], access)
    cpu = ["--type", "machine/cpu/0", "--order", "asc"]
    run([*MARINER, "query", "timeseries", *cpu, *table], access)
    run([*MARINER, "query", "timeseries", *cpu, "--limit", "2"], access)


def inspect(conf: Path, folder: Path) -> None:
    """Look at the store, back it up while the gateway runs, and check the copy."""
    run([*MARINER, "store", "info", "--conf", str(conf)])
    run([*MARINER, "backup", "--conf", str(conf), str(folder / "backup")])
    run([*MARINER, "store", "verify", str(folder / "backup")])


def pull_the_plug(gateway: "DemoGateway", count: int, access: dict[str, str]) -> None:
    """Kill the gateway in the middle of registrations and readings, and have them counted."""
    command = [sys.executable, COUNTER, "--count", str(count)]
    show(command, is_beside=True)
    counting = subprocess.Popen(  # noqa: S603
        command, env=os.environ | access, stdout=subprocess.PIPE, text=True
    )
    with counting:
        assert counting.stdout is not None
        for line in counting.stdout:
            print(line, end="", flush=True)
            if line.startswith("counter: seen"):
                break
        gateway.kill()
        gateway.start()
        print(counting.stdout.read(), end="", flush=True)
    if counting.returncode:
        raise SystemExit(counting.returncode)


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    """Print a command, run it, and stop everything if it fails."""
    show(command)
    # the width of the table does not depend on who watches
    environment = os.environ | {"COLUMNS": "100"} | (variables or {})
    subprocess.run(command, env=environment, check=True)  # noqa: S603


def show(command: list[str], *, is_beside: bool = False) -> None:
    """Print a command as it can be typed."""
    shown = command[2:] if command[:3] == MARINER else ["python", *command[1:]]
    print(f"\n$ {shlex.join(shown)}{' &' if is_beside else ''}", flush=True)


class DemoGateway:
    """A gateway with a store in a folder, which is started, killed, and started again.

    It listens on ``port`` from the first start on.
    """

    def __init__(self, folder: Path) -> None:
        self.conf = folder / "gateway.yaml"
        self.port = 0
        self._folder = folder
        self._process: subprocess.Popen[str]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start it; stop it by SIGTERM."""
        self.start()
        try:
            yield
        finally:
            rest, code = self._end(signal.SIGTERM)
            print(f"\n{rest}gateway stopped by SIGTERM, exit code {code}", flush=True)
        if code:
            raise SystemExit(code)

    def start(self) -> None:
        """Start it, where it listened before."""
        text = CONFIGURATION.format(folder=self._folder, token=TOKEN, port=self.port)
        self.conf.write_text(text)
        command = [*MARINER, "serve", "--conf", str(self.conf)]
        show(command, is_beside=True)
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
        assert self._process.stderr is not None
        self.port = _read_port(self._process.stderr)

    def kill(self) -> None:
        """Pull the plug."""
        print(f"\n$ kill -9 {self._process.pid}", flush=True)
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> tuple[str, int]:
        """The rest of its log, and its exit code."""
        with self._process as process:
            assert process.stderr is not None
            process.send_signal(number)
            rest = process.stderr.read()
            return rest, process.wait(STOP_TIMEOUT_S)


def _read_port(lines: Iterator[str]) -> int:
    for line in lines:
        print(line, end="", flush=True)
        if match := re.search(r"listening: mariner \w+://[^ ]*:(\d+)", line):
            return int(match[1])
    raise SystemExit("the gateway did not start")


if __name__ == "__main__":
    sys.exit(main())
