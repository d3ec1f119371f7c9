"""Writers: without keys, under keys, and under keys that name the one before.

What has a key is sent again, over the next connection, until it is answered. Without a key, every
request is sent once.
"""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.torture.histories.doors import RETRY_S, Doors
from tests.torture.histories.record import CHAINED, KEPT, KEYED, PLAIN, SHORT, Attempt, History
from tests.torture.histories.wire import Connection, LostError, Message, id_of

WINDOW: Final = 6
"""Requests of a writer that are under way."""

MAX_PAUSE_S: Final = 0.1
"""Between two requests, at most."""

AGAIN: Final = 0.05
"""How often a request under a key is sent again that was answered."""

SIZES: Final = ((0.6, 1), (0.9, 5), (0.97, 60), (0.997, 400), (1.0, 2_600))
"""Events of a request at most, up to which share of the requests: the last are large sessions."""


class Role(NamedTuple):
    """See :class:`Writer`."""

    number: int
    mode: str
    kind: str


class Writer:
    """See the module.

    Args:
        role: its number, its mode (as of ``record``), and the kind of its types.
        doors: where the servers are.
        history: what it does is noted there.
        chance: what it writes, and when.
    """

    def __init__(self, role: Role, doors: Doors, history: History, chance: random.Random) -> None:
        self._role = role
        self._number, self._mode, kind = role
        self._type = ["history", kind, str(role.number)]
        self._doors = doors
        self._history = history
        self._chance = chance
        self._sizes: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._again: deque[int] = deque()  # to be sent again
        self._answered: list[int] = []
        self._is_ending = False

    def successor(
        self, doors: Doors, history: History, chance: random.Random, requests: Iterable[int]
    ) -> "Writer":
        """A writer that sends requests of this one again, and nothing else.

        Args:
            doors: as of the class, as are the next two.
            history: see there.
            chance: see there.
            requests: their numbers.
        """
        writer = Writer(self._role, doors, history, chance)
        writer._sizes = self._sizes
        writer._send_again(requests)
        writer.end()
        return writer

    def end(self) -> None:
        """Begin nothing new: :meth:`run` ends when what has a key is answered."""
        self._is_ending = True

    async def run(self) -> None:
        """Write."""
        while not (self._is_ending and not self._again):
            connection = await self._doors.enter(self._chance, only_active=True)
            if connection is None:
                await asyncio.sleep(RETRY_S)
                continue
            under_way: dict[int, Attempt] = {}
            try:
                await self._write(connection, under_way)
            except LostError:
                pass
            finally:
                for attempt in under_way.values():
                    attempt.end_s = time.monotonic()
                self._send_again([i.request for i in under_way.values()])
                self._doors.leave(connection, self._chance)

    def _send_again(self, requests: Iterable[int]) -> None:
        if self._mode != PLAIN:
            self._again = deque(sorted({*self._again, *requests}))

    async def _write(self, connection: Connection, under_way: dict[int, Attempt]) -> None:
        number = self._doors.number(connection)
        last: int | None = None  # the request that the next one follows
        has_failed = False  # what follows is sent when all is answered
        for register_id in itertools.count(1):
            request = None if has_failed else self._next()
            if request is not None:
                attempt = Attempt(
                    *(self._number, request, self._mode, number),
                    *(self._doors.door(connection), time.monotonic()),
                )
                self._history.attempts.append(attempt)
                under_way[register_id] = attempt
                follows = last if last in {i.request for i in under_way.values()} else None
                message = self._message(register_id, request, follows)
                await connection.send(message, self._doors.patience_s)
                last = request
                await asyncio.sleep(self._chance.uniform(0, MAX_PAUSE_S))
            while under_way and (len(under_way) >= WINDOW or request is None):
                answer = await connection.receive(self._doors.patience_s)
                if answer["msg_type"] == "register_res":
                    attempt = under_way.pop(answer["register_id"])
                    self._note(attempt, answer)
                    if attempt.outcome != "ok":
                        has_failed = True
                        self._send_again([attempt.request])
            if not under_way:
                if has_failed:
                    await asyncio.sleep(RETRY_S)
                has_failed = False
                if connection.status != "OPERATIONAL" or (self._is_ending and not self._again):
                    return

    def _next(self) -> int | None:
        if self._again:
            return self._again.popleft()
        if self._is_ending:
            return None
        if self._mode != PLAIN and self._answered and self._chance.random() < AGAIN:
            return self._chance.choice(self._answered[-20:])
        return next(self._numbers)

    def _message(self, register_id: int, request: int, follows: int | None) -> Message:
        if request not in self._sizes:
            share = self._chance.random()
            most = next(size for limit, size in SIZES if share <= limit)
            self._sizes[request] = self._chance.randint((most + 1) // 2, most)
        n_parts = self._sizes[request]
        message: Message = {
            "msg_type": "register_req",
            "register_id": register_id,
            "register_events": [
                {
                    "type": self._type,
                    "source_timestamp": None,
                    "payload": {
                        "payload_type": "json",
                        "data": {"w": self._number, "n": request, "i": i, "of": n_parts},
                    },
                }
                for i in range(n_parts)
            ],
        }
        if self._mode != PLAIN:
            message["request_key"] = f"{self._number}-{request:06}"
            if self._mode == CHAINED and follows is not None:
                message["after_key"] = f"{self._number}-{follows:06}"
        return message

    def _note(self, attempt: Attempt, answer: Message) -> None:
        attempt.end_s = time.monotonic()
        if answer["success"]:
            attempt.outcome = "ok"
            attempt.ids = [id_of(i["id"]) for i in answer["events"]]
            self._answered.append(attempt.request)
        elif answer.get("outcome") != "unknown":
            attempt.outcome = "refused"


def writers(doors: Doors, history: History, chance: random.Random) -> list[Writer]:
    """One of each, and another one under keys; and one whose events are deleted."""
    modes = [(PLAIN, KEPT), (KEYED, KEPT), (KEYED, KEPT), (CHAINED, KEPT), (PLAIN, SHORT)]
    return [
        Writer(Role(n, *i), doors, history, random.Random(chance.random()))
        for n, i in enumerate(modes, 1)
    ]
