"""``mariner register --buffer`` and ``mariner forward`` as processes."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.support.gateway import Gateway, gateway
from tests.support.shell import Result, Shell, lines, read_line, started

pytestmark = pytest.mark.asyncio(loop_scope="module")

APP: Final = {
    "name": "app",
    "token": "secret",
    "subscriptions": [["*"]],
    "register_events": [{"subscriptions": [["allowed", "*"]]}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path_factory.mktemp("gateway"), clients=[APP]) as running:
        yield running


@pytest.fixture
def buffer(tmp_path: Path) -> str:
    return str(tmp_path / "buffer")


async def status(shell: Shell, buffer: str) -> dict[str, Any]:
    result = await shell.run("forward", "--buffer", buffer, "--status", "--json")
    assert result.code == 0, result.stderr
    [found] = result.events
    assert isinstance(found, dict)
    return found


async def drained(shell: Shell, buffer: str) -> dict[str, Any]:
    while (found := await status(shell, buffer))["waiting"]:
        pass
    return found


async def stored(shell: Shell, event_type: str) -> list[Any]:
    result = await shell.run("query", "--type", event_type, "--order", "asc", "--format", "jsonl")
    return result.values


async def queued(shell: Shell, buffer: str, values: Sequence[Any], event_type: str) -> Result:
    text = lines(*values, event_type=event_type)
    return await shell.run("register", "--buffer", buffer, stdin=text, MARINER_NAME="")


async def test_queued_without_a_server_and_forwarded(shell: Shell, buffer: str) -> None:
    assert await queued(shell, buffer, range(1_500), "allowed/1") == Result(0, "", "")
    arguments = ("--batch", "2", *['{"type": "allowed/1"}'] * 3)
    result = await shell.run("register", "--buffer", buffer, *arguments, MARINER_NAME="")
    assert result == Result(0, "", "")
    assert (await status(shell, buffer))["waiting"] == 1_502
    async with started(shell, "forward", "--buffer", buffer) as forwarding:
        assert await read_line(forwarding.stderr) == f"mariner: forwarding {buffer}\n"
        assert re.fullmatch(r"mariner: connected: .*:\d+\n", await read_line(forwarding.stderr))
        assert await drained(shell, buffer) == {
            "waiting": 0,
            "oldest": None,
            "refused": 0,
            "last_reason": None,
            "bytes": 0,
            "forwarded": 1_502,
            "dropped": 0,
        }
        # what comes while it runs
        assert (await queued(shell, buffer, [1_500], "allowed/1")).code == 0
        await drained(shell, buffer)
        forwarding.send_signal(signal.SIGTERM)
        assert await forwarding.wait() == 0
    found = await shell.run("query", "--type", "allowed/1", "--order", "asc", "--format", "jsonl")
    values = [i["payload"] and i["payload"]["data"] for i in found.events]
    assert values == [*range(1_500), None, None, None, 1_500]
    assert all(i["source_timestamp"] for i in found.events)


async def test_killed_again_and_again(shell: Shell, buffer: str) -> None:
    assert (await queued(shell, buffer, range(5_000), "allowed/2")).code == 0
    for _ in range(3):
        before = (await status(shell, buffer))["forwarded"]
        async with started(shell, "forward", "--buffer", buffer) as forwarding:
            while (await status(shell, buffer))["forwarded"] == before < 5_000:
                pass
            forwarding.kill()
            await forwarding.wait()
    async with started(shell, "forward", "--buffer", buffer):
        await drained(shell, buffer)
    assert await stored(shell, "allowed/2") == [*range(5_000)]


async def test_two_that_forward(shell: Shell, buffer: str) -> None:
    async with started(shell, "forward", "--buffer", buffer) as forwarding:
        await read_line(forwarding.stderr)
        result = await shell.run("forward", "--buffer", buffer)
        text = f"{buffer}: another process forwards it, or this one already"
        assert result == Result(1, "", f"mariner: error: {text}\n")


async def test_the_fallback_is_used(shell: Shell, server: Gateway, buffer: str) -> None:
    assert (await queued(shell, buffer, [1], "allowed/3")).code == 0
    fallback = ("--port", "1", "--fallback", f"[127.0.0.1]:{server.port}")
    async with started(shell, "forward", "--buffer", buffer, *fallback) as forwarding:
        await drained(shell, buffer)
        await read_line(forwarding.stderr)
        connected = await read_line(forwarding.stderr)
        assert connected == f"mariner: connected: 127.0.0.1:{server.port}\n"
    assert await stored(shell, "allowed/3") == [1]


async def test_what_is_refused_for_good(shell: Shell, buffer: str) -> None:
    for values, event_type in ([1, 2], "allowed/4"), ([3, 4], "other"), ([5], "allowed/4"):
        assert (await queued(shell, buffer, values, event_type)).code == 0
    async with started(shell, "forward", "--buffer", buffer) as forwarding:
        await drained(shell, buffer)
        for _ in range(2):
            await read_line(forwarding.stderr)
        reason = "register_events[0]: no right to register 'other'"
        told = await read_line(forwarding.stderr)
        assert told == f"mariner: registration refused and put aside: {reason}\n"
    assert await stored(shell, "allowed/4") == [1, 2, 5]
    result = await shell.run("forward", "--buffer", buffer, "--status", MARINER_NAME="")
    assert re.fullmatch(
        "waiting       0\n"
        "forwarded     3\n"
        "refused       2\n"
        f"last refusal  {re.escape(reason)}\n"
        "dropped       0\n"
        r"bytes         \d+\n",
        result.stdout,
    )
    result = await shell.run("forward", "--buffer", buffer, "--retry-refused")
    assert result == Result(0, "queued again: 2 registrations\n", "")
    assert (await status(shell, buffer))["waiting"] == 2
    async with started(shell, "forward", "--buffer", buffer):
        await drained(shell, buffer)
    result = await shell.run("forward", "--buffer", buffer, "--drop-refused")
    assert result == Result(0, "dropped: 2 registrations\n", "")
    found = await status(shell, buffer)
    assert (found["refused"], found["dropped"], found["bytes"]) == (0, 2, 0)


async def test_many_processes_queue_at_once(shell: Shell, buffer: str) -> None:
    values = [range(i, i + 100) for i in range(0, 500, 100)]
    results = await asyncio.gather(*(queued(shell, buffer, i, "allowed/8") for i in values))
    assert results == [Result(0, "", "")] * 5
    async with started(shell, "forward", "--buffer", buffer):
        await drained(shell, buffer)
    found = await stored(shell, "allowed/8")
    assert sorted(found) == [*range(500)]
    for some in values:  # each keeps its order
        assert [i for i in found if i in some] == [*some]


async def test_ended_without_a_network(shell: Shell, buffer: str) -> None:
    assert (await queued(shell, buffer, [1], "allowed/9")).code == 0
    async with started(shell, "forward", "--buffer", buffer, "--port", "1") as forwarding:
        await read_line(forwarding.stderr)
        told = await read_line(forwarding.stderr)
        assert told.startswith("mariner: client is not connected: 127.0.0.1:1: ")
        forwarding.send_signal(signal.SIGTERM)
        assert await forwarding.wait() == 0
    assert (await status(shell, buffer))["waiting"] == 1


async def test_full(shell: Shell, buffer: str) -> None:
    bound = ("--buffer", buffer, "--buffer-bytes", "500")
    text = lines(*range(1_500), event_type="allowed/5")
    result = await shell.run("register", *bound, stdin=text)
    assert (result.code, result.stdout) == (1, "")
    used = r"the buffer is full: \d+ of 500 bytes are used, \d+ are needed\n"
    assert re.fullmatch(rf"mariner: error: line 3: {re.escape(buffer)}: {used}", result.stderr)
    assert (await status(shell, buffer))["waiting"] == 2
    result = await shell.run("register", *bound, "--when-full", "drop-oldest", stdin=text)
    assert result == Result(0, "", "")
    found = await status(shell, buffer)
    assert (found["waiting"], found["dropped"]) == (2, 1_500)


async def test_wrong_input(shell: Shell, buffer: str) -> None:
    text = lines(1, event_type="allowed/6") + "{\n" + lines(2, event_type="allowed/6")
    result = await shell.run("register", "--buffer", buffer, stdin=text)
    assert result.code == 2
    assert result.stderr.startswith("mariner: error: line 2: ")
    result = await shell.run("register", "--buffer", buffer, '{"type": "*"}')
    assert result.code == 2
    assert (await status(shell, buffer))["waiting"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("register", "{}"), "Missing option '--name' (env var: 'MARINER_NAME')."),
        (("forward", "--buffer", "."), "Missing option '--name' (env var: 'MARINER_NAME')."),
        (("forward",), "Missing option '--buffer'."),
        (
            ("forward", "--buffer", ".", "--fallback", "host"),
            "Invalid value for '--fallback': 'host': expected HOST:PORT",
        ),
    ],
)
async def test_wrong_usage(arguments: Sequence[str], text: str) -> None:
    result = await Shell({}).run(*arguments)
    assert result.code == 2
    assert result.stderr.endswith(f"Error: {text}\n")


async def test_there_is_no_buffer(shell: Shell, buffer: str) -> None:
    result = await shell.run("forward", "--buffer", buffer, "--status")
    assert result == Result(2, "", f"mariner: error: {buffer}: there is no buffer\n")


async def test_a_damaged_buffer(shell: Shell, buffer: str) -> None:
    assert (await queued(shell, buffer, [1], "allowed/7")).code == 0
    path = Path(buffer, "buffer.sqlite")
    await asyncio.to_thread(path.write_bytes, b"\xa5" * 8_192)
    text = f"mariner: error: {buffer}: the buffer is damaged: file is not a database\n"
    for arguments in ("forward",), ("forward", "--status"), ("register", '{"type": "a"}'):
        result = await shell.run(*arguments, "--buffer", buffer)
        assert result == Result(1, "", text)
