"""Logins: passwords, sessions and their ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from eventer_bridge.core import tokens
from mariner_console import limits
from mariner_console.config import User
from mariner_console.login import Logins

RANDOM = "x" * 43


@pytest.fixture
async def logins() -> AsyncIterator[Logins]:
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
    key = await logins.log_in("a", name, password)
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
    assert await logins.log_in("a", name, password) is None


async def test_only_the_key_finds_a_session(logins: Logins) -> None:
    key = await logins.log_in("a", "random", RANDOM)
    assert key is not None
    for other in ("", key[:-1], key + "a", key.swapcase(), "\ud800"):
        assert logins.find(other) is None
    assert await logins.log_in("a", "random", RANDOM) != key


async def test_sessions_end_by_themselves(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSION_S", -1)
    key = await logins.log_in("a", "random", RANDOM)
    assert key is not None
    assert logins.find(key) is None


async def test_the_oldest_session_makes_room(logins: Logins) -> None:
    keys = [await logins.log_in("a", "random", RANDOM) for _ in range(limits.MAX_SESSIONS + 1)]
    first = [logins.find(key or "") for key in keys]
    assert first[0] is None
    assert all(first[1:])


async def test_logins_that_wait_are_bounded(logins: Logins) -> None:
    guesses = [
        asyncio.create_task(logins.log_in(str(i), "chosen", "wrong"))
        for i in range(limits.MAX_LOGINS_WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await logins.log_in("b", "random", RANDOM)
    for guess in guesses:
        guess.cancel()
    await asyncio.wait(guesses)
    assert await logins.log_in("b", "random", RANDOM) is not None


async def test_who_guesses_keeps_nobody_else_out(logins: Logins) -> None:
    guesses = [
        asyncio.create_task(logins.log_in("a", "random", "wrong"))
        for _ in range(2 * limits.MAX_LOGINS_WAITING)
    ]
    await asyncio.sleep(0)
    assert await logins.log_in("b", "random", RANDOM) is not None
    for guess in guesses:
        guess.cancel()
    await asyncio.wait(guesses)
    assert not logins._waiting
