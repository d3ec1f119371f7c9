"""``mariner report``: of stores and gateways, of nothing, and of what is wrong."""

import asyncio
import csv
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import Result
from msgspec.structs import replace

from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner_spark import type_path
from mariner_spark.cli.report import NAMES
from mariner_spark.reports.generate import REPORTS
from tests.spark.lake.support import append
from tests.spark.reports.support import (
    COLUMNS,
    N_EVENTS,
    T0,
    Reported,
    S,
    charts_of,
    run_report,
    shape,
    table,
)
from tests.spark.source.test_network import served
from tests.spark.support import EPOCH, fill, plain_events


def error_of(result: Result, code: int) -> str:
    """The one line of a command that fails."""
    assert (result.exit_code, result.stdout) == (code, ""), result
    [line] = result.stderr.splitlines()
    return line.removeprefix("mariner: error: ")


def test_the_command_knows_all_reports() -> None:
    assert tuple(REPORTS) == NAMES


def test_all_reports_of_a_store(reported: Reported) -> None:
    store, folder, result = reported
    assert (result.exit_code, result.stderr) == (0, ""), result
    assert result.stdout == f"{folder / 'report.html'}\n"
    names = {f"{name}.{kind}" for name in NAMES for kind in ("csv", "parquet")}
    assert {path.name for path in folder.iterdir()} == names | {"report.html"}
    assert sum(row["events"] for row in table(folder, "activity")) == N_EVENTS
    assert [row["value"] for row in table(folder, "latest")] == list(range(290, 300))
    assert len(table(folder, "values")) > 10
    [run] = table(folder, "runs")
    assert (run["server"], run["kind"], run["is_begin_seen"]) == (7, "engine", False)
    for name in NAMES:
        text = pyarrow.csv.read_csv(folder / f"{name}.csv")
        stored = pyarrow.parquet.read_table(folder / f"{name}.parquet")
        assert (text.column_names, text.num_rows) == (stored.column_names, stored.num_rows)
        assert shape(stored.schema) == COLUMNS[name]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"<dd>{N_EVENTS}</dd>" in page
    assert f"<dd>{store}</dd>" in page
    # to the end of the last bucket, of five seconds
    assert f"[{T0 / 1_000!r}, {(T0 + 295 * S) / 1_000!r}]" in page
    assert [f'<section id="{name}">' in page for name in NAMES] == [True] * len(NAMES)


