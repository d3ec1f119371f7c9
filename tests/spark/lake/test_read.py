"""Reading a lake: by Spark, and by other engines as README.md tells."""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import numpy as np
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mariner_spark
import mariner_spark.lake
from mariner_spark import type_path
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake import maintenance
from mariner_spark.lake.maintenance import compact
from mariner_spark.lake.tables import EVENTS, Lake
from tests.spark.lake.support import append, draw_events, opened
from tests.spark.support import COLUMNS, in_order, plain_events, rows_of
from tests.spark.support import read as rows_by_spark

pytestmark = pytest.mark.usefixtures("other_time_zone")  # moments are the same in any

EVENTS_OF_DAYS = plain_events(200_000, every=200)
README = (Path(mariner_spark.lake.__file__).parent / "README.md").read_text()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake ``lake`` beside the reader, with commits, a compaction and replaced files."""
    root = tmp_path / "lake"
    for end in range(200, 1_001, 200):
        append(root, EVENTS_OF_DAYS[:end])
        if end == 600:
            compact(str(root))
    maintenance.update(str(root))
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_same_events_by_every_engine(
    spark: SparkSession, tmp_path: Path, is_compacted: bool
) -> None:
    drawn = draw_events()
    for end in (len(drawn) // 2, len(drawn)):
        append(tmp_path, sorted(drawn, key=lambda i: i.id.session)[:end])
    if is_compacted:
        compact(str(tmp_path))
    expected, names = rows_of(drawn), list(COLUMNS)
    events = mariner_spark.read(spark, lake=tmp_path, source_out_of_range="clip")
    spark_rows = events.toArrow().to_pylist()
    for row in spark_rows:
        assert type_path.decode(row["type_path"]) == tuple(row["type"])
    assert in_order({i: row[i] for i in names} for row in spark_rows) == expected
    table = opened(tmp_path)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("events", table.to_pyarrow_dataset())
        # its own timestamps end in the year 294246, but its conversion to Python in 9999
        found = connection.table("events").select(*names).to_arrow_table()
        assert in_order(found.to_pylist()) == expected
        load_delta(connection)
        scan = connection.sql(f"FROM delta_scan('{tmp_path}/events')")
        assert in_order(scan.select(*names).to_arrow_table().to_pylist()) == expected
    frame = pl.scan_delta(f"{tmp_path}/events").select(names).collect()
    assert in_order(frame.to_arrow().to_pylist()) == expected
    records = table.to_pandas(columns=names).to_dict("records")
    assert in_order({i: plain(j) for i, j in row.items()} for row in records) == expected


def load_delta(connection: duckdb.DuckDBPyConnection) -> None:
    """Load the extension ``delta`` from its package, not over the network."""
    root = Path(duckdb_extension_delta.__file__).parent
    connection.load_extension(str(next(root.rglob("delta.duckdb_extension"))))


def plain(value: Any) -> Any:
    """What pandas has of a value, as Python has it."""
    if hasattr(value, "to_pydatetime"):
        return None if value != value else value.to_pydatetime()  # noqa: PLR0124  # NaT
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def test_an_empty_lake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no lake: it has no Delta table events"):
        mariner_spark.read(spark, lake=tmp_path)
    Lake(str(tmp_path)).create(EVENTS)
    frame = mariner_spark.read(spark, lake=tmp_path)
    assert frame.collect() == []
    assert frame.columns[-2:] == ["payload_binary", "value"]


def test_only_files_with_such_events_are_opened(spark: SparkSession, lake: Path) -> None:
    whole = mariner_spark.read(spark, lake=lake)
    assert rows_by_spark(whole) == rows_of(EVENTS_OF_DAYS)
    n_files = len(whole.inputFiles())
    first = datetime(2025, 1, 2, tzinfo=UTC)
    last = first + timedelta(hours=1, microseconds=-1)
    frame = mariner_spark.read(spark, lake=lake, from_=first, to=last, columns=COLUMNS)
    expected = [i for i in rows_of(EVENTS_OF_DAYS) if first <= i["timestamp"] <= last]
    assert len(expected) == 18
    assert rows_by_spark(frame) == expected
    assert len(frame.inputFiles()) == 1 < n_files
    assert mariner_spark.read(spark, lake=lake, to=0).collect() == []
    for types, n_rows, n_opened in (
        ("site/0/d0", 1_000, n_files),
        ("site/0/*", 1_000, n_files),
        ("site/0/d", 0, 0),
        ("site/1/*,site/?/d7", 0, n_files),
        ("x/*", 0, 0),
    ):
        frame = mariner_spark.read(spark, lake=lake, types=types)
        assert (frame.count(), len(frame.inputFiles())) == (n_rows, n_opened)
    of_one = mariner_spark.read(spark, lake=lake, servers=8, source_from=first)
    assert of_one.count() == 0


def test_a_moment_that_the_log_has_in_milliseconds(spark: SparkSession, tmp_path: Path) -> None:
    drawn = [i for i in draw_events() if i.timestamp.us % 1000]
    append(tmp_path, drawn[: len(drawn) // 2])
    append(tmp_path, drawn)
    compact(str(tmp_path))
    rows = rows_of(drawn)
    for row in rows[:5]:
        moment = row["timestamp"]
        found = mariner_spark.read(
            spark, lake=tmp_path, from_=moment, to=moment, source_out_of_range="clip"
        )
        assert rows_by_spark(found) == [i for i in rows if i["timestamp"] == moment]


def test_versions(spark: SparkSession, lake: Path) -> None:
    versions = range(opened(lake).version() + 1)
    counts = [0, 200, 400, 600, 600, 800, 1_000]
    found = [mariner_spark.read(spark, lake=lake, version=i).count() for i in versions]
    assert [found[0], *sorted(set(found[1:]))] == [0, 200, 400, 600, 800, 1_000]
    assert found == sorted(counts + [600] * (len(found) - len(counts)))
    commit = lake / EVENTS / "_delta_log" / f"{2:020}.json"  # its time is that of the version
    moment = commit.stat().st_mtime_ns // 10**6 * 10**6
    os.utime(commit, ns=(moment + 900_000,) * 2)  # within the same millisecond, as Delta has it
    for as_of in (moment + 100_000, moment + 900_000):
        second = mariner_spark.read(spark, lake=lake, as_of=as_of / 10**9)
        assert second.count() == 400
    of_numpy: Any = np.int32(1)
    assert mariner_spark.read(spark, lake=lake, version=of_numpy).count() == 200
    opened(lake).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(LakeError, match="table events: files of this version are deleted"):
        mariner_spark.read(spark, lake=lake, version=2)
    for arguments, message in (
        ({"version": 99}, "table events: no version 99, expected one from 0 to [0-9]+$"),
        ({"version": -1}, "table events: no version -1, expected one from 0 to [0-9]+$"),
        ({"version": 1, "as_of": 1}, "as_of: cannot be combined with version"),
        ({"version": "1"}, "version: expected a number, not str"),
        ({"as_of": b""}, "as_of: expected a datetime, a date, a string or seconds, not bytes"),
        ({"as_of": "x"}, "as_of: 'x'"),
        (
            {"as_of": "1999-12-31"},
            r"its first version is of 20.*, not 1999-12-31T23:59:59.9",
        ),
        ({"token": "secret"}, "token: is not for a lake"),
        ({"partitions": 2}, "partitions: is not for a lake"),
        ({"columns": ["x"]}, "columns: no column 'x', expected some of .*value"),
    ):
        given: Any = arguments
        with pytest.raises((OptionError, LakeError), match=message):
            mariner_spark.read(spark, lake=lake, **given)
    with pytest.raises(OptionError, match="version: is for a lake"):
        mariner_spark.read(spark, store=lake, version=1)


def test_every_change_is_read_once_by_version(tmp_path: Path, monkeypatch: Any) -> None:
    """Beside compactions and vacuums of files that no table has."""
    monkeypatch.chdir(tmp_path)
    root, ids = Path("lake"), list[tuple[int, int]]()
    names: dict[str, Any] = {"seen": -1}
    for n in range(50, 301, 50):
        append(root, plain_events(n))
        if n % 100:
            compact(str(root))
            append(root, plain_events(n + 20))
        names = run("load_cdf", names)
        found = names["changes"].to_pylist()
        assert {i["_change_type"] for i in found} == {"insert"}
        ids += [(i["session"], i["instance"]) for i in found]
    assert sorted(ids) == [(i.id.session, i.id.instance) for i in plain_events(300)]
    assert names["seen"] == opened(root).version()


def run(word: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the example of README.md with a word in it."""
    found = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [code] = [i for i in found if word in i]
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102  # ours
    return names


