"""``spark.read.format("mariner")`` of a running gateway, by the Mariner protocol with TLS."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from eventer_bridge.model import Event, Timestamp
from mariner_spark import type_path
from mariner_spark.errors import OptionError
from mariner_spark.source import network
from mariner_spark.source.options import Selection, parse
from tests.spark.support import (
    Row,
    count_scanned,
    few,
    fill,
    in_order,
    many_events,
    plain_events,
    read,
    rows_of,
    safe_rows_of,
)
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway

STORED = plain_events(5_000) + plain_events(500, server=8)  # more than a page
ROWS = rows_of(STORED)
OWN_TYPES = "site/*"
"""Without what the engine registers when it starts."""

SENSORS = {"name": "sensors", "token": None, "subscriptions": [["site", "0", "*"]]}

Options = Mapping[str, str]


@asynccontextmanager
async def served(directory: Path, stored: list[Event]) -> AsyncIterator[Options]:
    """Options to read from a gateway that has events, and requires client certificates."""
    certificates = make_certificates(directory / "certificates")
    fill(directory / "events", stored)
    tls = {
        "cert": str(certificates.server_cert),
        "key": str(certificates.server_key),
        "client_ca": str(certificates.ca),
    }
    app = {"name": "app", "token": "secret", "subscriptions": [["*"]]}
    clients = [{**i, "register_events": []} for i in (app, SENSORS)]
    async with gateway(directory, tls=tls, clients=clients) as running:
        yield {
            "host": running.host,
            "port": str(running.port),
            "client_name": "app",
            "token": "secret",
            "tls_ca": str(certificates.ca),
            "cert": str(certificates.client_cert),
            "key": str(certificates.client_key),
        }


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Options]:
    running = served(tmp_path_factory.mktemp("network"), STORED)
    with asyncio.Runner() as runner:
        given_options = runner.run(running.__aenter__())
        yield given_options
        runner.run(running.__aexit__(None, None, None))


def load(spark: SparkSession, options: Options, **more: str) -> DataFrame:
    return spark.read.format("mariner").options(**{**options, **more}).load()


@given(many_events, st.integers(1, 3))
@few
def test_every_event_once_and_equal(
    spark: SparkSession, stored: list[Event], n_partitions: int
) -> None:

    async def read_from_gateway() -> list[Row]:
        with tempfile.TemporaryDirectory() as directory:
            async with served(Path(directory), stored) as options:
                frame = load(spark, options, partitions=str(n_partitions))
                table = await asyncio.to_thread(frame.toArrow)
                rows: list[Row] = table.to_pylist()
                return rows

    rows = asyncio.run(read_from_gateway())
    for row in rows:
        assert type_path.decode(row.pop("type_path")) == tuple(row["type"])
    # server 1 is the gateway itself, and tells of its engine
    assert in_order(i for i in rows if i["server"] != 1) == safe_rows_of(stored)


@pytest.mark.parametrize("n_partitions", [1, 2, 7])
def test_slices_of_time_join_up(spark: SparkSession, options: Options, n_partitions: int) -> None:
    frame = load(spark, options, types=OWN_TYPES, partitions=str(n_partitions))
    assert read(frame) == ROWS
    assert frame.rdd.getNumPartitions() <= n_partitions


MIDNIGHT = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("more", "keeps"),
    [
        ({"types": "site/1/d7,x"}, lambda row: row["type"] == ["site", "1", "d7"]),
        ({"types": OWN_TYPES, "servers": "8"}, lambda row: row["server"] == 8),
        ({"servers": "7"}, lambda row: row["server"] == 7),
        ({"servers": "7,8"}, lambda row: True),
        ({"servers": "9"}, lambda row: False),
        (
            {"types": OWN_TYPES, "to": "2025-01-01T00:10"},
            lambda row: row["timestamp"] <= MIDNIGHT + timedelta(minutes=10),
        ),
        (
            {"source_to": "2024-12-31"},
            lambda row: row["source_timestamp"] is not None and row["source_timestamp"] < MIDNIGHT,
        ),
        ({"source_from": "0001-01-01"}, lambda row: row["source_timestamp"] is not None),
    ],
)
def test_options_bound_what_is_read(
    spark: SparkSession, options: Options, more: dict[str, str], keeps: Callable[[Row], bool]
) -> None:
    """Spark is given nothing that it would leave out."""
    n_expected = sum(map(keeps, ROWS))
    assert count_scanned(load(spark, options, **more)) == (n_expected, n_expected)


def test_as_many_types_as_a_gateway_takes(spark: SparkSession, options: Options) -> None:
    types = ",".join(["site/0/d1", *(f"x/{i}" for i in range(999))])
    assert count_scanned(load(spark, options, types=types)) == (550, 550)


def test_rights_bound_what_is_read(spark: SparkSession, options: Options) -> None:
    mine = {i: j for i, j in options.items() if i != "token"}
    frame = load(spark, mine, client_name="sensors")
    assert read(frame) == [i for i in ROWS if i["type"][1] == "0"]


def test_a_gateway_that_refuses_is_told(options: Options) -> None:
    refused = (
        ({"token": "wrong"}, "client_name, token: .* declined: invalid client name or token"),
        ({"client_name": "nobody"}, "client_name, token: .* declined: invalid client name or"),
        ({"port": "1"}, "host, port: 127.0.0.1:1: .*refused"),
        ({"tls_ca": options["cert"]}, "host, port: 127.0.0.1:.*certificate"),
    )
    for changed, message in refused:
        with pytest.raises(OptionError, match=message) as info:
            network.plan(parse({**options, **changed}).gateway, Selection(), 1)
        assert "'wrong'" not in str(info.value)


def test_a_refusal_is_told_before_any_task(spark: SparkSession, options: Options) -> None:
    frame = load(spark, options, token="wrong")
    with pytest.raises(AnalysisException, match=r"client_name, token: .* declined") as info:
        frame.toArrow()
    assert "'wrong'" not in str(info.value)


def test_many_sessions_at_one_moment_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """More than a page of them, so that a slice cannot be cut smaller."""
    now = Timestamp(1_700_000_000, 0)
    stored = [Event(i.id, i.type, now, i.source_timestamp, i.payload) for i in plain_events(5_000)]

    async def read_from_gateway() -> list[Row]:
        async with served(tmp_path, stored) as options:
            frame = load(spark, options, types=OWN_TYPES, partitions="3")
            return await asyncio.to_thread(read, frame)

    assert asyncio.run(read_from_gateway()) == rows_of(stored)
