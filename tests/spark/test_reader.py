"""``mariner_spark.read``: from Python's values to rows."""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

import mariner_spark
from eventer_bridge.model import Timestamp
from mariner_spark import schema, times
from mariner_spark.errors import OptionError
from mariner_spark.lake.ingest import ingest_store
from mariner_spark.source import options
from mariner_spark.source.options import Selection, to_options
from mariner_spark.times import Interval
from tests.spark.source.test_network import served
from tests.spark.support import Row, count_scanned, fill, plain_events, read, rows_of, safe_rows_of

STORED = plain_events(2_000) + plain_events(100, server=8)
MINUTE = datetime(2025, 1, 1, 0, 1, tzinfo=UTC)
AN_HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reader") / "store"
    fill(path, STORED)
    return path


def test_all_columns_of_all_events(spark: SparkSession, store: Path) -> None:
    frame = mariner_spark.read(spark, store=store)
    assert frame.columns == schema.SCHEMA.names
    assert read(frame) == rows_of(STORED)


@pytest.mark.parametrize(
    ("arguments", "keeps"),
    [
        ({"types": "site/0/*"}, lambda row: row["type"][1] == "0"),
        (
            {"types": [("site", "?", "d7"), "site/1/d8"], "servers": 7},
            lambda row: row["type"][2] in {"d7", "d8"} and row["server"] == 7,
        ),
        ({"from_": MINUTE, "to": "2025-01-01T00:02"}, lambda row: within(row["timestamp"])),
        (
            {"source_from": MINUTE - AN_HOUR, "source_to": "2024-12-31T23:02", "servers": [7, 8]},
            lambda row: (
                row["source_timestamp"] is not None and within(row["source_timestamp"] + AN_HOUR)
            ),
        ),
    ],
)
def test_only_what_is_asked_for_is_read(
    spark: SparkSession, store: Path, arguments: dict[str, Any], keeps: Callable[[Row], bool]
) -> None:
    columns = ["type_path", "timestamp"]
    frame = mariner_spark.read(spark, store=store, columns=columns, **arguments)
    assert frame.columns == columns
    n_expected = sum(map(keeps, rows_of(STORED)))
    assert 0 < n_expected < len(STORED)
    assert count_scanned(frame) == (n_expected, n_expected)


def within(moment: datetime) -> bool:
    return MINUTE <= moment <= MINUTE + timedelta(minutes=1)


def test_a_wrong_clock_of_a_client_stops_nobody(spark: SparkSession, tmp_path: Path) -> None:
    """Python and pandas get its source timestamps as null; those who ask get them as they are."""
    years = (1, 1677, 1678, 2261, 2262, 9999)
    moments = [datetime(year, 1, 1, tzinfo=UTC) for year in years]
    moments += [datetime(year, 12, 31, 23, 59, 59, 999_999, UTC) for year in years]
    sources: list[Timestamp | None] = [times.to_timestamp(times.from_datetime(i)) for i in moments]
    sources += [None, Timestamp(-(10**15), 0), Timestamp(10**15, 0)]
    events = [
        replace(event, source_timestamp=source)
        for event, source in zip(plain_events(len(sources)), sources, strict=True)
    ]
    fill(tmp_path / "store", events)
    ingest_store(str(tmp_path / "lake"), tmp_path / "store")
    exact = [row["source_timestamp"] for row in rows_of(events)]
    shown = [row["source_timestamp"] for row in safe_rows_of(events)]
    assert len(set(shown)) == 5
    for place in ({"store": tmp_path / "store"}, {"lake": tmp_path / "lake"}):
        given: dict[str, Any] = {**place, "columns": ["session", "instance", "source_timestamp"]}
        frame = mariner_spark.read(spark, **given).orderBy("session", "instance")
        assert frame.toArrow().column("source_timestamp").to_pylist() == shown
        collected = [i.source_timestamp for i in frame.collect()]
        assert [i and i.astimezone(UTC) for i in collected] == shown
        table: Any = frame.toPandas()
        pandas = table["source_timestamp"]
        expected = [i and i.replace(tzinfo=None) for i in shown]
        assert pandas.astype(object).where(pandas.notna(), None).tolist() == expected
        clipped = mariner_spark.read(spark, **given, source_out_of_range="clip")
        assert in_id_order(clipped) == exact
        # they are selected by what was registered
        old = mariner_spark.read(spark, **given, source_to="1600-01-01")
        assert in_id_order(old) == [None, None, None]


def in_id_order(frame: DataFrame) -> list[datetime | None]:
    table = frame.orderBy("session", "instance").toArrow()
    return list(table.column("source_timestamp").to_pylist())


async def test_of_a_gateway(spark: SparkSession, tmp_path: Path) -> None:
    async with served(tmp_path, STORED) as found:
        access: dict[str, Any] = {
            name: found[name] for name in ("client_name", "token", "cert", "key")
        }
        frame = mariner_spark.read(
            spark,
            gateway=f"{found['host']}:{found['port']}",
            tls_ca=Path(found["tls_ca"]),
            types=["site/?/d7"],
            **access,
        )
        rows = await asyncio.to_thread(read, frame)
    assert rows == [row for row in rows_of(STORED) if row["type"][2] == "d7"]


