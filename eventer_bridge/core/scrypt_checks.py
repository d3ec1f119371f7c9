"""Checks of chosen tokens: 0.2 s of a processor each, at a guesser's request.

A thread computes them one after the other, without the GIL. Addresses take turns, so that who
guesses on 500 connections delays another address by one check. After a check that failed the
thread rests for as long as it worked: guessers get half of one processor, all together.

A check ends when its client leaves. What waits is bounded by the slots of new connections.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.core.tokens import TokenHash


class _Check(NamedTuple):
    token: str
    expected: Sequence[TokenHash]
    answer: "asyncio.Future[int | None]"


class ScryptChecks:
    """See the module. Belongs to the event loop's thread; to be closed after use."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "scrypt")  # starts with the first check
        self._waiting: OrderedDict[str, deque[_Check]] = OrderedDict()
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def find(self, address: str, token: str, expected: Sequence[TokenHash]) -> int | None:
        """Compare a token with hashes.

        Args:
            address: of the client (``Slot.address``).
            token: what it presented.
            expected: hashes with salts; all of them are computed.

        Returns:
            The index of the hash that it has, or None.

        Raises:
            TimeoutError: too many checks came first.
        """
        check = _Check(token, expected, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(address, deque()).append(check)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(limits.SCRYPT_TIMEOUT_S):
                return await check.answer
        finally:
            self._forget(address, check)

    async def async_close(self) -> None:
        """End; checks under way end without an answer."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                address, checks = self._waiting.popitem(last=False)
                check = checks.popleft()
                if checks:  # behind all other addresses
                    self._waiting[address] = checks
                found, worked_s = await loop.run_in_executor(
                    self._thread, _ext_find, check.token, check.expected
                )
                if not check.answer.done():
                    check.answer.set_result(found)
                if found is None:
                    await asyncio.sleep(worked_s)
        finally:
            self._running = None

    def _forget(self, address: str, check: _Check) -> None:
        checks = self._waiting.get(address)
        if checks is None:
            return
        with contextlib.suppress(ValueError):
            checks.remove(check)
        if not checks:
            del self._waiting[address]


def _ext_find(token: str, expected: Sequence[TokenHash]) -> tuple[int | None, float]:
    """The index of the hash that a token has, and the seconds that took."""
    began_s = time.perf_counter()
    found = None
    for index, known in enumerate(expected):
        if tokens.same(tokens.ext_scrypt(token, known.salt or b""), known.digest):
            found = index
    return found, time.perf_counter() - began_s
