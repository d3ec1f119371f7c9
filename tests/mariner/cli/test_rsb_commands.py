"""``mariner rsb listen|send`` as processes, against a real gateway."""

import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.rsb.peers import RawPeer, raw_server
from tests.eventer_bridge.rsb.samples import sample
from tests.eventer_bridge.rsb.test_bridge import bridging, rsb_port, stats
from tests.support import forked
from tests.support.waiting import until


class Shell(NamedTuple):
    """Runs the command against a gateway."""

    port: int

    async def start(self, *arguments: str) -> Process:
        command, *others = arguments
        return await forked.start(
            *("mariner", "rsb", command, "--port", str(self.port), *others),
            environment=os.environ,
            stdin=PIPE,
        )

    async def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
        process = await self.start(*arguments)
        stdout, stderr = await process.communicate(stdin)
        return process.returncode, stdout.decode(), stderr.decode()

    async def listen(self, *arguments: str) -> Process:
        """Start ``listen``, until it does."""
        process = await self.start("listen", *arguments)
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        assert line == f"mariner: listening on {arguments[0]} at 127.0.0.1:{self.port}\n"
        return process


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with bridging() as running:
        yield running


@pytest.fixture
def shell(gateway: Gateway) -> Shell:
    return Shell(rsb_port(gateway))


async def test_send_and_listen(gateway: Gateway, shell: Shell) -> None:
    listener = await shell.listen("/robot/", "--count", "6")
    values = ("null", "true", "-3", "1.5", '"Tür"')
    sent = await shell.run("send", "/robot/arm", "--method", "SET", "--info", "a=b=c", *values)
    assert sent == (0, "", "")
    assert (await shell.run("send", "/elsewhere/", "1"))[0] == 0
    assert (await shell.run("send", "/robot/", "--schema", ".x.Y", '"AP8="'))[0] == 0
    stdout, stderr = await listener.communicate()
    assert (listener.returncode, stderr) == (0, b"")
    events = [json.loads(line) for line in stdout.splitlines()]
    assert [(i["scope"], i["rsb"]["schema"], i["value"]) for i in events] == [
        ("/robot/arm/", "void", None),
        ("/robot/arm/", "bool", True),
        ("/robot/arm/", "int64", -3),
        ("/robot/arm/", "double", 1.5),
        ("/robot/arm/", "utf-8-string", "Tür"),
        ("/robot/", ".x.Y", "AP8="),
    ]
    first: dict[str, Any] = events[0]["rsb"]
    assert (first["method"], first["sequence"]) == ("SET", 0)
    assert first["meta"].pop("user_infos") == {"a": "b=c"}
    times = list(first["meta"].values())
    assert len(times) == 4
    assert times == sorted(times)
    await until(lambda: stats(gateway).events_registered == 7)


async def test_lines_of_standard_input(gateway: Gateway, shell: Shell) -> None:
    assert await shell.run("send", "/a", stdin=b"1\n\n2.5\n") == (0, "", "")
    await until(lambda: stats(gateway).events_registered == 2)
    code, _, stderr = await shell.run("send", "/a", stdin=b"3\n[1]\n4\n")
    assert code == 2
    assert stderr == ("mariner: error: line 2: expected null, true, false, a number or a string\n")
    await until(lambda: stats(gateway).events_registered == 3)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("send", "a", "1"), "scope 'a/': expected '/', or '/a/b/' of letters"),
        (("send", "/a", "x"), "argument 1: JSON is malformed"),
        (("send", "/a", "--schema", "bool", "1"), "schema 'bool': expected true or false"),
        (("send", "/a", "--info", "x", "1"), "'x': expected KEY=VALUE"),
        (("listen", "/a b"), "scope '/a b/': expected"),
    ],
)
async def test_wrong_input(shell: Shell, arguments: tuple[str, ...], reason: str) -> None:
    code, stdout, stderr = await shell.run(*arguments)
    assert (code, stdout) == (2, "")
    assert reason in stderr


async def test_an_interrupted_listener_ends_with_130(shell: Shell) -> None:
    listener = await shell.listen("/")
    listener.send_signal(signal.SIGINT)
    stdout, stderr = await listener.communicate()
    assert (listener.returncode, stdout, stderr) == (130, b"", b"")


async def test_a_lost_or_missing_bus_is_exit_code_1() -> None:
    async with raw_server() as server:
        shell = Shell(server.port)
        process = await shell.start("listen", "/")
        peer = await server.accept()
        peer.send(sample(1))
        peer.writer.close()
        stdout, stderr = await process.communicate()
        assert process.returncode == 1
        assert json.loads(stdout)["value"] == "hello"
        assert stderr.endswith(b"peer closed\n")
    for command in (("listen", "/"), ("send", "/", "1")):
        code, stdout_text, stderr_text = await shell.run(*command)
        assert (code, stdout_text) == (1, "")
        assert stderr_text == f"mariner: error: 127.0.0.1:{shell.port}: connection refused\n"


async def test_who_sends_waits_until_the_server_has_read_it() -> None:
    async with raw_server() as server:
        process = await Shell(server.port).start("send", "/a", '"' + "x" * 1000 + '"')
        peer: RawPeer = await server.accept()
        assert (await peer.receive()).data == b"x" * 1000
        assert await peer.is_ended()
        assert process.returncode is None
        peer.writer.close()
        await process.communicate()
        assert process.returncode == 0
