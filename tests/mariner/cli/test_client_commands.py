"""``mariner register|query|subscribe`` as processes, against a real gateway."""

import json
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mariner.cli import main
from tests.mariner.cli.conftest import READER
from tests.mariner.client.servers import same_page, scripted
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import CLIENTS, hat_gateway
from tests.support.shell import Result, Shell, lines, read_line, shell_for, started

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_EVENT = "expected a JSON object, or TYPE PAYLOAD alone"


# --- register and query -------------------------------------------------------------------------


async def test_register_and_query_back(shell: Shell) -> None:
    events = [
        {"type": "back/1", "payload": {"ä": [1.5, None]}, "source_timestamp": None},
        {"type": ["back", "1"], "source_timestamp": "2024-05-01T12:00:00.000001Z"},
        {"type": '["back", "with/slash"]', "source_timestamp": 1714564800.5, "payload": "text"},
        {"type": "back/2", "payload": {"payload_type": "json", "data": None}},
        {
            "type": "back/2",
            "payload": {"payload_type": "binary", "data_type": "t", "data": "AP8="},
            "source_timestamp": {"s": -1, "us": 999_999},
        },
    ]
    stdin = "\n\n".join(json.dumps(event) for event in events)
    registered = await shell.run("register", stdin=stdin)
    assert registered.code == 0, registered.stderr
    assert registered.stderr == ""
    assert [event["type"] for event in registered.events] == [
        ["back", "1"],
        ["back", "1"],
        ["back", "with/slash"],
        ["back", "2"],
        ["back", "2"],
    ]
    assert [event["payload"] for event in registered.events] == [
        {"payload_type": "json", "data": {"ä": [1.5, None]}},
        None,
        {"payload_type": "json", "data": "text"},
        {"payload_type": "json", "data": None},
        {"payload_type": "binary", "data_type": "t", "data": "AP8="},
    ]
    assert [event["source_timestamp"] for event in registered.events] == [
        None,
        {"s": 1_714_564_800, "us": 1},
        {"s": 1_714_564_800, "us": 500_000},
        None,
        {"s": -1, "us": 999_999},
    ]

    queried = await shell.run("query", "--type", "back/*", "--order", "asc")
    assert queried == registered
    # what was queried can be registered as it is
    again = await shell.run("register", "--batch", "100", stdin=queried.stdout)
    assert again.code == 0, again.stderr
    assert [(i["type"], i["payload"], i["source_timestamp"]) for i in again.events] == [
        (i["type"], i["payload"], i["source_timestamp"]) for i in queried.events
    ]
    assert len({event["id"]["session"] for event in again.events}) == 1


async def test_register_arguments(shell: Shell) -> None:
    result = await shell.run(
        "register", '{"type": "arguments", "payload": 1}', '{"type": "arguments", "payload": 2}'
    )
    assert result.code == 0
    assert result.values == [1, 2]
    quiet = await shell.run("register", "--quiet", '{"type": "arguments", "payload": 3}')
    assert quiet == (0, "", "")
    latest = await shell.run("query", "latest", "--type", "arguments")
    assert latest.values == [3]


async def test_register_a_type_and_a_payload(shell: Shell, server: Gateway) -> None:
    for payload, value in (("on", "on"), ('{"on": true}', {"on": True}), ("-5", -5)):
        result = await shell.run("register", "typed/1", payload, "--batch", "2")
        assert (result.code, result.stderr, result.values) == (0, "", [value])
    assert (await shell.run("query", "latest", "--type", "typed/1")).values == [-5]
    broken = await shell.run("register", "typed/1", '{"on": tru}')
    assert broken.code == 2
    assert re.match("mariner: error: 'typed/1': payload: expected JSON: JSON is", broken.stderr)
    more = await shell.run("register", "typed/1", "on", "off")
    assert more == (2, "", f"mariner: error: argument 1: {NO_EVENT}\n")
    option = await shell.run("register", "typed/1", "--quite")
    assert option.code == 2
    assert "--quite" in option.stderr
    assert "Did you mean" in option.stderr
    assert "--quiet" in option.stderr
    refused = await shell_for("reader", "reads", server.port).run("register", "typed/1", "on")
    assert refused.code == 1
    assert refused.stderr == (
        "mariner: error: 'typed/1': register_events[0]: no right to register 'typed/1'\n"
    )


