"""``mariner subscribe``: where it begins, that it goes on, and what it says meanwhile."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.gateway import gateway
from tests.support.shell import Result, Shell, lines, read_line, shell_for, started

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_it_goes_on_over_a_restart(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(gateway(tmp_path))
        shell, address = shell_for("app", "secret", running.port), f"127.0.0.1:{running.port}"

        async def register(number: int) -> None:
            assert (await shell.run("register", stdin=lines(number, event_type="a"))).code == 0

        await register(1)
        command = ("subscribe", "--type", "a", "--count")
        live = await stack.enter_async_context(started(shell, *command, "2"))
        whole = await stack.enter_async_context(started(shell, *command, "3", "--from-start"))
        for process in (live, whole):
            assert await read_line(process.stderr) == f"mariner: subscribed at {address}\n"
        assert await read_line(whole.stderr) == "mariner: up to date\n"
        await register(2)
        seen = {live: await read_line(live.stdout), whole: await read_line(whole.stdout)}
        running.process.kill()
        await running.process.wait()
        await stack.enter_async_context(gateway(tmp_path, port=running.port))
        await register(3)
        for process, expected in ((live, [2, 3]), (whole, [1, 2, 3])):
            stdout, stderr = await process.communicate()
            assert process.returncode == 0
            assert Result(0, seen[process] + stdout.decode(), "").values == expected
            *lost, again = stderr.decode().removesuffix("mariner: up to date\n").splitlines()
            text = rf"mariner: client is not connected: {address}: .*; next try in [\d.]+ s"
            assert lost
            assert [i for i in lost if not re.fullmatch(text, i)] == []
            assert again == f"mariner: subscribed at {address}"


async def test_a_server_that_cannot_replay(tmp_path: Path) -> None:
    async with gateway(tmp_path, backend="dummy") as running:
        address = f"127.0.0.1:{running.port}"
        shell = shell_for("app", "secret", running.port)
        result = await shell.run("subscribe", "--from-start")
        assert (result.code, result.stderr) == (
            1,
            f"mariner: error: {address}: start: this server does not keep events\n",
        )
        async with started(shell, "subscribe") as process:
            assert await read_line(process.stderr) == f"mariner: subscribed at {address}\n"
            os.kill(running.pid, signal.SIGTERM)
            _, stderr = await process.communicate()
            assert await running.process.wait() == 0
    assert process.returncode == 1
    assert stderr.decode() == f"mariner: error: {address}: the server closed the connection\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--from-start", "--from-now", "--after", "1/1/1"),
            "Give either --from-start or --from-now or --after, not both.",
        ),
        (("--ack-after-flush",), "--ack-after-flush needs --cursor."),
    ],
)
async def test_options_that_exclude_each_other(options: tuple[str, ...], text: str) -> None:
    result = await shell_for("app", "secret", 1).run("subscribe", *options)
    assert result.code == 2
    assert f"Error: {text}\n" in result.stderr


async def test_a_cursor_goes_on_behind_what_was_acknowledged(shell: Shell) -> None:
    assert (await shell.run("register", stdin=lines(1, 2, event_type="read"))).code == 0
    command = ("subscribe", "--type", "read", "--cursor", "reader", "--count", "1")
    seen = [await shell.run(*command, *more) for more in ((), ("--ack-after-flush",), ())]
    assert [i.values for i in seen] == [[1], [1], [2]]


async def test_nobody_reads_what_it_says(shell: Shell) -> None:
    assert (await shell.run("register", stdin=lines(1, event_type="unread"))).code == 0
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = await shell.start_fresh(
            *("subscribe", "--type", "unread", "--from-start", "--count", "1"), stderr=writer
        )
    finally:
        os.close(writer)
    stdout, _ = await process.communicate()
    assert Result(process.returncode or 0, stdout.decode(), "").values == [1]
    assert process.returncode == 0


async def test_a_beginning_that_is_not_stored(shell: Shell) -> None:
    result = await shell.run("subscribe", "--after", "1/999999/1")
    text = "mariner: error: start: event 1/999999/1 is not stored here\n"
    assert result == Result(1, "", text)