def test_examples(spark: SparkSession, lake: Path) -> None:
    found = run("import mariner_spark", {})
    assert (found["events"].count(), found["before"].count()) == (1_000, 200)
    assert found["quarters"].count() == 223
    assert len(run("create_views", found)["hottest"].collect()) == 1
    assert len(run("polars", {})["events"]) == 1_000
    assert len(run("to_pandas", {})["hours"]) == 56
    assert run("to_pyarrow_dataset", {})["count"].fetchall() == [("site/0/d0", 1_000)]
    assert len(run("load_cdf", {"seen": 1})["changes"]) == 800
    duckdb.sql("SET autoinstall_known_extensions = false")  # it would come over the network
    assert len(run("delta_scan", {})["scanned"]) == 1_000
    assert isinstance(DeltaTable(lake / "events").version(), int)


def test_the_notebook(spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells, one after the other."""
    path = Path(mariner_spark.__file__).parents[1] / "lake.ipynb"
    cells = json.loads(path.read_text())["cells"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(i for i in cells if i["cell_type"] == "code"):
        assert cell["outputs"] == []
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)  # noqa: S102
    assert names["busiest"] == "site/0/d0"
    assert len(names["hours"]) == 56
    assert names["events"].count() == 1_000
    assert "time_mean" in capsys.readouterr().out