ANY = {"store": "s"}
HOUR = 3_600_000_000
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("arguments", "selection"),
    [
        ({}, Selection()),
        ({"types": "a/*, b"}, Selection(types=(("a", "*"), ("b",)))),
        ({"types": iter(["a/b,c", ("a/b", "*"), ()])},
         Selection(types=(("a", "b,c"), ("a/b", "*"), ()))),
        ({"types": (("a", "b"), ("c",))}, Selection(types=(("a", "b"), ("c",)))),
        ({"from_": "1970-01-02"}, Selection(time=Interval(first=DAY))),
        ({"from_": 20240501, "to": 20240501.5},
         Selection(time=Interval(20_240_501_000_000, 20_240_501_500_000))),
        ({"from_": datetime(1970, 1, 2), "to": date(1970, 1, 2)},
         Selection(time=Interval(DAY, 2 * DAY - 1))),
        ({"source_to": datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=1)))},
         Selection(source=Interval(None, HOUR))),
        ({"servers": 7}, Selection(servers=frozenset((7,)))),
        ({"servers": np.array([7, 8])}, Selection(servers=frozenset((7, 8)))),
        ({"from_": np.int64(1), "to": np.float32(1.5)},
         Selection(time=Interval(1_000_000, 1_500_000))),
        ({"servers": {-1, 7}}, Selection(servers=frozenset((-1, 7)))),
    ],
)  # fmt: skip
def test_what_values_mean(arguments: dict[str, Any], selection: Selection) -> None:
    assert options.parse(to_options({**ANY, **arguments})).selection == selection


GATEWAY = {"gateway": "h", "client_name": "app"}
EXPECTED_TYPES = "expected a string, or a list of strings and of tuples of segments"
EXPECTED_MOMENT = "expected a datetime, a date, a string or seconds"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "store, gateway: expected one of them: a store, or a gateway"),
        ({**ANY, **GATEWAY}, "store, gateway: expected one of them: a store, or a gateway"),
        ({"store": 5}, "store: expected a path, not int"),
        ({**ANY, "token": "secret"}, "token: is for a gateway, not for a store"),
        ({"gateway": "h"}, "client_name: is needed for a gateway: the name of a configured client"),
        ({**GATEWAY, "gateway": "h:x"}, "gateway: 'h:x': expected HOST or HOST:PORT, separated by"),
        ({**GATEWAY, "gateway": "h,i"}, "gateway: expected one gateway; several are for streams"),
        ({**GATEWAY, "token": b"secret"}, "token: expected a string, not bytes"),
        ({**GATEWAY, "tls": "yes"}, "tls: expected True or False, not str"),
        ({**ANY, "types": ("a", "b")}, f"types: {EXPECTED_TYPES}, not tuple"),
        ({**ANY, "types": [5]}, f"types: {EXPECTED_TYPES}, not list"),
        ({**ANY, "types": []}, "types: '[]': expected an event type"),
        ({**ANY, "types": ["a/*/b"]}, "types: '[\"a/*/b\"]': query type 'a/*/b': '*' is allowed"),
        ({**ANY, "from_": "soon"}, "from_: 'soon': expected ISO 8601 (2024-05-01T12:00:00Z) or"),
        ({**ANY, "from_": True}, f"from_: {EXPECTED_MOMENT}, not bool"),
        ({**ANY, "to": timedelta(1)}, f"to: {EXPECTED_MOMENT}, not timedelta"),
        ({**ANY, "to": 1e300}, "to: '1e+300': expected ISO 8601"),
        ({**ANY, "from_": 2, "to": 1}, "from_: is later than to"),
        ({**ANY, "servers": "7"}, "servers: expected an id, or a list of ids, not str"),
        ({**ANY, "servers": np.bool_(True)}, "servers: expected an id, or a list of ids, not bool"),
        ({**ANY, "servers": [True]}, "servers: expected an id, or a list of ids, not list"),
        ({**ANY, "servers": []}, "servers: '': expected ids of servers"),
        ({**ANY, "partitions": 0}, "partitions: '0': expected a number from 1 to 10000"),
        (
            {**ANY, "source_out_of_range": "text"},
            "source_out_of_range: 'text': expected null or clip",
        ),
        ({**ANY, "columns": "type"}, "columns: expected a list of names, not 'type'"),
        ({**ANY, "columns": []}, "columns: expected a list of names, not []"),
        ({**ANY, "columns": ["size"]}, "columns: no column 'size', expected some of server, ses"),
        ({**ANY, "columns": ["type", "type"]}, "columns: names 'type' twice"),
    ],
)
def test_a_wrong_argument_is_named(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as info:
        mariner_spark.read(spark, **arguments)
    assert str(info.value).startswith(message)
