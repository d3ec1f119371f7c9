"""What the test submits: reads a gateway, says whose code did it, and then is ``mariner report``.

``program.py OPTIONS JOB [ARGUMENT]...``: a file with options of the data source, as JSON, and the
application of ``deploy/spark`` with its arguments, which gets the same session.
"""

import json
import runpy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import mariner_spark


def main(options: str, job: str, *arguments: str) -> None:
    """Run."""
    spark = mariner_spark.get_session()
    events = spark.read.format("mariner").options(**json.loads(Path(options).read_text())).load()
    by_type = events.groupBy("type_path").count().orderBy("type_path")
    seen = {
        "driver": mariner_spark.__file__,
        "executors": spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect(),
        "master": spark.sparkContext.master,
        "n_partitions": events.rdd.getNumPartitions(),
        "by_type": [list(row) for row in by_type.collect()],
    }
    print(json.dumps(seen), flush=True)
    sys.argv = [job, *arguments]
    try:
        runpy.run_path(job, run_name="__main__")
    finally:
        spark.stop()


def where(rows: Iterable[int]) -> Iterator[str]:
    """Where an executor has the package from."""
    import mariner_spark.source

    yield mariner_spark.source.__file__


if __name__ == "__main__":
    main(*sys.argv[1:])
