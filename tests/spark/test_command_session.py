"""The session of a command: signals, and a Java that dies."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from pyspark.sql import SparkSession

from mariner.cli.spark import spark_session
from tests.spark.lake.support import wait_until

_KILL_JAVA = """
import os, signal
from mariner.cli.run import CommandError
from mariner.cli.spark import spark_errors, spark_session

try:
    with spark_errors(), spark_session() as (spark, _):
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        spark.range(5).collect()
except CommandError as e:
    print(e.exit_code, e.message)
"""


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


@pytest.mark.timeout(600)  # it starts Java, on a machine that may be busy
def test_a_java_that_is_killed_is_told_in_a_line() -> None:
    command = [sys.executable, "-c", _KILL_JAVA]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("1 Java ended while Spark worked. If it was out of memory (1 GB")
