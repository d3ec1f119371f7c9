"""Readers: live ones, those that go on behind what they saw, those with a cursor, slow ones."""

import asyncio
import random
import time
from typing import Any, Final

from tests.torture.histories.doors import RETRY_S, Doors
from tests.torture.histories.record import KEPT, SHORT, History, Visit, Wish, token_of
from tests.torture.histories.wire import (
    Connection,
    DeclinedError,
    EventId,
    LostError,
    Message,
    as_json,
    id_of,
)

SILENCE_S: Final = 0.3
"""After which a reader pings."""

PAUSE: Final = 0.02
"""How often a reader pauses behind a message, for up to as long as its patience."""

SLOW_S: Final = 0.05
"""Up to which a slow one pauses behind each."""

LEAVES: Final = 0.01
LEAVES_BEHIND: Final = 0.1
"""How often it leaves behind a message, for no reason; and before it is up to date."""

AWAY: Final = 0.2
AWAY_S: Final = 8.0
"""How often who left stays away, and up to how long: thousands of events come meanwhile."""

ACKS: Final = 0.6
"""How often what came is acknowledged at once."""

PARKS: Final = 0.005
"""How often the first event of a batch is parked."""

NOT_STORED: Final = "is not stored here"
"""A reader is told so that saw what a restore lost; it begins anew."""

DELETED: Final = "were deleted"
"""A reader is told so that wants to be declined for gaps."""


