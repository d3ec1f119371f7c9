"""Logins: passwords, sessions and their ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from eventer_bridge import limits as core_limits
from eventer_bridge.core import tokens
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.stats import ServerStats
from mariner_console import limits
from mariner_console.config import User
from mariner_console.gate import Logins

RANDOM = "x" * 43


async def slot(address: str = "127.0.0.1", admission: Admission | None = None) -> Slot:
    """The slot of a connection."""
    return await (admission or Admission()).enter(
        address, f"{address}:1", ServerStats(), lambda: True
    )


@pytest.fixture
async def logins(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Logins]:
    monkeypatch.setattr(core_limits, "SCRYPT_COST", 1 << 10)  # else each test takes seconds
    users = [
        User("random", tokens.sha256_text(RANDOM)),
        User("chosen", tokens.scrypt_text("chosen password")),
        User("expired", tokens.TokenSource(tokens.sha256_text(RANDOM), expires="2020-01-01")),
    ]
    made = Logins(users)
    yield made
    await made.async_close()


@pytest.mark.parametrize(("name", "password"), [("random", RANDOM), ("chosen", "chosen password")])
async def test_a_password_opens_a_session(logins: Logins, name: str, password: str) -> None:
    key = await logins.log_in(await slot(), name, password)
    assert key is not None
    login = logins.find(key)
    assert login is not None
    assert login.user.name == name
    was_valid = login.is_valid
    logins.log_out(key)
    assert (was_valid, login.is_valid) == (True, False)
    assert logins.find(key) is None


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("random", "wrong"),
        ("random", ""),
        ("chosen", "wrong"),
        ("chosen", RANDOM),
        ("expired", RANDOM),
        ("nobody", RANDOM),
        ("", ""),
        ("nobody", "\ud800"),
    ],
)
async def test_anything_else_does_not(logins: Logins, name: str, password: str) -> None:
    assert await logins.log_in(await slot(), name, password) is None


async def test_only_the_key_finds_a_session(logins: Logins) -> None:
    key = await logins.log_in(await slot(), "random", RANDOM)
    assert key is not None
    for other in ("", key[:-1], key + "a", key.swapcase(), "\ud800"):
        assert logins.find(other) is None
    assert await logins.log_in(await slot(), "random", RANDOM) != key


async def test_sessions_end_by_themselves(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSION_S", -1)
    key = await logins.log_in(await slot(), "random", RANDOM)
    assert key is not None
    assert logins.find(key) is None


async def test_the_oldest_session_makes_room(logins: Logins) -> None:
    keys = [
        await logins.log_in(await slot(), "random", RANDOM) for _ in range(limits.MAX_SESSIONS + 1)
    ]
    first = [logins.find(key or "") for key in keys]
    assert first[0] is None
    assert all(first[1:])


async def test_guessers_of_many_addresses_keep_nobody_out(logins: Logins) -> None:
    """Each guesses on 20 connections at a time, as long as it likes."""
    guesses = [
        asyncio.create_task(guess(logins, f"127.0.1.{1 + i % 20}", f"guess {i}"))
        for i in range(400)
    ]
    while len(logins._checks._failed) < 40:  # each address was wrong once, with its name
        await asyncio.sleep(0.001)
    for name, password in (("random", RANDOM), ("chosen", "chosen password")):
        assert await logins.log_in(await slot("127.0.2.1"), name, password) is not None
    assert len(logins._checks) > 100
    for task in guesses:
        task.cancel()
    await asyncio.wait(guesses)
    assert not logins._checks


async def guess(logins: Logins, address: str, password: str) -> None:
    with contextlib.suppress(TimeoutError):
        assert await logins.log_in(await slot(address), "chosen", password) is None


async def test_who_guesses_waits_for_the_answers(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 1)
    monkeypatch.setattr(net_limits, "LOGIN_FAILURE_PERIOD_S", 60.0)
    admission = Admission()
    used = [await slot("127.0.0.1", admission) for _ in range(3)]
    assert await logins.log_in(used[0], "random", "wrong") is None
    waiting = asyncio.create_task(logins.log_in(used[1], "random", "wrong"))
    while not used[1]._held_until:
        await asyncio.sleep(0.01)
    # what is right is answered at once, from there as well
    assert await logins.log_in(used[2], "random", RANDOM) is not None
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_without_chosen_passwords_nothing_costly_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Logins([User("random", tokens.sha256_text(RANDOM))])
    monkeypatch.delattr(tokens, "scrypt")
    for name in ("random", "nobody"):
        assert await made.log_in(await slot(), name, "wrong") is None
    await made.async_close()
