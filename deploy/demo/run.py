"""``make demo``: a gateway, an application that feeds it through TLS, and the CLI.

Starts a gateway with development certificates in a folder of its own, runs ``machine.py``
beside it for a few seconds, and queries back with the command line what was stored. Each
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
MARINER = [sys.executable, "-m", "mariner"]
TOKEN = "demo"  # noqa: S105  (of a gateway that lives for seconds, on loopback)
STOP_TIMEOUT_S = 20

CONFIGURATION = """\
type: mariner
name: demo
mariner:
    host: 127.0.0.1
    port: 0
    tls: {{cert: '{folder}/certs/server.pem', key: '{folder}/certs/server.key'}}
event_core:
    server_id: 1
    backend: {{type: rocksdb, path: '{folder}/data'}}
clients:
    - name: development
      token: {token}
      subscriptions: [['*']]
      register_events: [{{subscriptions: [[machine, '*']]}}]
"""


def main() -> int:
    """Run the demonstration; 0 if every step succeeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("var/demo"))
    parser.add_argument("--count", type=int, default=5, help="rounds of measurements")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between them")
    arguments = parser.parse_args()
    folder: Path = arguments.folder

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run([*MARINER, "certs", "development", "--dir", str(folder / "certs")])
    conf = folder / "gateway.yaml"
    conf.write_text(CONFIGURATION.format(folder=folder, token=TOKEN))
    with gateway(conf) as port:
        access = {
            "MARINER_PORT": str(port),
            "MARINER_TLS_CA": str(folder / "certs" / "ca.pem"),
            "MARINER_NAME": "development",
            "MARINER_TOKEN": TOKEN,
        }
        print(f"# {' '.join(f'{key}={value}' for key, value in access.items())}", flush=True)
        run([*MARINER, "ping", "--count", "3", "--interval", "0.2"], access)
        application = [sys.executable, APPLICATION]
        feed = ["--port", str(port), "--tls-ca", access["MARINER_TLS_CA"]]
        times = ["--count", str(arguments.count), "--period", str(arguments.period)]
        run([*application, *feed, *times], access)
        table = ["--format", "table"]
        run([*MARINER, "query", "latest", "--type", "machine/*", *table], access)
        cpu = ["--type", "machine/cpu/0", "--order", "asc"]
        run([*MARINER, "query", "timeseries", *cpu, *table], access)
        run([*MARINER, "query", "timeseries", *cpu, "--limit", "2"], access)
    return 0


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    """Print a command, run it, and stop everything if it fails."""
    shown = command[2:] if command[:3] == MARINER else ["python", *command[1:]]
    print(f"\n$ {shlex.join(shown)}", flush=True)
    # the width of the table does not depend on who watches
    environment = os.environ | {"COLUMNS": "100"} | (variables or {})
    subprocess.run(command, env=environment, check=True)  # noqa: S603


@contextlib.contextmanager
def gateway(conf: Path) -> Iterator[int]:
    """A running gateway; gives its port, stops it by SIGTERM."""
    command = [*MARINER, "serve", "--conf", str(conf)]
    print(f"\n$ {shlex.join(command[2:])} &", flush=True)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        try:
            yield _read_port(process.stderr)
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            code = process.wait(STOP_TIMEOUT_S)
            print(f"\n{rest}gateway stopped by SIGTERM, exit code {code}", flush=True)
    if code:
        raise SystemExit(code)


def _read_port(lines: Iterator[str]) -> int:
    for line in lines:
        print(line, end="", flush=True)
        if match := re.search(r"listening: mariner \w+://[^ ]*:(\d+)", line):
            return int(match[1])
    raise SystemExit("the gateway did not start")


if __name__ == "__main__":
    sys.exit(main())
