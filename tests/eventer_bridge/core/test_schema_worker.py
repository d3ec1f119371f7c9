"""Costly schema checks, in a real process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from eventer_bridge import limits
from eventer_bridge.core.payload_schemas import Check, PayloadSchemas, SchemaCheckError
from tests.support.schemas import ENDLESS, NUMBERS, checkers


def check(value: Any, *schemas: dict[str, Any]) -> Check:
    return [schema["$id"] for schema in schemas], memoryview(msgspec.json.encode(value))


@pytest.fixture
async def worker() -> AsyncIterator[PayloadSchemas]:
    it = PayloadSchemas([NUMBERS, ENDLESS])
    yield it
    await it.async_close()
    await it.async_close()
    assert checkers() == []


async def started() -> psutil.Process:
    while not (found := checkers()):
        await asyncio.sleep(0.01)
    return found[0]


async def test_the_first_that_is_refused_is_told(worker: PayloadSchemas) -> None:
    assert checkers() == []  # it starts when there is something to check
    assert await worker.first_refused([check([1], NUMBERS)] * 3) is None
    [process] = checkers()
    checks = [check([1], NUMBERS), check([1, "secret"], NUMBERS), check("secret", NUMBERS)]
    expected = (1, 'payload/1: value is not of type "integer"')
    assert await worker.first_refused(checks) == expected
    assert await worker.first_refused([check("a", NUMBERS, ENDLESS)]) == (
        0,
        'payload: value is not of type "array"',
    )
    assert checkers() == [process]


async def test_one_that_takes_too_long_is_refused(
    worker: PayloadSchemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await worker.first_refused([check([1], NUMBERS)]) is None
    [process] = checkers()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "SCHEMA_CHECK_TIMEOUT_S", 0.25)
        with pytest.raises(SchemaCheckError, match=r"^its schema check took longer than 0.25 s$"):
            await worker.first_refused([check([], ENDLESS)])
    assert not process.is_running()
    assert await worker.first_refused([check([1], NUMBERS)]) is None


async def test_one_that_is_not_even_read_is_refused(
    worker: PayloadSchemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await worker.first_refused([check([1], NUMBERS)]) is None
    checkers()[0].suspend()
    monkeypatch.setattr(limits, "SCHEMA_CHECK_TIMEOUT_S", 0.25)
    with pytest.raises(SchemaCheckError, match="took longer than"):
        await worker.first_refused([check([1] * 1_000_000, NUMBERS)])


async def test_a_process_that_dies_is_told_and_replaced(worker: PayloadSchemas) -> None:
    under_way = asyncio.ensure_future(worker.first_refused([check([], ENDLESS)]))
    (await started()).kill()
    with pytest.raises(SchemaCheckError, match="SIGKILL"):
        await under_way
    assert await worker.first_refused([check(["a"], NUMBERS)]) is not None


async def test_what_cannot_be_started_is_told(
    worker: PayloadSchemas, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleeping = tmp_path / "sleeping"
    sleeping.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeping.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "none"))
        with pytest.raises(SchemaCheckError, match=r"does not start: .*No such file"):
            await worker.first_refused([check([], NUMBERS)])
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SchemaCheckError, match="does not start: the process ended with code 1"):
            await worker.first_refused([check([], NUMBERS)])
        patch.setattr(sys, "executable", str(sleeping))
        patch.setattr(limits, "SCHEMA_START_TIMEOUT_S", 0.25)
        with pytest.raises(SchemaCheckError, match=r"does not start: not ready after 0.25 s$"):
            await worker.first_refused([check([], NUMBERS)])
    assert await worker.first_refused([check([], NUMBERS)]) is None


async def test_closing_ends_what_is_under_way() -> None:
    worker = PayloadSchemas([NUMBERS, ENDLESS])
    under_way = [
        asyncio.ensure_future(worker.first_refused([check([], ENDLESS)])) for _ in range(2)
    ]
    process = await started()
    while process.cpu_times().user < 1:  # it is at the check
        await asyncio.sleep(0.01)
    await worker.async_close()
    for i in under_way:
        with pytest.raises(SchemaCheckError):
            await i
    with pytest.raises(SchemaCheckError, match="closing"):
        await worker.first_refused([check([], NUMBERS)])
    assert checkers() == []


@pytest.mark.skipif(sys.platform != "linux", reason="what is asked for is in /proc")
async def test_it_has_nothing_of_the_gateway(worker: PayloadSchemas) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        await worker.first_refused([check([], NUMBERS)])
        directory = Path("/proc") / str(checkers()[0].pid)
        assert sorted(i.name for i in (directory / "fd").iterdir()) == ["0", "1", "2"]
        status = dict(i.split(":\t", 1) for i in (directory / "status").read_text().splitlines())
        for name in "SigBlk", "SigIgn":
            for number in signal.SIGTERM, signal.SIGINT, signal.SIGALRM:
                assert not int(status[name], 16) & (1 << (number - 1)), (name, number)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(reader)
        os.close(writer)
