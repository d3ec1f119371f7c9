"""Checks of chosen tokens: beside the loop, in turns, and no more than asked for."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.core.scrypt_checks import ScryptChecks
from eventer_bridge.core.tokens import TokenHash

SALT = bytes(16)
GOOD = TokenHash(tokens.ext_scrypt("good", SALT), SALT)
OTHER = TokenHash(bytes(32), SALT)


@pytest.fixture
async def checks() -> AsyncIterator[ScryptChecks]:
    checks = ScryptChecks()
    yield checks
    await checks.async_close()


class Gate:
    """Holds the thread until it is opened, and notes what it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[str] = []
        self.open = threading.Event()
        monkeypatch.setattr(tokens, "ext_scrypt", self.ext_scrypt)

    def ext_scrypt(self, token: str, salt: bytes) -> bytes:
        self.tokens.append(token)
        self.open.wait(60)
        return bytes(32)


async def test_what_is_found(checks: ScryptChecks) -> None:
    assert await checks.find("a", "good", [GOOD]) == 0
    assert await checks.find("a", "good", [OTHER, GOOD]) == 1
    assert await checks.find("a", "bad", [OTHER, GOOD]) is None
    assert len(checks) == 0


async def test_the_loop_goes_on_meanwhile(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ext_scrypt = tokens.ext_scrypt
    n_turns = 0
    most_turns = 0  # while one hash is made

    def ext_counted(token: str, salt: bytes) -> bytes:
        nonlocal most_turns
        before = n_turns
        found = ext_scrypt(token, salt)
        most_turns = max(most_turns, n_turns - before)
        return found

    monkeypatch.setattr(tokens, "ext_scrypt", ext_counted)
    while most_turns < 3:  # this process may have to wait for a processor meanwhile
        check = asyncio.create_task(checks.find("a", "bad", [GOOD] * 3))
        while not check.done():
            await asyncio.sleep(0.001)
            n_turns += 1


async def test_addresses_take_turns(checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    guesses = [asyncio.create_task(checks.find("a", f"a{i}", [GOOD])) for i in range(4)]
    await asyncio.sleep(0)
    honest = asyncio.create_task(checks.find("b", "b", [GOOD]))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(*guesses, honest)
    assert gate.tokens == ["a0", "a1", "b", "a2", "a3"] or gate.tokens[:2] == ["a0", "b"]


async def test_a_check_is_forgotten_when_its_client_leaves(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    running = asyncio.create_task(checks.find("a", "first", [GOOD]))
    while not gate.tokens:
        await asyncio.sleep(0.001)
    waiting = [asyncio.create_task(checks.find("a", "later", [GOOD])) for _ in range(10)]
    await asyncio.sleep(0)
    assert len(checks) == 10
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert len(checks) == 0
    gate.open.set()
    assert await running is None
    assert gate.tokens == ["first"]


async def test_a_check_that_does_not_begin_in_time(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    first = asyncio.create_task(checks.find("a", "first", [GOOD]))
    while not gate.tokens:
        await asyncio.sleep(0.001)
    monkeypatch.setattr(limits, "SCRYPT_TIMEOUT_S", 0.05)
    with pytest.raises(TimeoutError):
        await checks.find("a", "second", [GOOD])
    assert len(checks) == 0
    assert gate.tokens == ["first"]
    gate.open.set()
    assert await first is None


async def test_guessers_get_half_of_the_thread(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        rests.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    began_s = time.perf_counter()
    await checks.find("a", "bad", [GOOD])
    while not rests:
        await sleep(0)
    assert 0 < rests[0] <= time.perf_counter() - began_s
    await checks.find("a", "good", [GOOD])
    await sleep(0)
    assert len(rests) == 1