async def test_an_event_is_one_line(shell: Shell) -> None:
    event = '{"type": "lines", "payload": {\r\n"a": "\\n"\n}}'
    result = await shell.run("register", event)
    assert result.code == 0
    assert len(result.stdout.splitlines()) == 1
    assert result.values == [{"a": "\n"}]


async def test_register_batches(shell: Shell) -> None:
    stdin = lines(*range(10), event_type="batches")
    result = await shell.run("register", "--batch", "4", stdin=stdin)
    assert result.values == list(range(10))
    sessions = [event["id"]["session"] for event in result.events]
    assert [sessions.count(i) for i in sorted(set(sessions))] == [4, 4, 2]


async def test_register_many_from_a_file(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(lines(*range(5_000), event_type="file"))
    with path.open("rb") as stdin:
        process = await shell.start_fresh("register", "--batch", "7", stdin=stdin)
        stdout, _ = await process.communicate()
    assert process.returncode == 0
    assert Result(0, stdout.decode(), "").values == list(range(5_000))
    # more than one page
    queried = await shell.run("query", "--type", "file", "--order", "asc")
    assert queried.values == list(range(5_000))


async def test_register_answers_while_the_input_is_open(shell: Shell) -> None:
    async with started(shell, "register") as process:
        assert process.stdin is not None
        for i in range(2):
            process.stdin.write(lines(i, event_type="open").encode())
            assert json.loads(await read_line(process.stdout))["payload"]["data"] == i
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert await process.stderr.read() == b""  # type: ignore[union-attr]  # it is a pipe


async def test_byte_order_marks_before_the_input(shell: Shell) -> None:
    result = await shell.run("register", stdin="\ufeff" + lines(5, event_type="mark"))
    assert result.values == [5], result.stderr
    with tempfile.TemporaryFile() as stdin:
        stdin.write(lines(5, event_type="mark").encode("utf-16"))
        stdin.seek(0)
        process = await shell.start_fresh("register", stdin=stdin)
        _, stderr = await process.communicate()
    assert process.returncode == 2
    assert stderr.decode() == (
        "mariner: error: standard input: begins with the byte order mark of UTF-16,"
        " expected UTF-8\n"
    )


async def test_wrong_line(shell: Shell) -> None:
    before = lines(1, 2, event_type="wrong/line")
    after = lines(3, event_type="wrong/line")
    wrong = '\n{"type": "a", "paylod": 1}\n'
    result = await shell.run("register", "--batch", "5", stdin=before + wrong + after)
    assert result.code == 2
    assert result.values == [1, 2]
    assert result.stderr == "mariner: error: line 4: Object contains unknown field `paylod`\n"
    latest = await shell.run("query", "latest", "--type", "wrong/line")
    assert latest.values == [2], "nothing after the wrong line is registered"


async def test_wrong_argument_registers_nothing(shell: Shell) -> None:
    result = await shell.run("register", '{"type": "wrong/argument"}', "1")
    assert result == (2, "", f"mariner: error: argument 2: {NO_EVENT}\n")
    assert await shell.run("query", "--type", "wrong/argument") == (0, "", "")


async def test_a_file_as_argument_of_register(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(lines(1, event_type="a"))
    result = await shell.run("register", str(path))
    reason = "is a file: register its lines from standard input (register < FILE)"
    assert result == (2, "", f"mariner: error: argument 1: '{path}' {reason}\n")
    for name in (str(tmp_path), "x" * 5_000):
        result = await shell.run("register", name)
        assert result.code == 2
        assert result.stderr == f"mariner: error: argument 1: {NO_EVENT}\n"
    result = await shell.run("register", str(path), str(path))
    assert result == (2, "", f"mariner: error: argument 1: '{path}' {reason}\n")


async def test_refused_events(server: Gateway) -> None:
    shell = shell_for("reader", "reads", server.port)
    stdin = lines(1, event_type="allowed/a") + lines(2, event_type="forbidden")
    result = await shell.run("register", stdin=stdin)
    assert result.code == 1
    assert result.values == [1]
    assert result.stderr == (
        "mariner: error: line 2: register_events[0]: no right to register 'forbidden'\n"
    )
    batch = await shell.run("register", "--batch", "2", stdin=stdin)
    assert batch.code == 1
    assert batch.stdout == ""
    assert batch.stderr == (
        "mariner: error: line 1 to line 2: register_events[1]: no right to register 'forbidden'\n"
    )


async def test_nothing_is_sent_after_a_refusal(server: Gateway) -> None:
    shell = shell_for("reader", "reads", server.port)
    async with started(shell, "register") as process:
        assert process.stdin is not None
        process.stdin.write(lines(1, event_type="forbidden").encode())
        # it ends although its input is still open
        assert await process.wait() == 1


async def test_register_loses_the_server(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="memory") as running:
        shell = shell_for("app", "secret", running.port)
        async with started(shell, "register") as process:
            assert process.stdin is not None
            process.stdin.write(lines(1, event_type="lost").encode())
            await read_line(process.stdout)
            os.kill(running.pid, signal.SIGKILL)
            # it ends although its input is still open
            assert await process.wait() == 1
            line = await read_line(process.stderr)
    assert re.fullmatch(r"mariner: error: 127\.0\.0\.1:\d+: .*(closed|reset|lost).*\n", line)


async def test_server_without_reasons(tmp_path: Path) -> None:
    async with hat_gateway(tmp_path, clients=[*CLIENTS, READER]) as running:
        shell = shell_for("app", "secret", running.mariner_port)
        registered = await shell.run("register", stdin=lines(*range(20), event_type="hat"))
        assert registered.values == list(range(20))
        queried = await shell.run("query", "--type", "hat", "--limit", "3")
        assert queried.values == [19, 18, 17]
        # what it does not know is not taken for an answer
        unknown = await shell.run("query", "--type", "hat", "--payload", "3")
        assert unknown.code == 1
        assert unknown.stdout == ""
        assert unknown.stderr == (
            "mariner: error: query_res: events that were not requested:"
            " the server does not know 'payload'\n"
        )
        assert (await shell.run("ping", "--count", "1")).code == 0
        refused = await shell_for("reader", "reads", running.mariner_port).run(
            "register", '{"type": "forbidden"}'
        )
    assert refused.code == 1
    assert refused.stderr == ("mariner: error: argument 1: refused; the server gave no reason\n")


# --- query --------------------------------------------------------------------------------------


async def test_query_bounds(shell: Shell) -> None:
    stdin = "".join(
        json.dumps({"type": "bounds", "payload": i, "source_timestamp": 1_000 + i}) + "\n"
        for i in range(5)
    )
    registered = await shell.run("register", stdin=stdin)
    first, last = (registered.events[i]["timestamp"] for i in (1, 3))

    async def query(*options: str) -> list[Any]:
        result = await shell.run("query", "timeseries", "--type", "bounds", *options)
        assert result.code == 0, result.stderr
        return result.values

    assert await query() == [4, 3, 2, 1, 0]
    assert await query("--limit", "2") == [4, 3]
    assert await query("--order", "asc", "--order-by", "source", "--limit", "1") == [0]
    assert await query("--source-from", "1001.0", "--source-to", "1970-01-01T00:16:43Z") == [
        3,
        2,
        1,
    ]
    seconds = [f"{i['s']}.{i['us']:06}" for i in (first, last)]
    assert await query("--from", seconds[0], "--to", seconds[1]) == [3, 2, 1]


async def test_query_by_id_payload_and_unique_type(shell: Shell) -> None:
    binary = {"payload_type": "binary", "data_type": "t", "data": "AP8="}
    payloads = [1, True, {"a": [1], "b": None}, 1.0, binary, {"payload_type": "json", "data": None}]
    stdin = "".join(
        json.dumps({"type": f"conditions/{i % 2}", "payload": payload}) + "\n"
        for i, payload in enumerate(payloads)
    )
    registered = (await shell.run("register", stdin=stdin)).events
    assert len(registered) == 6
    ids = ["{server}/{session}/{instance}".format(**event["id"]) for event in registered]

    async def query(*options: str) -> list[int]:
        result = await shell.run("query", "--type", "conditions/?", "--order", "asc", *options)
        assert result.code == 0, result.stderr
        return [registered.index(event) for event in result.events]

    assert await query("--id", ids[4], "--id", "1/1/77", "--id", ids[0]) == [0, 4]
    assert await query("--payload", "1") == [0, 3]
    assert await query("--payload", '{"b": null, "a": [1.0]}') == [2]
    assert await query("--payload", json.dumps(binary)) == [4]
    assert await query("--payload", "null") == [5]
    assert await query("--unique-type", "--id", ids[2], "--id", ids[4]) == [2]


async def test_query_server(shell: Shell) -> None:
    registered = await shell.run("register", stdin=lines(1, 2, event_type="of/server"))
    result = await shell.run("query", "server", "--server-id", "1", "--persisted")
    assert result.code == 0
    events = [e for e in result.events if e["type"][0] != "event"]
    assert events[-2:] == registered.events
    assert (await shell.run("query", "server", "--server-id", "9")) == (0, "", "")


async def test_query_table(shell: Shell) -> None:
    event = {"type": ["table", "\x1b[31m"], "payload": {"long": "x" * 200}, "source_timestamp": 0}
    binary = {"payload_type": "binary", "data_type": "t", "data": "AP8="}
    other = {"type": "table/b", "payload": binary}
    registered = await shell.run("register", json.dumps(event), json.dumps(other))
    result = await shell.run("query", "--type", "table/*", "--order", "asc", "--format", "table")
    assert result.code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["ID", "TYPE", "TIMESTAMP", "SOURCE", "TIMESTAMP", "PAYLOAD"]
    identifier = registered.events[0]["id"]
    assert first.split()[:2] == [
        f"1/{identifier['session']}/{identifier['instance']}",
        r"table/\x1b[31m",
    ]
    assert "1970-01-01T00:00:00.000000Z" in first
    assert first.endswith('{"long":"' + "x" * 200 + '"}') or "x" * 200 in first
    assert second.endswith("2 bytes of 't'")


async def test_query_in_a_terminal(shell: Shell) -> None:
    stdin = lines(*range(101), event_type="many")
    assert (await shell.run("register", "--quiet", "--batch", "101", stdin=stdin)).code == 0

    async def query(*options: str) -> tuple[list[Any], str]:
        more = ("query", "--type", "many", "--format", "jsonl", *options)
        code, text = await shell.run_in_terminal(*more)
        assert code == 0, text
        events, _, message = text.partition("mariner: ")
        return Result(0, events, "").values, message

    said = "only the {} 100 events, there may be more: see --all and --limit\n"
    assert await query() == ([*range(100, 0, -1)], said.format("newest"))
    assert await query("--order", "asc") == ([*range(100)], said.format("first"))
    assert await query("--all") == ([*range(100, -1, -1)], "")
    assert await query("--limit", "100") == ([*range(100, 0, -1)], "")
    assert len((await shell.run("query", "--type", "many")).values) == 101
    code, text = await shell.run_in_terminal("query", "--type", "many")
    assert code == 0
    assert text.startswith("\x1b[1mID")  # a table


async def test_progress_is_shown_in_a_terminal(shell: Shell) -> None:
    stdin = lines(*range(3), event_type="shown")
    code, text = await shell.run_in_terminal("register", "--quiet", stdin=stdin)
    assert code == 0
    assert re.search(r"register .* 3 ", text)
    code, text = await shell.run_in_terminal("query", "--type", "shown", "--payload", "1")
    assert code == 0
    assert re.search(r"query .*100%", text)
    assert re.search(r"\n1/\d+/1 +shown .* 1\n$", text)
    quiet = await shell.run("query", "--type", "shown", "--payload", "1")
    assert (quiet.values, quiet.stderr) == ([1], "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--limit", "1", "--all"], "Give either --limit or --all, not both."),
        (["--type", ""], "Invalid value for '--type': an empty event type is written as []"),
        (["--type", "[1"], "Invalid value for '--type': expected a JSON array of strings"),
        (["--type", "a/*/b"], "Invalid value for '--type': "),
        (["--from", "noon"], "Invalid value for '--from': 'noon': expected now, how long ago"),
        (["--id", "1/2"], "Invalid value for '--id': '1/2': expected SERVER/SESSION/INSTANCE"),
        (["--payload", "{"], "Invalid value for '--payload': expected JSON: Input data was"),
        (["latest", "--id", "1/2/3"], "--id does not apply to a query of 'latest'."),
        (["server", "--unique-type"], "--unique-type does not apply to a query of 'server'."),
        (["latest", "--from", "1"], "--from does not apply to a query of 'latest'."),
        (["server", "--type", "a"], "--type does not apply to a query of 'server'."),
        (["server"], "A query of 'server' needs --server-id."),
        (["newest"], "'newest' is not one of 'latest', 'timeseries', 'server'"),
    ],
)
async def test_query_usage(arguments: list[str], text: str) -> None:
    # nothing is connected to, so that it need not be a process
    result = CliRunner().invoke(main, ["query", "--port", "1", "--name", "app", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert text in result.stderr


# --- output that nobody reads, or that is full --------------------------------------------------


async def test_closed_stdout(shell: Shell, server: Gateway) -> None:
    stdin = lines(*["x" * 10_000] * 500, event_type="pipe")
    assert (await shell.run("register", "--batch", "500", "--quiet", stdin=stdin)).code == 0
    async with started(shell, "query", "--type", "pipe", is_fresh=True) as process:
        transport = process._transport  # type: ignore[attr-defined]  # no public way to it
        await read_line(process.stdout)
        transport.get_pipe_transport(1).close()
        assert await process.wait() == 141
        assert await process.stderr.read() == b""  # type: ignore[union-attr]  # it is a pipe


async def test_full_stdout(shell: Shell) -> None:
    assert (await shell.run("register", "--quiet", '{"type": "full"}')).code == 0
    full = os.open("/dev/full", os.O_WRONLY)
    process = await shell.start_fresh("query", "--type", "full", stdout=full)
    os.close(full)
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert stderr == b"mariner: error: standard output: No space left on device\n"


# --- subscribe ----------------------------------------------------------------------------------


async def test_subscribe(shell: Shell, server: Gateway) -> None:
    options = ("--type", "news/?", "--type", '["a/b"]', "--count", "3", "--persisted")
    async with started(shell, "subscribe", *options) as process:
        assert (
            await read_line(process.stderr) == f"mariner: subscribed at 127.0.0.1:{server.port}\n"
        )
        stdin = (
            lines(1, event_type="news/a")
            + lines(2, event_type="other")
            + lines(3, event_type='["a/b"]')
            + lines(4, 5, event_type="news/b")
        )
        assert (await shell.run("register", stdin=stdin)).code == 0
        stdout, stderr = await process.communicate()
    assert process.returncode == 0
    assert stderr == b""
    assert Result(0, stdout.decode(), "").values == [1, 3, 4]


async def test_subscribe_prints_each_event_at_once_until_interrupted(shell: Shell) -> None:
    async with started(shell, "subscribe", "--type", "live", "--server-id", "1") as process:
        await read_line(process.stderr)
        for i in range(2):
            await shell.run("register", json.dumps({"type": "live", "payload": i}))
            assert json.loads(await read_line(process.stdout))["payload"]["data"] == i
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 130


@pytest.mark.parametrize(
    "more", [("timeseries",), ("timeseries", "--order", "asc"), ("server", "--server-id", "1")]
)
async def test_a_server_that_sends_the_same_page_again(more: tuple[str, ...]) -> None:
    async with scripted(same_page) as server:
        shell = shell_for("app", "secret", server.port)
        result = await shell.run("query", *more)
    assert result.code == 1
    assert re.search(r"answers without progress: event 1/[12]/1 comes again", result.stderr)
