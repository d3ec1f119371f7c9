"""What computes reports: DuckDB without Java, or Spark."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import Result
from duckdb import DuckDBPyConnection

from mariner_spark import limits
from mariner_spark.errors import JavaError
from mariner_spark.reports import relations, sources
from mariner_spark.reports.relations import Relation
from tests.spark.reports.support import Reported, run_report, table


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for Spark gets the error of a machine without Java."""

    def refuse() -> None:
        raise JavaError("no Java")

    monkeypatch.setattr("mariner_spark.get_session", refuse)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def report(reported: Reported, tmp_path: Path, *arguments: str) -> Result:
    return run_report("top", "--store", reported.store, "--out", tmp_path / "out", *arguments)


@pytest.mark.parametrize("engine", ["auto", "duckdb"])
def test_few_events_need_no_java(reported: Reported, tmp_path: Path, engine: str) -> None:
    result = report(reported, tmp_path, "--engine", engine)
    assert result.exit_code == 0, result
    assert table(tmp_path / "out", "top") == table(reported.folder, "top")


def test_spark_is_used_where_it_is_named(reported: Reported, tmp_path: Path) -> None:
    result = report(reported, tmp_path, "--engine", "spark")
    assert (result.exit_code, result.stderr) == (1, "mariner: error: no Java\n")


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"])
def test_spark_is_used_where_it_is_given(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "x")
    assert report(reported, tmp_path).exit_code == 1
    assert report(reported, tmp_path, "--engine", "duckdb").exit_code == 0


def test_spark_is_used_for_very_many_events(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DUCKDB_EVENTS", 100)
    assert report(reported, tmp_path).exit_code == 1


def test_parts_are_read_by_several_processes(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PART_ROWS", 100)
    result = report(reported, tmp_path)
    assert result.exit_code == 0, result
    assert table(tmp_path / "out", "top") == table(reported.folder, "top")


@pytest.mark.parametrize("n_events", [0, None, limits.PART_ROWS + 1])
def test_large_reports_have_a_low_priority(n_events: int | None) -> None:
    code = f"""
import os
from mariner_spark import limits
from mariner_spark.reports.sources import open_duckdb
before = os.getpriority(os.PRIO_PROCESS, 0)
with open_duckdb({n_events}):
    print(os.getpriority(os.PRIO_PROCESS, 0) == max(before, limits.NICENESS))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == (b"False\n" if n_events == 0 else b"True\n")


def test_a_signal_ends_the_command(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def interrupt(relation: Relation) -> None:
        folders.extend(tmp_path.glob("mariner-report-*"))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(relations, "row", interrupt)
    assert report(reported, tmp_path).exit_code == 130
    assert len(folders) == 1
    assert not folders[0].exists()


def test_an_error_of_duckdb_is_a_line(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DUCKDB_MEMORY_BYTES", 1)
    result = report(reported, tmp_path)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("mariner: error: DuckDB: Out of Memory Error:")


def test_one_thread_computes_what_several_have_no_memory_for(duck: DuckDBPyConnection) -> None:
    n_threads = []

    def compute() -> str:
        n_threads.append(duck.sql("SELECT current_setting('threads')").fetchall()[0][0])
        if n_threads[-1] > 1:
            raise duckdb.OutOfMemoryException
        return "done"

    duck.execute("SET threads = 2")
    assert relations._computed(duck.sql("SELECT 1"), compute) == "done"
    assert n_threads == [2, 1]
    duck.execute("RESET threads")


@pytest.mark.parametrize("n_events", [0, limits.DUCKDB_EVENTS])
def test_duckdb_is_chosen_up_to_a_number_of_events(n_events: int) -> None:
    assert sources.choose(n_events) == "duckdb"
    assert sources.choose(limits.DUCKDB_EVENTS + 1) == "spark"