def test_some_reports_of_some_events(reported: Reported, tmp_path: Path) -> None:
    begin = 1_735_689_600
    result = run_report(
        *("top", "availability", "--store", reported.store, "--out", tmp_path),
        *("--type", "site/0/*", "--type", "site/?/d7", "--depth", "1"),
        *("--from", "2025-01-01T00:01:00Z", "--to", str(begin + 119)),
    )
    assert result.exit_code == 0, result
    assert {path.stem for path in tmp_path.iterdir()} == {"top", "availability", "report"}
    assert {row["type_path"]: row["events"] for row in table(tmp_path, "top")} == {
        **{f"site/0/d{i}": 6 for i in range(5)},
        "site/1/d7": 6,
    }
    # of all types
    [row] = table(tmp_path, "availability")
    assert row["up_s"] == 50
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<dd>site/0/*, site/?/d7</dd>" in page
    assert "<dd>2025-01-01 00:01:00</dd>" in page


def test_gaps_of_some_types_last_until_the_end_of_all(tmp_path: Path) -> None:
    steady, silent = (
        [
            Event(EventId(1, first + i, 1), (name,), Timestamp(-100 + first + i, 0), None, None)
            for i in range(n_events)
        ]
        for name, first, n_events in (("silent", 1, 6), ("steady", 7, 60))
    )
    fill(tmp_path / "events", silent + steady)
    source = ("--store", tmp_path / "events", "--type", "silent", "--out", tmp_path)
    result = run_report("gaps", *source, "--to", "-60")
    assert result.exit_code == 0, result
    [row] = table(tmp_path, "gaps")
    assert (row["type_path"], row["is_open"]) == ("silent", True)
    assert row["end"] == EPOCH - timedelta(seconds=60)
    # and so does the axis
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "[-99000.0, -60000.0]" in page


def test_no_events(reported: Reported, tmp_path: Path) -> None:
    result = run_report("top", "--store", reported.store, "--out", tmp_path, "--from", "2030-01-01")
    assert result.exit_code == 0, result
    assert table(tmp_path, "top") == []
    header = (tmp_path / "top.csv").read_text(encoding="utf-8").splitlines()
    assert header == [
        '"type_path","events","bytes","events_share","bytes_share","first","last","growth"'
    ]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No events: nothing that was asked for is there." in page


def test_hostile_events(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script>"
    event_type = (name, "a/b~", "\u2028")
    payload = JsonPayload.of({"value": 1, "a": name})
    event = Event(EventId(1, 1, 1), event_type, Timestamp(-5, 1), None, payload)
    other = replace(event, id=EventId(1, 1, 2), type=("a",), payload=None)
    fill(tmp_path / "events", [event, other])
    result = run_report("top", "--store", tmp_path / "events", "--out", tmp_path / "out")
    assert result.exit_code == 0, result
    assert (
        table(tmp_path / "out", "top")[0]["type_path"] == name.replace("/", "~1") + "/a~1b~0/\u2028"
    )
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("</script>") == 3


def test_text_that_a_spreadsheet_would_run(tmp_path: Path) -> None:
    harmless = ("a=1", "'=1", "", " =1")
    begins = ("=", "+", "-", "@", "\t", "\r")
    types = ["\0\0", *harmless, *(f"{i}cmd|' /C calc'!A0" for i in begins)]
    stored = [
        Event(EventId(1, i, 1), (name,), Timestamp(i, 0), Timestamp(i + 5, 0), JsonPayload.of(-i))
        for i, name in enumerate(types, 1)
    ]
    fill(tmp_path / "events", stored)
    paths = {type_path.encode((i,)): i[:1] in begins for i in types}
    result = run_report("latest", "latency", "--store", tmp_path / "events", "--out", tmp_path)
    assert result.exit_code == 0, result
    with (tmp_path / "latest.csv").open(newline="") as file:
        latest = list(csv.DictReader(file))
    assert {i["type_path"] for i in latest} == {
        f"'{path}" if is_formula else path.replace("\0", r"\x00")
        for path, is_formula in paths.items()
    }
    assert {i["payload"] for i in latest} == {f"'-{i}" for i in range(1, len(types) + 1)}
    assert {float(i["value"]) for i in latest} == {-i for i in range(1, len(types) + 1)}
    with (tmp_path / "latency.csv").open(newline="") as file:
        assert {float(i["min_s"]) for i in csv.DictReader(file)} == {-5}
    assert {i["type_path"] for i in table(tmp_path, "latest")} == set(paths)


def test_of_a_gateway(tmp_path: Path) -> None:
    async def make() -> tuple[Result, Result, Result]:
        async with served(tmp_path, plain_events(N_EVENTS)) as options:
            gateway = (
                "--gateway",
                f"{options['host']}:{options['port']}",
                "--out",
                tmp_path / "out",
            )
            files = ("--cert", options["cert"], "--key", options["key"])
            access = (*gateway, "--tls-ca", options["tls_ca"], *files)
            token = tmp_path / "token"
            token.write_text("secret\n")
            wrong = ("--token", "wrong", "--out", tmp_path / "declined")
            environment = {"MARINER_NAME": "app"}

            def run(*arguments: str | Path) -> Result:
                return run_report("top", "gaps", *arguments, **environment)

            return (
                await asyncio.to_thread(run, *access, "--token-file", token, "--type", "site/*"),
                await asyncio.to_thread(run, *access, *wrong),
                await asyncio.to_thread(run, *gateway, "--token", "secret"),
            )

    made, wrong_token, no_tls = asyncio.run(make())
    assert made.exit_code == 0, made
    assert sum(row["events"] for row in table(tmp_path / "out", "top")) == N_EVENTS
    # the gateway lives, they do not
    assert [row["is_open"] for row in table(tmp_path / "out", "gaps")] == [True] * 10
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "secret" not in page
    assert "declined: invalid client name or token" in error_of(wrong_token, 1)
    assert not (tmp_path / "declined").exists()
    assert error_of(no_tls, 1).startswith("host, port: 127.0.0.1:")


def make_lake(folder: Path, events: list[Event]) -> Path:
    """A lake whose numbers are not those at ``$.value``, but negative."""
    events = [
        replace(event, payload=JsonPayload.of({"value": n, "minus": -n}))
        for n, event in enumerate(events)
    ]
    append(folder, events, "$.minus")
    return folder


def test_a_lake_has_numbers_of_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make_lake(tmp_path / "lake", plain_events(1))
    monkeypatch.setattr("mariner_spark.reports.sources.count_events", None)  # would not get on
    result = run_report("--lake", lake, "--out", tmp_path / "out", "--value-path", "$.a")
    text = "value_path: $.a: the numbers of this lake are those at $.minus"
    assert error_of(result, 2) == text
    same = run_report("--lake", lake, "--out", tmp_path / "out", "--value-path", "$['minus']")
    assert isinstance(same.exception, TypeError)  # of the engine that there is not


def test_of_a_lake(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", plain_events(N_EVENTS))
    types = [f"--type={i}" for i in ("site/0/*", "site/?/d7", "site/1/d6", "?/0/*", "x/*", "d8")]
    names = ("top", "latest", "runs")
    result = run_report(
        *names, "--lake", lake, "--out", tmp_path, *types, "--to", "2025-01-01T00:03"
    )
    assert result.exit_code == 0, result
    expected = {*(f"site/0/d{i}" for i in range(5)), "site/1/d6", "site/1/d7"}
    assert {row["type_path"]: row["events"] for row in table(tmp_path, "top")} == dict.fromkeys(
        expected, 19
    )
    found = {row["type_path"]: row["value"] for row in table(tmp_path, "latest")}
    assert found["site/1/d7"] == -187
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<dt>Numbers</dt><dd>$.minus</dd>" in page
    [run] = table(tmp_path, "runs")
    assert run["up_s"] == 180


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected exactly one of --store, --lake and --gateway."),
        (
            ["--store", "a", "--gateway", "b"],
            "Expected exactly one of --store, --lake and --gateway.",
        ),
        (["nothing", "--store", "a"], "'nothing' is not one of 'activity', 'latest', 'values',"),
        (["--gateway", "here"], "--gateway needs --name, the name of this client."),
        (["--gateway", "a:b:c", "--name", "a"], "--gateway: 'a:b:c': expected HOST or HOST:PORT"),
        (
            ["--gateway", "a", "--name", "a", "--token", "b", "--token-file", "c"],
            "Give either --token or --token-file",
        ),
        (["--store", "a", "--from", "yesterday"], "'yesterday': expected now, how long ago"),
        (["--store", "a", "--type", "a/*/b"], "--type"),
        (["--store", "a", "--depth", "0"], "--depth"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run_report(*arguments, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--store", "a", "--value-path", "value"],
            "value_path: 'value': expected a path as $.value",
        ),
        (["--store", "a", "--from", "2025-01-01", "--to", "2024-01-01"], "from: is later than to"),
        (["--gateway", "a:99999", "--name", "a"], "host: 'a:99999': expected a number from 1 to"),
        (["--gateway", "a", "--name", "a", "--cert", "b"], "key: is needed with cert"),
        (["--gateway", "a", "--name", "a", "--token-file", "nowhere"], "nowhere: No such file"),
        (["--store", "/nowhere"], "--store: /nowhere: not an event store: no such directory"),
        (["--lake", "/nowhere"], "/nowhere: no lake: it has no Delta table events"),
    ],
)
def test_mistakes_are_told_before_an_engine_is_started(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mariner_spark.reports.sources.count_events", None)  # would not get on
    result = run_report(*arguments, "--out", tmp_path / "out")
    assert error_of(result, 2).startswith(message)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be(reported: Reported, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    text = error_of(run_report("top", "--store", reported.store, "--out", in_the_way / "out"), 1)
    assert text == f"{in_the_way / 'out'}: Not a directory"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )


def test_without_the_extra_the_command_says_what_to_install() -> None:
    hide = "import sys; sys.modules['pyspark'] = None; from mariner.cli import main; "
    done = run_python(hide + "main(['report', '--store', 'a'], prog_name='mariner')")
    assert (done.returncode, done.stdout) == (2, "")
    message = "mariner: error: this needs the extra 'spark': pip install 'mariner-gateway[spark]'"
    assert done.stderr.startswith(message)
    done = run_python(hide + "main(['report', '--help'], prog_name='mariner')")
    assert done.returncode == 0
    assert "availability  how long engines and clients were up" in done.stdout


def test_other_commands_do_not_wait_for_spark() -> None:
    imported = run_python("import sys, mariner.cli; print('pyspark' in sys.modules)")
    assert imported.stdout == "False\n", imported


def test_nothing_is_made_in_a_store(tmp_path: Path) -> None:
    store = tmp_path / "events"
    fill(store, [])
    page = store / "out" / "report.html"
    expected = f"{page}: is in the event store {store}: choose a path outside it"
    assert error_of(run_report("top", "--store", store, "--out", store / "out"), 1) == expected
    assert not page.parent.exists()


@pytest.mark.parametrize("pattern", ["\udcff", "a/\udcff/?"])
def test_a_type_that_is_not_utf_8_is_refused(tmp_path: Path, pattern: str) -> None:
    result = run_report("top", "--store", tmp_path, "--out", tmp_path / "out", "--type", pattern)
    assert result.exit_code == 2
    line = f"Error: Invalid value for '--type': {pattern!r} is not UTF-8 text"
    assert result.stderr.splitlines()[-1] == line


def test_the_time_of_a_page_without_selected_events_is_that_of_the_servers(
    reported: Reported, tmp_path: Path
) -> None:
    source = ("--store", reported.store, "--type", "no/such", "--out", tmp_path)
    result = run_report("runs", "top", *source)
    assert result.exit_code == 0, result
    chart = charts_of((tmp_path / "report.html").read_text(encoding="utf-8"))["runs-0"]
    domain = json.loads(chart["encoding"]["x"]["scale"]["domainRaw"]["signal"])
    assert domain[0] == T0 / 1_000
