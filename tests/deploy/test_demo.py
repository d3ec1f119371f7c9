"""`make demo`, in small: the README's tour really runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_demo(tmp_path: Path) -> None:
    arguments = ["--folder", tmp_path / "demo", "--count", "2", "--period", "0.05"]
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
        "gateway stopped by SIGTERM, exit code 0",
    ):
        assert expected in done.stdout
