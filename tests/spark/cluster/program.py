"""What the test submits: reads a gateway, and prints what it saw and whose code did it."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import mariner_spark


def main() -> None:
    """Run; the argument is a file with the options of the data source, as JSON."""
    options = json.loads(Path(sys.argv[1]).read_text())
    spark = mariner_spark.get_session()
    events = spark.read.format("mariner").options(**options).load()
    by_type = events.groupBy("type_path").count().orderBy("type_path")
    seen = {
        "driver": mariner_spark.__file__,
        "executors": spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect(),
        "master": spark.sparkContext.master,
        "n_partitions": events.rdd.getNumPartitions(),
        "by_type": [list(row) for row in by_type.collect()],
        "one_type": events.where("type_path = 'site/0/d1'").count(),
    }
    print(json.dumps(seen))
    spark.stop()


def where(rows: Iterable[int]) -> Iterator[str]:
    """Where an executor has the package from."""
    import mariner_spark.source

    yield mariner_spark.source.__file__


if __name__ == "__main__":
    main()
