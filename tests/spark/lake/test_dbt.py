"""The dbt project: its sources are the tables of a lake, and its model runs on them.

dbt itself is not run here: it brings 50 packages, and with its current parser more than pip can.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import jinja2
import pytest
import yaml

from mariner_spark.lake import maintenance
from mariner_spark.lake.sql import WIDTHS_US
from mariner_spark.lake.tables import TABLES
from tests.spark.lake.support import append, opened
from tests.spark.lake.test_read import load_delta
from tests.spark.support import plain_events

PROJECT: Final = Path(__file__).parents[3] / "deploy" / "dbt"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    append(tmp_path / "lake", plain_events(200))
    maintenance.update(str(tmp_path / "lake"))
    return tmp_path / "lake"


def sources() -> Any:
    [found] = yaml.safe_load((PROJECT / "models" / "sources.yml").read_text())["sources"]
    return found


def values_of(found: Any, key: str) -> Iterator[Any]:
    """All values of a key, however deep."""
    for name, value in found.items() if isinstance(found, dict) else enumerate(found):
        if name == key:
            yield value
        if isinstance(value, dict | list):
            yield from values_of(value, key)


def test_the_sources_are_the_tables(lake: Path) -> None:
    described = {i["name"]: [j["name"] for j in i["columns"]] for i in sources()["tables"]}
    assert described.keys() == set(TABLES)
    for name in ("events", "rollups"):
        assert described[name] == opened(lake, name).to_pyarrow_dataset().schema.names
    assert list(values_of(sources(), "values")) == [[*WIDTHS_US]]


def test_the_model_runs(lake: Path) -> None:
    """As dbt-duckdb runs it, with the location that the source has."""
    location = sources()["config"]["meta"]["external_location"]

    def source(_schema: str, name: str) -> str:
        found = jinja2.Template(location).render(var={"lake": str(lake)}.__getitem__)
        return str(found.format(name=name))

    text = (PROJECT / "models" / "daily_numbers.sql").read_text()
    with duckdb.connect() as connection:
        load_delta(connection)
        found = connection.sql(jinja2.Template(text).render(source=source)).to_arrow_table()
    rows = found.sort_by("type_path").to_pylist()
    assert len(rows) == 10
    assert {i: rows[0][i] for i in ("type_path", "numbers", "least", "quality")} == {
        "type_path": "site/0/d0", "numbers": 20, "least": 0.0, "quality": 1.0,
    }  # fmt: skip


def test_the_project_is_one() -> None:
    project = yaml.safe_load((PROJECT / "dbt_project.yml").read_text())
    profiles = yaml.safe_load((PROJECT / "profiles.yml").read_text())
    profile = profiles[project["profile"]]
    assert profile["outputs"][profile["target"]]["type"] == "duckdb"
