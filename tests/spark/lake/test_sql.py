"""The SQL that ``mariner lake sql`` prints: what engines make of it."""

import logging
import shutil
from pathlib import Path

import duckdb
import pytest
import sqlglot
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sqlglot import exp

import mariner_spark
from mariner.cli import main
from mariner_spark.lake import maintenance, sql
from mariner_spark.lake.tables import Lake
from tests.spark.lake.oracle import WIDTHS, buckets, compare
from tests.spark.lake.support import append, opened
from tests.spark.lake.test_read import load_delta
from tests.spark.support import Row, plain_events

VIEWS = {"minutes": "1m", "hours": "1h", "days": "1d"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose name is not simple."""
    root = tmp_path_factory.mktemp("sql") / "an analyst's"
    for n in (10_000, 20_000):
        append(root, plain_events(n, every=50))
        maintenance.update(str(root))
    return root


def printed(lake: Path, dialect: str) -> list[str]:
    """What the command prints, statement by statement."""
    result = CliRunner().invoke(main, ["lake", "sql", str(lake), "--dialect", dialect])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.removesuffix(";\n").split(";\n\n")


def check(found: dict[str, list[Row]], lake: Path) -> None:
    """Compare views of rollups with events."""
    events = opened(lake).to_pyarrow_table().to_pylist()
    for name, rows in found.items():
        in_order = sorted(rows, key=lambda i: (i["type_path"], i["bucket"]))
        compare(in_order, buckets(events, WIDTHS[VIEWS[name]]))


def test_duckdb(lake: Path) -> None:
    with duckdb.connect() as connection:
        load_delta(connection)
        connection.execute("SET TimeZone = 'UTC'")
        for statement in printed(lake, "duckdb"):
            connection.execute(statement)
        check({i: connection.table(i).to_arrow_table().to_pylist() for i in VIEWS}, lake)
        counts = [connection.table(i).count("*").fetchone() for i in ("events", "numbers")]
        assert counts == [(400,), (400,)]


def test_spark(spark: SparkSession, lake: Path) -> None:
    mariner_spark.create_views(spark, lake)
    statements = printed(lake, "spark")
    assert statements[0].endswith(r"an analyst\'s/events')")
    for statement in statements[3:]:  # the first need Delta's jar, and do what is done above
        spark.sql(statement)
    check({"hours": spark.table("hours").toArrow().to_pylist()}, lake)
    assert spark.table("numbers").count() == 400


@pytest.mark.parametrize("dialect", sql.DIALECTS)
def test_a_parser_of_the_dialect_takes_it(
    lake: Path, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sqlglot")  # CALL is for it a text
    found = [sqlglot.parse_one(i, read=dialect) for i in printed(lake, dialect)]
    views = [i.this.name for i in found if isinstance(i, exp.Create) and i.find(exp.Window)]
    assert views == [*VIEWS]


def test_without_a_lake(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["lake", "sql", str(tmp_path), "--dialect", "trino"])
    assert result.exit_code == 2
    assert "no lake: it has no Delta table events" in result.stderr
    assert Lake(str(tmp_path)).find() is None


def test_of_a_lake_without_rollups(tmp_path: Path) -> None:
    append(tmp_path, plain_events(10))
    maintenance.update(str(tmp_path))
    shutil.rmtree(tmp_path / "rollups")  # as a lake of before
    result = CliRunner().invoke(main, ["lake", "sql", str(tmp_path), "--dialect", "duckdb"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(
        ": table rollups is not made yet: `mariner lake rebuild` or the next ingestion makes it\n"
    )
