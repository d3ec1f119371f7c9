"""What the test submits: says whose code is run where, and then is ``mariner report``.

``program.py JOB [ARGUMENT]...``: the application of ``deploy/spark`` with its arguments, which
gets the same session.
"""

import json
import runpy
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

import mariner_spark
from mariner_spark.errors import LakeError


def main(job: str, *arguments: str) -> None:
    """Run."""
    spark = mariner_spark.get_session()
    seen = {
        "driver": mariner_spark.__file__,
        "executors": spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect(),
        "master": spark.sparkContext.master,
        "lacks": reason_without_lake(spark),
    }
    print(json.dumps(seen), flush=True)
    sys.argv = [job, *arguments]
    try:
        runpy.run_path(job, run_name="__main__")
    finally:
        spark.stop()


def reason_without_lake(spark: SparkSession) -> str:
    """What is said of a lake that executors lack: they run in other folders."""
    try:
        mariner_spark.read(spark, lake="/proc/self/cwd/lake")
    except LakeError as e:
        return str(e)
    return ""


def where(rows: Iterable[int]) -> Iterator[str]:
    """Where an executor has the package from."""
    import mariner_spark.source

    yield mariner_spark.source.__file__


if __name__ == "__main__":
    main(*sys.argv[1:])
