"""The dashboard over a lake: its queries run on what its README makes. Grafana is not on PyPI."""

import json
from pathlib import Path
from typing import Any, Final

import duckdb
import yaml
from click.testing import CliRunner

from mariner.cli import main
from mariner_spark.lake import maintenance
from tests.spark.lake.support import append
from tests.spark.lake.test_read import load_delta
from tests.spark.support import plain_events

DEPLOY: Final = Path(__file__).parents[3] / "deploy" / "grafana"
DASHBOARD: Final = json.loads((DEPLOY / "lake.json").read_text())
MACROS: Final = {
    "${type:sqlstring}": "'site/0/d0'",
    "$__timeFilter(bucket)": "bucket BETWEEN '2025-01-01T01:00:00Z' AND '2025-01-01T05:00:00Z'",
}
"""What Grafana and its plugin make of them."""


def test_its_queries(tmp_path: Path) -> None:
    append(tmp_path / "lake", plain_events(40_000, every=50))
    maintenance.update(str(tmp_path / "lake"))
    command = ["lake", "sql", str(tmp_path / "lake"), "--dialect", "duckdb"]
    with duckdb.connect(tmp_path / "lake.duckdb") as connection:
        load_delta(connection)
        connection.execute(CliRunner().invoke(main, command).stdout)
    with duckdb.connect(tmp_path / "lake.duckdb", read_only=True) as connection:
        load_delta(connection)
        connection.execute("SET TimeZone = 'UTC'")
        counts = [count(connection, panel) for panel in DASHBOARD["panels"]]
        [_, variable] = DASHBOARD["templating"]["list"]
        assert connection.sql(variable["query"]).fetchall() == [("site/0/d0",)]
    assert counts == [5, 5, 0]  # the day began before


def count(connection: duckdb.DuckDBPyConnection, panel: Any) -> int:
    """Rows of the query of a panel."""
    [target] = panel["targets"]
    query = target["rawSql"]
    for name, text in MACROS.items():
        query = query.replace(name, text)
    return len(connection.sql(query))


def test_its_source_is_the_one_that_is_provisioned() -> None:
    [source] = yaml.safe_load((DEPLOY / "datasource.yaml").read_text())["datasources"]
    [chosen, _] = DASHBOARD["templating"]["list"]
    assert source["type"] == chosen["query"]
    assert {i["datasource"]["type"] for i in DASHBOARD["panels"]} == {source["type"]}
