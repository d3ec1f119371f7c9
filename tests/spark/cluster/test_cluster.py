"""On a cluster: our two wheels by ``--py-files``, a gateway over the network with TLS."""

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.cluster import cluster
from tests.spark.lake.support import append
from tests.spark.source.test_network import served
from tests.spark.support import plain_events
from tests.support.wheel import ROOT, build_wheels

PROGRAM = Path(__file__).parent / "program.py"
JOB = ROOT / "deploy" / "spark" / "mariner_job.py"


def make_package(folder: Path) -> Path:
    """Both distributions in one file, made as ``deploy/spark/README.md`` says."""
    installed, package = folder / "installed", folder / "mariner.zip"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    wheels = build_wheels(folder / "wheels")
    subprocess.run([*pip, "--target", installed, *wheels], check=True)
    subprocess.run([sys.executable, "-m", "zipfile", "-c", package, f"{installed}/."], check=True)
    return package


@pytest.mark.slow
async def test_executors_read_a_gateway(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    append(tmp_path / "lake", plain_events(10))
    async with served(tmp_path / "gateway", plain_events(1_000)) as options:
        access = (f"--{i.replace('_', '-')}={options[i]}" for i in ("tls_ca", "cert", "key"))
        gateway = ("--gateway", f"{options['host']}:{options['port']}", "--name", "app")
        output = cluster.submit(
            tmp_path,
            *("--py-files", package, PROGRAM, JOB, "report", "top"),
            *(*gateway, "--token", options["token"], *access, "--type", "site/*"),
        )
    line, page = output.splitlines()
    seen = json.loads(line)
    assert seen["driver"].startswith(f"{package}/")
    [executor] = seen["executors"]
    assert "mariner.zip/mariner_spark" in executor
    assert seen["master"] == cluster.MASTER
    assert seen["lacks"].startswith("/proc/self/cwd/lake: is not on machine ")
    assert page == "report/report.html"
    with (tmp_path / "report" / "top.csv").open() as table:
        events = Counter({row["type_path"]: int(row["events"]) for row in csv.DictReader(table)})
    assert events == {f"site/{i // 5}/d{i}": 100 for i in range(10)}
