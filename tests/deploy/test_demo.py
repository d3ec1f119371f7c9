"""`make demo`, in small."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_demo(tmp_path: Path) -> None:
    few = ["--count", "2", "--period", "0.05", "--events", "600"]
    arguments = ["--folder", tmp_path / "demo", *few]
    done = subprocess.run(
        [sys.executable, "deploy/demo/run.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "development certificates: made ca, server, client",
        "3 transmitted, 3 received, 0% loss",
        "machine: registered ",
        "machine/cpu/0",
        "machine/memory/used",
        '"type":["machine","cpu","0"]',
        ": ok\n",
        "counter: registers 600 events: kill the gateway, and start it again\ncounter: seen 150\n",
        "counter: registered 600, stored 600 (0 twice), seen 600 (0 twice): ok",
        "gateway stopped by SIGTERM, exit code 0",
    ):
        assert expected in done.stdout
    assert "counter: connection lost" in done.stderr
    before, _, after = done.stdout.partition("\n$ kill -9 ")
    assert "counter: seen 600" not in before
    assert "listening: mariner" in after
