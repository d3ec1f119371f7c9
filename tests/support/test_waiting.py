"""What is waited for in vain is named."""

import asyncio
import socket

import pytest

from tests.support.peer import RawPeer
from tests.support.waiting import until, within


async def test_a_state_that_does_not_come_is_named() -> None:
    came = asyncio.Event()
    with pytest.raises(AssertionError, match=r"0\.01 s in vain for .*is_set"):
        await until(came.is_set, timeout_s=0.01)

    async def comes() -> bool:
        came.set()
        return came.is_set()

    await until(comes)


async def test_another_timeout_is_not_taken_for_its_own() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), within("nothing"):
            await asyncio.Event().wait()


async def test_a_message_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.peer.TIMEOUT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # nobody accepts
        async with await RawPeer.connect(silent.getsockname()[1]) as peer:
            with pytest.raises(AssertionError, match="in vain for the next message of port"):
                await peer.receive()
