"""``python -m tests.torture.stream_driver OPTIONS CHECKPOINT SINK [--rest]``: to be killed.

Every batch of its stream becomes a file of the sink, ``batch-N.json``. One that comes again,
because the driver was killed before Spark noted that it was done, has to be the same.
"""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import mariner_spark

COLUMNS: Final = (
    "server", "session", "instance", "type", "source_timestamp", "payload_json"
)  # fmt: skip


class Sink:
    """See the module.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        data = msgspec.json.encode(frame.select(*COLUMNS).toArrow().to_pylist())
        path = self._folder / f"batch-{batch_id}.json"
        if path.exists():
            assert path.read_bytes() == data, f"batch {batch_id} is another one"
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.rename(path)


def start(
    spark: SparkSession, options: dict[str, Any], checkpoint: str, sink: str, *rest: str
) -> StreamingQuery:
    """Start the query: for ever, or until there is nothing left to read."""
    frame = spark.readStream.format("mariner").options(**options).load()
    writer = frame.writeStream.foreachBatch(Sink(Path(sink)))
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if rest else writer).start()


def main(options: str, checkpoint: str, sink: str, *rest: str) -> None:
    """Run the query."""
    spark = mariner_spark.get_session(master="local[2]")
    start(spark, msgspec.json.decode(options), checkpoint, sink, *rest).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
