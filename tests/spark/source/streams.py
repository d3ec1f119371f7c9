"""Streams without Spark around them: their reader, used as Spark uses it."""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadLimit

from mariner_spark import schema
from mariner_spark.source import MarinerDataSource
from mariner_spark.source.stream import StreamReader
from tests.spark.support import COLUMNS, Row, in_order
from tests.support.gateway import Gateway

Offset = dict[str, Any]


def gateway_options(*gateways: Gateway) -> dict[str, str]:
    """Options to read from gateways as the client who may do everything."""
    hosts = ",".join(f"{i.host}:{i.port}" for i in gateways)
    return {"host": hosts, "client_name": "app", "token": "secret"}


def make_reader(options: Mapping[str, str], **more: str) -> StreamReader:
    reader = MarinerDataSource({**options, **more}).streamReader(schema.SCHEMA)
    assert isinstance(reader, StreamReader)
    reader.getDefaultReadLimit()  # checks
    return reader


def next_offset(reader: StreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    return reader.latestOffset(start, limit or reader.getDefaultReadLimit())


def read_batch(reader: StreamReader, start: Offset, end: Offset) -> list[Row]:
    """What the tasks of a batch give, by id; the reader of a task is another one."""
    partitions = reader.partitions(start, end)
    sent = CloudPickleSerializer().dumps(make_like(reader))
    task: StreamReader = CloudPickleSerializer().loads(sent)
    copies = [pickle.loads(pickle.dumps(i)) for i in partitions]  # noqa: S301  # our own
    rows = [row for i in copies for batch in task.read(i) for row in batch.to_pylist()]
    return in_order({name: row[name] for name in COLUMNS} for row in rows)


def make_like(reader: StreamReader) -> StreamReader:
    """A reader with the same options that was not used yet."""
    return StreamReader(reader._options, reader._schema)


def read_on(reader: StreamReader, start: Offset) -> Iterator[tuple[Offset, list[Row]]]:
    """Batches and where they end, until there is nothing to read."""
    while (end := next_offset(reader, start)) != start:
        yield end, read_batch(reader, start, end)
        start = end


def read_all(reader: StreamReader, start: Offset | None = None) -> tuple[Offset, list[Row]]:
    """The offset that a stream reaches from an offset, and all rows that it reads."""
    offset = reader.initialOffset() if start is None else start
    rows: list[Row] = []
    for end, batch in read_on(reader, offset):
        offset = end
        rows += batch
    return offset, in_order(rows)


def own(rows: Iterable[Row]) -> list[Row]:
    """Without what the gateways register by themselves."""
    return [row for row in rows if row["type"][:1] != ["event"]]


def values(rows: Iterable[Row]) -> list[str]:
    """JSON payloads of the rows that users registered."""
    return [str(row["payload_json"]) for row in own(rows)]
