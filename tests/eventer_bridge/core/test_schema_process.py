"""The process of schema checks, left alone."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

import msgspec
import pytest

from tests.support.schemas import ENDLESS, NUMBERS


def message(data: bytes) -> bytes:
    return len(data).to_bytes(8) + data


async def start(timeout_s: float) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "eventer_bridge.core.payload_schemas",
        str(timeout_s),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(message(json.dumps([NUMBERS, ENDLESS]).encode()))
    assert await process.stdout.readexactly(8) == message(b"")
    return process


async def test_a_check_that_nobody_ends_ends_by_itself() -> None:
    process = await start(0.25)
    assert process.stdin is not None
    process.stdin.write(message(msgspec.msgpack.encode([([ENDLESS["$id"]], b"[]")])))
    try:
        assert await process.wait() == -signal.SIGALRM
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("data", [b"", b"\0" * 7, message(b"whole")[:-1]])
async def test_it_ends_with_its_input(data: bytes) -> None:
    process = await start(600)
    assert (await process.communicate(data))[0] == b""
    assert process.returncode == 0
