"""A small cluster of Spark on this machine, out of the package pyspark.

Spark's ``local-cluster``: the driver is the master and its worker as well, and an executor is a
process of its own. What is submitted runs as on any cluster: driver and executor see what
``--py-files`` gives them, and not the checkout.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark

from mariner_spark import session
from mariner_spark.session import SHORT_WORK_OPTIONS

MASTER: Final = "local-cluster[1,2,1024]"
"""One executor with two cores and 1 GiB."""

SUBMIT_TIMEOUT_S: Final = 300.0
"""Until an application ends. The one of the tests takes about 20 s."""

_CONFIGURATION: Final = {
    "spark.driver.extraJavaOptions": SHORT_WORK_OPTIONS,
    "spark.executor.extraJavaOptions": SHORT_WORK_OPTIONS,
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}

_BIN: Final = Path(pyspark.__file__).parent / "bin"


def submit(folder: Path, *args: str | Path) -> str:
    """Run an application on a cluster of its own, and wait for its end.

    Args:
        folder: where it runs.
        args: arguments of ``spark-submit``, after those that name the cluster.

    Returns:
        Its standard output.

    Raises:
        AssertionError: it failed; the message is what it said.
    """
    configuration = [f"--conf={name}={value}" for name, value in _CONFIGURATION.items()]
    spark_submit = [str(_BIN / "spark-submit"), "--master", MASTER, *configuration]
    done = subprocess.run(
        [*spark_submit, *map(str, args)],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=SUBMIT_TIMEOUT_S,
        check=False,
    )
    told = [i for i in done.stderr.splitlines() if " INFO " not in i]
    assert done.returncode == 0, "\n".join([*told, done.stdout])
    return done.stdout


def _environment() -> dict[str, str]:
    """As of someone who has pyspark installed, and no checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {
        "JAVA_HOME": str(session.make_home(session.find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(session.make_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
