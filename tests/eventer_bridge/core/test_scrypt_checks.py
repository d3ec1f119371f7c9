"""Checks of chosen tokens: beside the loop, in turns, and no more than asked for."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.core.tokens import ScryptChecks, TokenHash

SALT = bytes(16)
GOOD = TokenHash(tokens.scrypt("good", SALT), SALT)
OTHER = TokenHash(bytes(32), SALT)


@pytest.fixture
async def checks() -> AsyncIterator[ScryptChecks]:
    checks = ScryptChecks()
    yield checks
    await checks.async_close()


class Gate:
    """Holds the thread until it is opened, and notes what it is asked for; all have OTHER."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[str] = []
        self.open = threading.Event()
        monkeypatch.setattr(tokens, "scrypt", self.scrypt)

    def scrypt(self, token: str, salt: bytes) -> bytes:
        self.tokens.append(token)
        self.open.wait(60)
        return bytes(32)


async def test_what_is_found(checks: ScryptChecks) -> None:
    assert await checks.find("a", "app", "good", [GOOD]) == 0
    assert await checks.find("a", "app", "good", [OTHER, GOOD]) == 1
    assert await checks.find("a", "app", "bad", [OTHER, GOOD]) is None
    assert len(checks) == 0


async def test_the_loop_goes_on_meanwhile(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrypt = tokens.scrypt
    n_turns = 0
    most_turns = 0  # while one hash is made

    def ext_counted(token: str, salt: bytes) -> bytes:
        nonlocal most_turns
        before = n_turns
        found = scrypt(token, salt)
        most_turns = max(most_turns, n_turns - before)
        return found

    monkeypatch.setattr(tokens, "scrypt", ext_counted)
    while most_turns < 3:  # this process may have to wait for a processor meanwhile
        check = asyncio.create_task(checks.find("a", "app", "bad", [GOOD] * 3))
        while not check.done():
            await asyncio.sleep(0.001)
            n_turns += 1


async def begun(gate: Gate, n: int = 1) -> None:
    while len(gate.tokens) < n:
        await asyncio.sleep(0.001)


def start(checks: ScryptChecks, address: str, name: str, token: str) -> asyncio.Task[int | None]:
    return asyncio.create_task(checks.find(address, name, token, [GOOD]))


async def test_addresses_take_turns(checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    guesses = [start(checks, "a", "app", "a0")]
    await begun(gate)
    guesses += [start(checks, "a", "app", f"a{i}") for i in range(1, 4)]
    guesses += [start(checks, "b", "app", f"b{i}") for i in range(4)]
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(*guesses)
    assert [token[0] for token in gate.tokens] == [*"abababab"]


async def test_what_was_computed_is_remembered(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    for _ in range(3):
        assert await checks.find("a", "app", "wrong", [GOOD]) is None
        assert await checks.find("b", "app", "right", [OTHER]) == 0
    assert gate.tokens == ["wrong", "right"]
    gate.open.clear()
    other = start(checks, "c", "app", "other")
    await begun(gate, 3)
    assert await checks.find("b", "app", "right", [OTHER]) == 0  # waits for nobody
    gate.open.set()
    await other
    gate.tokens.remove("other")
    # the time that it takes says nothing of other names, nor of other hashes
    await checks.find("a", "other", "wrong", [GOOD])
    await checks.find("a", "app", "wrong", [OTHER])
    assert len(gate.tokens) == 4
    checks.forget()
    await checks.find("b", "app", "right", [OTHER])
    assert len(gate.tokens) == 5


async def test_what_is_remembered_is_bounded(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    monkeypatch.setattr(limits, "MAX_KNOWN_CHECKS", 3)
    await checks.find("b", "app", "right", [OTHER])
    for i in range(5):
        await checks.find("a", "app", f"{i}", [GOOD])
    await checks.find("b", "app", "right", [OTHER])  # wrong ones do not drive it out
    await checks.find("a", "app", "4", [GOOD])
    assert len(gate.tokens) == 6
    await checks.find("a", "app", "0", [GOOD])
    assert len(gate.tokens) == 7


async def test_neighbours_with_an_old_token_keep_nobody_out(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    old = [start(checks, "a", f"old {i}", "old") for i in range(30)]
    await begun(gate)
    right = start(checks, "a", "app", "right")
    await asyncio.sleep(0)
    gate.open.set()
    await right
    assert gate.tokens.index("right") < 3
    for task in old:
        task.cancel()


async def test_guessing_addresses_keep_nobody_out(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    is_over = False

    async def guess(address: str) -> None:
        number = 0
        while not is_over:
            number += 1
            await checks.find(address, "app", f"{number} of {address}", [GOOD])

    guessers = [asyncio.create_task(guess(f"10.0.0.{i}")) for i in range(100)]
    for number in range(6):
        await begun(gate, len(gate.tokens) + 25)
        n_before = len(gate.tokens)
        await start(checks, f"10.0.1.{number}", "app", f"right {number}")
        assert gate.tokens.index(f"right {number}") - n_before < 4
    is_over = True
    for task in guessers:
        task.cancel()


async def test_a_check_is_forgotten_when_its_client_leaves(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    running = asyncio.create_task(checks.find("a", "app", "first", [GOOD]))
    while not gate.tokens:
        await asyncio.sleep(0.001)
    waiting = [asyncio.create_task(checks.find("a", "app", "later", [GOOD])) for _ in range(10)]
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
    first = asyncio.create_task(checks.find("a", "app", "first", [GOOD]))
    while not gate.tokens:
        await asyncio.sleep(0.001)
    monkeypatch.setattr(limits, "SCRYPT_TIMEOUT_S", 0.05)
    with pytest.raises(TimeoutError):
        await checks.find("a", "app", "second", [GOOD])
    assert len(checks) == 0
    assert gate.tokens == ["first"]
    gate.open.set()
    assert await first is None


async def test_who_timed_out_waits_behind_those_who_did_not(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    first = start(checks, "a", "app", "first")
    await begun(gate)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "SCRYPT_TIMEOUT_S", 0.05)
        with pytest.raises(TimeoutError):
            await checks.find("b", "late", "late", [GOOD])
    others = [start(checks, "c", "app", "new"), start(checks, "b", "late", "late")]
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(first, *others)
    assert gate.tokens == ["first", "new", "late"]


async def test_guessers_get_half_of_the_thread(
    checks: ScryptChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: dict[str, tuple[float, float]] = {}

    def scrypt(token: str, salt: bytes) -> bytes:
        began_s = time.monotonic()
        time.sleep(0.1)
        moments[token] = began_s, time.monotonic()
        return bytes(32)

    monkeypatch.setattr(tokens, "scrypt", scrypt)
    await checks.find("a", "app", "first", [GOOD])
    again = start(checks, "a", "app", "again")
    await asyncio.sleep(0)
    await start(checks, "b", "app", "another's")
    await again
    assert [*moments] == ["first", "another's", "again"]
    began_s, ended_s = moments["another's"]
    assert moments["again"][0] - ended_s >= ended_s - began_s  # it rested
