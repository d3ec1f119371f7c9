"""Checks of chosen tokens: 0.2 s of a processor each, at a guesser's request.

A thread computes them one after the other, without the GIL. What was computed is remembered, right
or wrong, so that a client that comes again with the same token costs nothing. What is remembered is
a digest with a key of this process, not the token; :meth:`ScryptChecks.forget` forgets it.

What is to be computed waits in three lines: that of addresses without failures; that of names
without failures at addresses with some, as where many clients have one address; and the rest. A
name whose check timed out comes into a later line the next time. The lines take turns, every other
turn is the first one's. In each line addresses take turns, and the newest check comes first: where
more come than can be computed in time, older ones would time out anyway. So neither many guessing
addresses nor neighbours with an old token keep a right one out.

After a check that failed, the other two lines rest for as long as it took: who guesses again gets
half of one processor, all guessers together.

A check ends when its client leaves. What waits is bounded by the slots of new connections.
"""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.core.tokens import TokenHash
from eventer_bridge.slices import FairLine

_NO_FAILURE: Final = 0
"""The first line."""

_TURNS: Final = (_NO_FAILURE, 1, _NO_FAILURE, 2)
"""Lines, in the order of their turns."""

_UNKNOWN: Final = -1
"""No index of a hash."""


class _Check(NamedTuple):
    key: bytes  # what its outcome is remembered by
    address: str
    name: str
    token: str
    expected: Sequence[TokenHash]
    answer: "asyncio.Future[int | None]"


class ScryptChecks:
    """See the module. Belongs to the event loop's thread; to be closed after use."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "scrypt")  # starts with the first check
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._right: OrderedDict[bytes, int | None] = OrderedDict()
        self._wrong: OrderedDict[bytes, int | None] = OrderedDict()
        # addresses where a check failed, and names there, or of which one timed out
        self._failed: OrderedDict[bytes, int | None] = OrderedDict()
        self._lines: list[FairLine[_Check]] = [FairLine(), FairLine(), FairLine()]
        self._turns = cycle(_TURNS)
        self._rests_until_s = 0.0  # all lines but the first
        self._has_come = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def forget(self) -> None:
        """Forget what was computed: other tokens are configured."""
        self._right.clear()
        self._wrong.clear()

    async def find(
        self, address: str, name: str, token: str, expected: Sequence[TokenHash]
    ) -> int | None:
        """Compare a token with hashes.

        Args:
            address: of the client (``Slot.address``).
            name: of the client; what is remembered is of this name, so that the time says nothing
                of others.
            token: what it presented.
            expected: hashes with salts; all of them are computed.

        Returns:
            The index of the hash that it has, or None.

        Raises:
            TimeoutError: too many checks came first.
        """
        key = self._digest(name, token, *(part for i in expected for part in (i.digest, i.salt)))
        if (found := self._recall(key)) != _UNKNOWN:
            return found
        answer = asyncio.get_running_loop().create_future()
        check = _Check(key, address, name, token, expected, answer)
        self._line_of(check).append(address, check)
        self._has_come.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(limits.SCRYPT_TIMEOUT_S):
                return await check.answer
        except TimeoutError:
            _remember(self._failed, self._marks(check)[1], None)
            raise
        finally:
            self._leave(check)

    async def async_close(self) -> None:
        """End; checks under way end without an answer."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while len(self):
                self._has_come.clear()
                check = self._next()
                if check is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._rests_until_s - time.monotonic()):
                            await self._has_come.wait()
                    continue
                found = self._recall(check.key)  # of another connection
                if found == _UNKNOWN:
                    try:
                        found, worked_s = await loop.run_in_executor(
                            self._thread, _ext_find, check.token, check.expected
                        )
                    except Exception as e:  # the others are to go on
                        if not check.answer.done():
                            check.answer.set_exception(e)
                        continue
                    self._note(check, found)
                    if found is None:
                        self._rests_until_s = time.monotonic() + worked_s
                if not check.answer.done():
                    check.answer.set_result(found)
        finally:
            self._running = None

    def _next(self) -> _Check | None:
        """The one whose turn it is; None: all that wait are to rest."""
        is_resting = time.monotonic() < self._rests_until_s
        for _ in _TURNS:
            number = next(self._turns)
            line = self._lines[number]
            if line.clients and (number == _NO_FAILURE or not is_resting):
                newest = next(reversed(line.clients)) if number == _NO_FAILURE else None
                return line.pop(newest, is_newest=True)
        return None

    def _marks(self, check: _Check) -> tuple[bytes, bytes]:
        """What is noted of a check that failed."""
        return self._digest(check.address), self._digest(check.address, check.name)

    def _line_of(self, check: _Check) -> FairLine[_Check]:
        return self._lines[sum(mark in self._failed for mark in self._marks(check))]

    def _recall(self, key: bytes) -> int | None:
        """What was found before, or :data:`_UNKNOWN`."""
        for known in self._right, self._wrong:
            if key in known:
                known.move_to_end(key)
                return known[key]
        return _UNKNOWN

    def _note(self, check: _Check, found: int | None) -> None:
        if found is not None:
            _remember(self._right, check.key, found)
            for mark in self._marks(check):
                self._failed.pop(mark, None)
            return
        _remember(self._wrong, check.key, None)
        for mark in self._marks(check):
            _remember(self._failed, mark, None)
        for line in self._lines[:2]:  # what else comes from there waits elsewhere now
            for other in [*line.clients.get(check.address, ())]:
                line.remove(check.address, other)
                self._line_of(other).append(check.address, other)

    def _leave(self, check: _Check) -> None:
        for line in self._lines:
            with contextlib.suppress(KeyError, ValueError):  # it waits in another one, or in none
                line.remove(check.address, check)

    def _digest(self, *parts: str | bytes | None) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part or b""
            digest.update(len(data).to_bytes(8) + data)
        return digest.digest()


def _remember(known: OrderedDict[bytes, int | None], key: bytes, value: int | None) -> None:
    """Note something last, and forget the first if there is too much."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > limits.MAX_KNOWN_CHECKS:
        known.popitem(last=False)


def _ext_find(token: str, expected: Sequence[TokenHash]) -> tuple[int | None, float]:
    """The index of the hash that a token has, and the seconds that took."""
    began_s = time.perf_counter()
    found = None
    for index, known in enumerate(expected):
        if tokens.same(tokens.ext_scrypt(token, known.salt or b""), known.digest):
            found = index
    return found, time.perf_counter() - began_s
