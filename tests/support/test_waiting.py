"""What is waited for in vain is named."""

import asyncio

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
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        async with await RawPeer.connect(port) as peer:
            with pytest.raises(AssertionError, match="in vain for the next message of port"):
                await peer.receive()
