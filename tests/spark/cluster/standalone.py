"""A standalone cluster of Spark on this machine: a master and a worker, each a process.

They come from the package pyspark. What is submitted runs as on any cluster: the driver and the
executors are processes of their own, which see what ``--py-files`` gives them, and not the
checkout.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyspark

from mariner_spark import java
from mariner_spark.session import SHORT_WORK_OPTIONS

START_TIMEOUT_S: Final = 120.0
"""Until a master or worker is there. It takes about 3 s; on a loaded machine more."""

SUBMIT_TIMEOUT_S: Final = 300.0
"""Until an application ends. The one of the tests takes about 20 s."""

_CONFIGURATION: Final = {
    "spark.driver.extraJavaOptions": SHORT_WORK_OPTIONS,
    "spark.executor.extraJavaOptions": SHORT_WORK_OPTIONS,
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}

_HOST: Final = "127.0.0.1"
_BIN: Final = Path(pyspark.__file__).parent / "bin"


class Standalone:
    """A running cluster.

    Args:
        url: of its master.
        folder: where logs are.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder

    def submit(self, *args: str | Path) -> str:
        """Run an application and wait for its end.

        Args:
            args: arguments of ``spark-submit``, after those that name the cluster.

        Returns:
            Its standard output.

        Raises:
            AssertionError: it failed; the message is what it said.
        """
        configuration = [f"--conf={name}={value}" for name, value in _CONFIGURATION.items()]
        spark_submit = [str(_BIN / "spark-submit"), "--master", self._url, *configuration]
        command = [*spark_submit, *map(str, args)]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=SUBMIT_TIMEOUT_S,
            check=False,
        )
        told = [i for i in done.stderr.splitlines() if " INFO " not in i]
        assert done.returncode == 0, "\n".join([*told, done.stdout])
        return done.stdout


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """Run a master and a worker with two cores; both are gone on the way out."""
    master = ["master.Master", "--host", _HOST, "--port", "0", "--webui-port", "0"]
    worker = ["worker.Worker", "--host", _HOST, "--webui-port", "0", "--cores", "2"]
    worker += ["--memory", "1g", "--work-dir", str(folder / "work")]
    with (
        _started(master, folder / "master.log", r"Starting Spark master at (spark://\S+)") as url,
        _started([*worker, url], folder / "worker.log", r"Successfully registered with (\S+)"),
    ):
        yield Standalone(url, folder)


@contextlib.contextmanager
def _started(command: Sequence[str], log: Path, announcement: str) -> Iterator[str]:
    """Run a part of the cluster; gives what it says when it is ready."""
    name, *args = command
    full = [str(_BIN / "spark-class"), f"org.apache.spark.deploy.{name}", *args]
    with log.open("wb") as sink:
        process = subprocess.Popen(full, env=_environment(), stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (match := re.search(announcement, log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield match[1]
    finally:
        process.terminate()
        process.wait(30)


def _environment() -> dict[str, str]:
    """As of someone who has pyspark installed, and no checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {
        "JAVA_HOME": str(java.make_home(java.find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(java.make_spark_home()),
        "SPARK_DAEMON_JAVA_OPTS": SHORT_WORK_OPTIONS,
        "SPARK_LAUNCHER_OPTS": SHORT_WORK_OPTIONS,
        "SPARK_LOCAL_IP": _HOST,
    }