class Reader:
    """See the module.

    Args:
        wish: what it asks for.
        doors: where the servers are.
        history: what it gets is noted there.
        chance: what it does when.
    """

    def __init__(self, wish: Wish, doors: Doors, history: History, chance: random.Random) -> None:
        self._wish = wish
        self._doors = doors
        self._visits: list[Visit] = history.visits.setdefault(wish, [])
        self._chance = chance
        self._seen: dict[int, EventId] = {}
        self._unacked: list[EventId] = []
        self._parked: list[EventId] = []
        self._n_pings = 0
        self._is_up_to_date = False
        self._is_ending = False
        self._is_done = False
        self._is_new = True
        self._declines_gap = False

    def end(self) -> None:
        """Connect once more; :meth:`run` ends when all that is stored has come."""
        self._is_ending = True
        self._is_done = not (self._wish.start or self._wish.cursor)

    async def run(self) -> None:
        """Read."""
        wish = self._wish
        while not self._is_done:
            door = self._doors.choose(self._chance)
            visit = Visit(door, time.monotonic(), self._is_new)
            try:
                connection = await self._doors.enter(
                    self._chance,
                    only_active=not wish.hops,
                    door=door,
                    is_slow=wish.is_slow,
                    **self._init(),
                )
            except DeclinedError as e:
                visit.note("declined", str(e))
                self._visits.append(visit)
                self._declines_gap = False
                if NOT_STORED in str(e):
                    self._seen, self._is_new = {}, True
                connection = None
            if connection is None:
                await asyncio.sleep(RETRY_S)
                continue
            self._visits.append(visit)
            self._is_new = False
            self._unacked, self._parked = [], []
            self._is_up_to_date = not (wish.start or wish.cursor)  # these are never told
            try:
                await self._read(connection, visit, is_last=self._is_ending)
            except LostError as e:
                visit.note("lost", str(e))
            finally:
                self._doors.leave(connection, self._chance)
            if self._chance.random() < AWAY and not self._is_ending:
                await asyncio.sleep(self._chance.uniform(0, AWAY_S))

    def _init(self) -> dict[str, Any]:
        wish = self._wish
        init: dict[str, Any] = {"subscriptions": wish.subscriptions, "persisted": wish.persisted}
        if wish.cursor is not None:
            init["cursor"] = wish.cursor
        if wish.start:
            init["start"] = [as_json(i) for i in self._seen.values()] or "earliest"
            self._declines_gap = SHORT in wish.kinds and self._chance.random() < 0.3
            init["decline_gap"] = self._declines_gap
        return init

    async def _read(self, connection: Connection, visit: Visit, *, is_last: bool) -> None:
        chance = self._chance
        n_silent = 0
        while not (self._is_done and not self._unacked):
            if self._is_ending and not is_last:
                raise LostError("it connects for the last time")
            try:
                message = await connection.receive(SILENCE_S)
            except LostError as e:
                if "within" not in str(e) or n_silent > self._doors.patience_s / SILENCE_S:
                    raise
                n_silent += 1
                await self._acknowledge(connection, visit)
                await self._ping(connection)
                continue
            n_silent = 0
            self._handle(message, connection, visit, is_last=is_last)
            if chance.random() < ACKS or self._is_done:
                await self._acknowledge(connection, visit)
            if not self._is_ending:
                await self._dawdle()

    async def _dawdle(self) -> None:
        chance = self._chance
        if chance.random() < (LEAVES if self._is_up_to_date else LEAVES_BEHIND):
            raise LostError("it left")
        if self._wish.is_slow:
            await asyncio.sleep(chance.uniform(0, SLOW_S))
        elif chance.random() < PAUSE:
            await asyncio.sleep(chance.uniform(0, self._doors.patience_s))

    def _handle(
        self, message: Message, connection: Connection, visit: Visit, *, is_last: bool
    ) -> None:
        match message["msg_type"]:
            case "events":
                self._take(message, visit)
            case "gap":
                oldest = message["oldest"]
                visit.note("gap", (message["server_id"], oldest and id_of(oldest)))
            case "ping_res":
                visit.note("known", message["ping_id"])
            case "up_to_date":
                visit.note("up_to_date")
                self._is_up_to_date = True
                self._is_done |= is_last
            case "cursor_lost":
                raise LostError("another one has the cursor")
            case "status" if not self._wish.hops and connection.status != "OPERATIONAL":
                raise LostError("not OPERATIONAL")

    def _take(self, message: Message, visit: Visit) -> None:
        came = [(id_of(i["id"]), token_of(i)) for i in message["events"]]
        if message.get("redelivered"):
            visit.note("redelivered", came)
            return
        visit.note("events", came)
        for event_id, _ in came:
            self._seen[event_id[0]] = event_id
        if self._wish.cursor is not None:
            self._unacked += [event_id for event_id, _ in came]
            if not self._is_ending and self._chance.random() < PARKS:
                self._parked.append(came[0][0])

    async def _acknowledge(self, connection: Connection, visit: Visit) -> None:
        """Acknowledge what came so far, and find out whether the server has read that."""
        if not self._unacked:
            return
        ids = {i[0]: i for i in self._unacked}
        parked, self._unacked, self._parked = self._parked, [], []
        visit.note("ack", ([*ids.values()], parked, self._n_pings + 1))
        reasons = [{"id": as_json(i), "reason": "for later"} for i in parked]
        message = {"msg_type": "events_ack", "ids": [as_json(i) for i in ids.values()]}
        await connection.send({**message, "parked": reasons}, self._doors.patience_s)
        await self._ping(connection)

    async def _ping(self, connection: Connection) -> None:
        self._n_pings += 1
        ping = {"msg_type": "ping_req", "ping_id": self._n_pings}
        await connection.send(ping, self._doors.patience_s)


def readers(
    doors: Doors, history: History, chance: random.Random, *, are_many: bool
) -> list[Reader]:
    """Readers of all kinds.

    Args:
        doors: as of :class:`Reader`, as are the next two.
        history: see there.
        chance: see there.
        are_many: whether there are several servers.
    """
    wishes = [
        Wish("live"),
        Wish("registered", persisted=False),
        Wish("start", start=True),
        Wish("start-slow", start=True, is_slow=True, hops=are_many),
        Wish("start-one", start=True, writer=2),
        Wish("cursor", cursor="one"),
        Wish("cursor-rival", cursor="two"),
        Wish("cursor-rival-2", cursor="two"),
        Wish("start-hops", start=True, hops=True) if are_many else
        Wish("start-all", start=True, kinds=(KEPT, SHORT)),
    ]  # fmt: skip
    return [Reader(i, doors, history, random.Random(chance.random())) for i in wishes]
