"""Named columns: values in payloads that are columns of a lake."""

import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import mariner_spark
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner.cli import main
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake import columns, maintenance
from mariner_spark.lake.ingest import ingest_store
from mariner_spark.lake.maintenance import compact, info
from mariner_spark.values import find_typed
from tests.spark.lake.support import append, opened
from tests.spark.support import fill

PAYLOADS = (
    '{"value": 1, "quality": "good", "on": true, "a": {"b": 2}}',
    '{"quality": 1, "on": "true", "a": 5}',
    '{"quality": null, "on": null, "a": {"b": "2"}}',
    '"good"',
    "3",
    "true",
    '{"quality": "é\\n\\"", "quality": "last", "on": false, "a": {"b": 1e999}}',
)
EXPECTED = {
    "quality": ["good", None, None, None, None, None, "last"],
    "is_on": [True, None, None, None, None, None, False],
    "deep": [2.0, None, None, None, None, None, None],
}
NAMED = ("quality=$.quality:string", "is_on=$.on:boolean", "deep=$['a'].b:double")


def events(texts: tuple[str, ...] = PAYLOADS) -> list[Event]:
    begin = 1_735_689_600
    return [
        Event(
            EventId(1, 1 + n, 1), (f"t{n}",), Timestamp(begin + n, 0), None,
            JsonPayload(msgspec.Raw(text.encode())),
        )
        for n, text in enumerate(texts)
    ]  # fmt: skip


def test_they_are_found_at_ingestion(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "store", events()[:4])
    options = [j for i in NAMED for j in ("--column", i)]
    command = ["lake", "ingest", str(tmp_path / "lake"), "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(main, [*command, *options])
    assert (result.exit_code, result.stderr) == (0, "")
    fill(tmp_path / "store", events()[4:])
    lake = str(tmp_path / "lake")
    assert ingest_store(lake, tmp_path / "store") == 3  # the lake knows them
    compact(lake)
    for table in ("events", "latest"):
        found = opened(lake, table).to_pyarrow_table().sort_by("session")
        assert {i: found.column(i).to_pylist() for i in EXPECTED} == EXPECTED
    frame = mariner_spark.read(spark, lake=lake, columns=["session", *EXPECTED])
    rows = frame.toArrow().sort_by("session")
    assert {i: rows.column(i).to_pylist() for i in EXPECTED} == EXPECTED
    assert info(lake).columns == [*NAMED]
    shown = CliRunner().invoke(main, ["lake", "info", lake]).stdout
    assert shown.endswith(f"columns    {', '.join(NAMED)}\n")


def test_a_lake_keeps_those_that_it_has(tmp_path: Path) -> None:
    fill(tmp_path / "store", events())
    append(tmp_path / "lake", [])
    expected = re.escape("its named columns are none, not quality=$.quality:string")
    with pytest.raises(LakeError, match=expected):
        ingest_store(str(tmp_path / "lake"), tmp_path / "store", columns=columns.parse(NAMED[:1]))
    maintenance.update(str(tmp_path / "lake"))
    assert "quality" not in opened(tmp_path / "lake").to_pyarrow_table().schema.names


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("quality",), "column: 'quality': expected NAME=PATH:TYPE, such as quality=$.quality"),
        (("quality=$.quality:int",), "with a type of boolean, double, string"),
        (("Quality=$.q:string",), "expected NAME=PATH:TYPE"),
        (("value=$.q:double",), "there is a column value already"),
        (("payload=$.q:string",), "there is a column payload already"),  # of reports
        (("q=$.q:double", "q=$.r:double"), "'q=$.r:double': there is a column q already"),
        (("q=q:double",), "column: 'q': expected a path as $.value"),
    ],
)
def test_what_is_wrong_is_told(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        columns.parse(texts)


def test_the_payload_itself() -> None:
    payloads = pa.array(['"a"', "1", "true", "{}", None, "[1]", '{"value": 1}'])
    assert find_typed(payloads, "$", str).to_pylist() == ["a", *[None] * 6]
    assert find_typed(payloads, "$", float).to_pylist() == [None, 1.0, *[None] * 5]
    assert find_typed(payloads, "$", bool).to_pylist() == [None, None, True, *[None] * 4]
