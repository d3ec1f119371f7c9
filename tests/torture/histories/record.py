"""What a run did, and what it was told: the history that the checks look at.

Times are of the monotonic clock of this process, which runs all clients and all faults.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.torture.histories.wire import EventId, Message, id_of

PLAIN: Final = "plain"
KEYED: Final = "keyed"
CHAINED: Final = "chained"
"""Modes of writers: without keys, under keys, and under keys that name the one before."""

KEPT: Final = "kept"
SHORT: Final = "short"
"""Kinds of types: retention deletes those of the second."""


class Token(NamedTuple):
    """What tells an event from all others: its payload.

    Attributes:
        writer: who wrote it.
        request: number of the request.
        part: which of its events.
        n_parts: how many it has.
        kind: of its type.
    """

    writer: int
    request: int
    part: int
    n_parts: int
    kind: str


def token_of(event: Message) -> Token:
    """The token of an event of a writer."""
    data = event["payload"]["data"]
    return Token(data["w"], data["n"], data["i"], data["of"], event["type"][1])


class Row(NamedTuple):
    """An event of a writer as it is stored."""

    event_id: EventId
    token: Token
    timestamp: tuple[int, int]


def rows_of(events: Sequence[Message]) -> list[Row]:
    """The events of writers among others."""
    return [
        Row(id_of(i["id"]), token_of(i), (i["timestamp"]["s"], i["timestamp"]["us"]))
        for i in events
        if i["type"][0] == "history"
    ]


@dataclasses.dataclass(slots=True)
class Attempt:
    """A request was sent.

    Attributes:
        writer: who sent it.
        request: its number.
        mode: of the writer.
        connection: number of the connection, of all.
        door: number of the server that was asked.
        begin_s: when it was sent.
        end_s: when its outcome was known.
        outcome: ``ok``, ``refused`` (nothing is stored) or ``unknown``.
        ids: of its events, if it is ok.
    """

    writer: int
    request: int
    mode: str
    connection: int
    door: int
    begin_s: float
    end_s: float = 0.0
    outcome: str = "unknown"
    ids: Sequence[EventId] = ()


@dataclasses.dataclass(slots=True)
class Visit:
    """A connection of a reader.

    Attributes:
        door: number of the server.
        begin_s: when it began to connect.
        is_first: whether the reader knew nothing (any more).
        items: what came and was sent, in order, each with its time: ``events`` (pairs of id and
            token), ``redelivered``, ``up_to_date``, ``gap`` (server, oldest), ``ack`` (ids, parked,
            number of the ping behind it), ``known`` (the server has read all up to this ping),
            ``declined``, ``lost`` (reason).
    """

    door: int
    begin_s: float
    is_first: bool
    items: list[tuple[str, float, Any]] = dataclasses.field(default_factory=list)

    def note(self, what: str, detail: Any = None) -> None:
        """Add an item."""
        self.items.append((what, time.monotonic(), detail))

    def events(self) -> list[tuple[float, EventId, Token]]:
        """All events that came, but for those that were redelivered."""
        return [(at_s, *i) for what, at_s, some in self.items if what == "events" for i in some]


class Wish(NamedTuple):
    """What a reader asks for.

    Attributes:
        name: of the reader.
        kinds: of types (:data:`KEPT`, :data:`SHORT`).
        writer: the only one whose events it wants; None: of all.
        start: whether it goes on behind what it saw.
        cursor: name of its cursor.
        persisted: as of ``init_req``.
        is_slow: whether it reads slowly.
        hops: whether it goes to any server, OPERATIONAL or not.
    """

    name: str
    kinds: tuple[str, ...] = (KEPT,)
    writer: int | None = None
    start: bool = False
    cursor: str | None = None
    persisted: bool = True
    is_slow: bool = False
    hops: bool = False

    def wants(self, token: Token) -> bool:
        """Whether it gets an event."""
        return token.kind in self.kinds and self.writer in (None, token.writer)

    @property
    def subscriptions(self) -> list[list[str]]:
        """As of ``init_req``."""
        last = "*" if self.writer is None else str(self.writer)
        return [["history", kind, last] for kind in self.kinds]


class Fault(NamedTuple):
    """Something that was done to a server, or to its connections.

    Attributes:
        what: name of the fault, with its server.
        begin_s: from when.
        end_s: to when.
    """

    what: str
    begin_s: float
    end_s: float


class Restore(NamedTuple):
    """A store was set back.

    Attributes:
        backup_s: when the backup began.
        back_s: when the server was back.
    """

    backup_s: float
    back_s: float


@dataclasses.dataclass(slots=True)
class History:
    """See the module.

    Attributes:
        begin_s: when it began.
        attempts: of all writers.
        visits: of each reader.
        faults: in the order in which they ended.
        ends: when a server ended, and whether it was killed (or ended by itself).
        restores: of the store.
        stored: what is there in the end, by server: ids in their order, and tokens.
        timestamps: of the same events.
        parked: ids that are listed in the end, by cursor.
        problems: what was seen to be wrong while it ran.
    """

    begin_s: float = dataclasses.field(default_factory=time.monotonic)
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    visits: dict[Wish, list[Visit]] = dataclasses.field(default_factory=dict)
    faults: list[Fault] = dataclasses.field(default_factory=list)
    ends: list[tuple[float, int, bool]] = dataclasses.field(default_factory=list)
    restores: list[Restore] = dataclasses.field(default_factory=list)
    stored: dict[int, dict[EventId, Token]] = dataclasses.field(default_factory=dict)
    timestamps: dict[int, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    parked: dict[str, set[EventId]] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)

    def note_stored(self, server: int, rows: Sequence[Row]) -> None:
        """Take what a server has in the end, in the order in which it tells it."""
        self.stored[server] = {row.event_id: row.token for row in rows}
        self.timestamps[server] = [row.timestamp for row in rows]

    def may_be_lost(self, at_s: float) -> bool:
        """Whether a restore may have lost what was stored at this moment."""
        return any(i.backup_s <= at_s <= i.back_s for i in self.restores)

    def dump(self, path: Path) -> None:
        """Write it as JSON lines, for who looks for the cause of a violation."""
        with path.open("w") as file:
            for name in ("faults", "ends", "restores", "problems"):
                for item in getattr(self, name):
                    print(json.dumps([name, item]), file=file)
            for attempt in self.attempts:
                print(json.dumps(["attempt", *dataclasses.astuple(attempt)]), file=file)
            for wish, visits in self.visits.items():
                for visit in visits:
                    print(json.dumps([wish.name, *dataclasses.astuple(visit)]), file=file)
            for server, events in self.stored.items():
                print(json.dumps(["stored", server, [*events.items()]]), file=file)

    def told(self) -> str:
        """The faults, with seconds since the beginning."""
        return ", ".join(
            f"{i.what} {i.begin_s - self.begin_s:.1f}-{i.end_s - self.begin_s:.1f}"
            for i in sorted(self.faults, key=lambda i: i.begin_s)
        )
