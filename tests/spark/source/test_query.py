"""``spark.readStream.format("mariner")``: through Spark, with checkpoints and restarts."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from eventer_bridge.model import Event
from mariner_spark import type_path
from tests.spark.source.streams import gateway_options, values
from tests.spark.support import Row, few, fill, in_order, many_events, safe_rows_of
from tests.support.certificates import make_certificates
from tests.support.gateway import Gateway, gateway
from tests.support.peer import RawPeer, event, register_req

TIMEOUT_S = 240


class Sink:
    """Batches by their number: one that comes again has to be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = in_order(frame.toArrow().to_pylist())
        assert self.batches.setdefault(batch_id, rows) == rows

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]


def write(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, sink: Sink
) -> DataStreamWriter:
    frame = spark.readStream.format("mariner").options(**options).load()
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))


def read_available(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, sink: Sink
) -> None:
    query = write(spark, options, checkpoint, sink).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)


async def register(running: Gateway, *new: int) -> None:
    async with await RawPeer.init(running.port) as peer:
        request = register_req(1, *[event("a", value=i) for i in new])
        assert (await peer.request(request))["success"]


@given(many_events)
@few
def test_every_event_once_and_equal(spark: SparkSession, stored: list[Event]) -> None:
    async def read() -> Sink:
        with tempfile.TemporaryDirectory() as directory:
            fill(Path(directory, "events"), stored)
            sink = Sink()
            async with gateway(Path(directory)) as running:
                options = {**gateway_options(running), "maxEventsPerBatch": "40"}
                checkpoint = Path(directory, "checkpoint")
                await asyncio.to_thread(read_available, spark, options, checkpoint, sink)
            return sink

    sink = asyncio.run(read())
    # not all are full: servers share them
    assert all(0 < len(rows) <= 40 for rows in sink.batches.values())
    for row in sink.rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    assert in_order(i for i in sink.rows if i["server"] != 1) == safe_rows_of(stored)


async def test_a_query_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Over TLS; stopped and started again, then with a gateway that ends and comes back."""
    certificates = make_certificates(tmp_path / "certificates")
    tls = {
        "cert": str(certificates.server_cert),
        "key": str(certificates.server_key),
        "client_ca": str(certificates.ca),
    }
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    async with gateway(tmp_path) as running:
        await register(running, 1, 2)
        options = gateway_options(running)
        await asyncio.to_thread(read_available, spark, options, checkpoint, sink)
        assert values(sink.rows) == ["1", "2"]
        await register(running, 3)
        # another way to the same gateway is the same stream
    async with gateway(tmp_path, tls=tls) as running:
        secure = {
            **gateway_options(running),
            "tls_ca": str(certificates.ca),
            "cert": str(certificates.client_cert),
            "key": str(certificates.client_key),
        }
        await asyncio.to_thread(read_available, spark, secure, checkpoint, sink)
        assert values(sink.rows) == ["1", "2", "3"]


async def test_a_query_outlives_its_gateway(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    async with gateway(tmp_path) as running:
        port, options = running.port, gateway_options(running)
        query = await asyncio.to_thread(write(spark, options, tmp_path / "checkpoint", sink).start)
        await register(running, 1)
        while values(sink.rows) != ["1"]:
            assert query.isActive, query.exception()
            await asyncio.sleep(0.02)
        os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()
    async with gateway(tmp_path, port=port) as running:
        await register(running, 2)
        while values(sink.rows) != ["1", "2"]:
            assert query.isActive, query.exception()
            await asyncio.sleep(0.02)
        await asyncio.to_thread(query.stop)
    assert query.exception() is None


async def test_what_is_wrong_is_told_before_any_task(spark: SparkSession, tmp_path: Path) -> None:
    async def check(options: Mapping[str, str], message: str) -> None:
        query = write(spark, options, tmp_path / "checkpoint", Sink()).start()
        with pytest.raises(StreamingQueryException, match=message):
            await asyncio.to_thread(query.awaitTermination, TIMEOUT_S)
        assert query.lastProgress is None

    async with gateway(tmp_path) as running:
        given_options = gateway_options(running)
        message = "client_name, token: .* declined: invalid client name or token"
        await check({**given_options, "token": "wrong"}, message)
        message = "from: is for batch reads; see startingOffsets"
        await check({**given_options, "from": "2024-01-01"}, message)
