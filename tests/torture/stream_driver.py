"""``python -m tests.torture.stream_driver OPTIONS CHECKPOINT SINK [--rest]``: to be killed.

Every batch of its stream becomes a file of the sink, ``batch-N.json``. One that comes again,
because the driver was killed before Spark noted that it was done, has to be the same.
"""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame

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


def main(options: str, checkpoint: str, sink: str, *rest: str) -> None:
    """Run the query: for ever, or until there is nothing left to read."""
    spark = mariner_spark.get_session(master="local[2]")
    given: dict[str, Any] = msgspec.json.decode(options)
    frame = spark.readStream.format("mariner").options(**given).load()
    writer = frame.writeStream.foreachBatch(Sink(Path(sink)))
    writer = writer.option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if rest else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
