"""A session: the events of one registration request, from the request to the disk (000).

Thousands of events may wait for a commit. As objects, they would be out of the processor's caches
when it is done, and would push out what comes meanwhile. So most sessions are *encoded*: they have
their events in another form, until somebody asks for them. That is rare, and costs more than it
saved: they are decoded, and kept beside it. The session of a packed request
(``eventer_bridge.packed``) is encoded from the beginning, and often there is no object of the
session either (:class:`PackedSessions`). If another one has several events, and nobody wants to
hear of it when it is durable, they are encoded for the answer at once.

Session ids are never reused, even after kill -9, and timestamps never go back. Ids are reserved on
disk ahead of use (``limits.RESERVED_SESSIONS``), because an observer may see one before its commit.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice, repeat
from typing import Any, Final, NamedTuple, Self, overload

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.clock import ahead_s
from eventer_bridge.errors import LimitError
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    ProcessEvent,
    RegisterEvent,
    Source,
    SourceType,
    Timestamp,
)
from eventer_bridge.packed import Packed
from eventer_bridge.slices import Many, Steps, parts

REMOTE_SOURCE: Final = Source(SourceType.CONNECTION, 0)
"""Source of events registered by other servers."""


class Session(msgspec.Struct, eq=False):
    """See the module. Created by ``Engine.register``.

    Attributes:
        source: of the request.
        requested: number of requested events, the first of ``events``, in the order of the
            request. Events added by modules follow.
        payload_bytes: size of the payloads of its events.
        committed: done when the events are durable; fails with a branch of
            ``EventerBridgeError`` if they may not be. Sessions of one commit may share it, so
            never cancel it: use ``asyncio.wait`` if that could happen.
        decoded: its events; empty before they are created, and while it is encoded. Faster to
            look at than :attr:`events`.
        packed: the request, if that is packed; it stays when its events are made.
        is_large: whether it is processed in slices (:func:`is_large`); added events count.
        is_stepwise: whether storing and notifying happen in slices: for a large one, or one
            with many new event types.
        quota: of the source, for new event types.
        key: what the source calls the request; None: nothing.
        encodings: encoded events or an answer by wire, filled in by the wires, so that an event
            is encoded once per wire and not once per receiver.
    """

    source: Source
    requested: int
    payload_bytes: int
    committed: asyncio.Future[None]
    decoded: Sequence[Event] = ()
    packed: Packed | None = None
    is_large: bool = False
    is_stepwise: bool = False
    quota: TypeQuota | None = None
    key: RequestKey | None = None
    encodings: dict[str, Any] = {}
    _decode: Callable[[], Sequence[Event]] | None = None

    @classmethod
    def sized(
        cls,
        source: Source,
        requested: int,
        payload_bytes: int,
        committed: asyncio.Future[None],
        events: Sequence[Event] = (),
        *,
        quota: TypeQuota | None = None,
        key: RequestKey | None = None,
    ) -> Self:
        """A session that is large if it has many events or payload bytes."""
        large = is_large(requested, payload_bytes)
        return cls(
            source, requested, payload_bytes, committed, events, None, large, large, quota, key
        )

    def __repr__(self) -> str:
        return object.__repr__(self)  # not all of its events

    @property
    def events(self) -> Sequence[Event]:
        """Its events; empty until they are created.

        That is before observers are notified of the session and before ``committed`` succeeds.
        """
        if not self.decoded:
            if self._decode is not None:
                self.events = self._decode()
            elif (packed := self.packed) is not None and packed.session:  # else it waits
                timestamp = Timestamp(packed.s, packed.us)
                self.events = make_events(packed.server, packed.session, packed, timestamp)
        return self.decoded

    @events.setter
    def events(self, events: Sequence[Event]) -> None:
        self.decoded, self._decode = events, None

    @property
    def n_events(self) -> int:
        """Number of its events."""
        return len(self.events if self.packed is None else self.packed)

    @property
    def types(self) -> Sequence[EventType]:
        """Types of its events, in order; faster than :attr:`events` if the request is packed."""
        if self.packed is not None:
            return self.packed.event_types
        return [event.type for event in self.events]

    @property
    def server_id(self) -> int:
        """The server of its events, if there are any."""
        if self.packed is not None:
            return self.packed.server
        return self.events[0].id.server if self.events else 0

    @property
    def last_id(self) -> EventId:
        """Of its last event; there is one."""
        if self.packed is not None:
            return EventId(self.packed.server, self.packed.session, len(self.packed))
        return self.events[-1].id

    def keep_encoded(self, decode: Callable[[], Sequence[Event]]) -> None:
        """Forget the events, if it has them; ``decode`` makes them again."""
        self.decoded, self._decode = (), decode

    @property
    def is_encoded(self) -> bool:
        """Whether it has its events only in another form (see the module)."""
        return self._decode is not None or (self.packed is not None and not self.decoded)

    @property
    def has_failed(self) -> bool:
        """Whether its events are not stored, or may not be."""
        return self.committed.done() and self.committed.exception() is not None

    def resolve(self, error: BaseException | None) -> None:
        """See :func:`resolve`."""
        resolve(self.committed, error)


def resolve(committed: asyncio.Future[None], error: BaseException | None) -> None:
    """Resolve what sessions have as ``committed``: success, or an error."""
    if error is None:
        committed.set_result(None)
    else:
        committed.set_exception(error)
        committed.exception()  # marks it as retrieved: no caller has to await it


class PackedSessions(Sequence[Session]):
    """Small sessions of packed requests, which were handed over together and share ``committed``.

    They are made when somebody looks at one of them. Mostly nobody does.

    Args:
        packed: the requests, of which the backend has made rows.
        sources: the source of each.
        committed: as of a session.
        n_events: number of all their events.
        n_bytes: size of the payloads.

    Attributes:
        packed, committed, n_events, n_bytes: as given.
    """

    __slots__ = ("_made", "_sources", "committed", "n_bytes", "n_events", "packed")

    def __init__(
        self,
        packed: list[Packed],
        sources: Sequence[Source],
        committed: asyncio.Future[None],
        n_events: int,
        n_bytes: int,
    ) -> None:
        self.packed = packed
        self._sources = sources
        self.committed = committed
        self.n_events = n_events
        self.n_bytes = n_bytes
        self._made: Sequence[Session] = ()

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions())

    @overload
    def __getitem__(self, index: int) -> Session: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedSessions": ...
    def __getitem__(self, index: int | slice) -> "Session | PackedSessions":
        if isinstance(index, int):
            return self._sessions()[index]
        packed = self.packed[index]
        n_events, n_bytes = sum(map(len, packed)), sum([i.payload_bytes for i in packed])
        some = PackedSessions(packed, self._sources[index], self.committed, n_events, n_bytes)
        some._made = self._made[index]
        return some

    def _sessions(self) -> Sequence[Session]:
        if not self._made:
            packed = self.packed
            sizes = [i.payload_bytes for i in packed]
            common = repeat(self.committed), repeat(())
            self._made = [*map(Session, self._sources, map(len, packed), sizes, *common, packed)]
        return self._made


def joined(parts: Sequence[Sequence[Session]]) -> Sequence[Session]:
    """Sessions one after the other, at least one; packed ones are not made for that."""
    packed = [i for i in parts if isinstance(i, PackedSessions)]
    if len(packed) < len(parts):
        return [*chain.from_iterable(parts)]
    requests = [*chain.from_iterable([i.packed for i in packed])]
    sources = [*chain.from_iterable([i._sources for i in packed])]
    n_events, n_bytes = sum([i.n_events for i in packed]), sum([i.n_bytes for i in packed])
    return PackedSessions(requests, sources, packed[0].committed, n_events, n_bytes)


def packed_of(sessions: Sequence[Session]) -> list[Packed]:
    """The requests of sessions, if all of them are packed; else nothing."""
    if isinstance(sessions, PackedSessions):
        return sessions.packed
    packed = [i.packed for i in sessions if i.packed is not None]
    return packed if len(packed) == len(sessions) else []


class Tracked(NamedTuple):
    """Sessions that were handed over together, and wait for their commit.

    Attributes:
        sessions: one; or several small ones of clients, which share ``committed``.
        committed: of the sessions.
        n_events: number of their events.
        n_bytes: size of the payloads.
        is_own: whether they were registered here, not replicated.
        is_large: of the only session.
        is_stepwise: of the only session.
    """

    sessions: Sequence[Session]
    committed: asyncio.Future[None]
    n_events: int
    n_bytes: int
    is_own: bool = True
    is_large: bool = False
    is_stepwise: bool = False

    @classmethod
    def of(cls, session: Session, n_events: int) -> Self:
        """A session by itself, with so many events."""
        return cls(
            (session,),
            session.committed,
            n_events,
            session.payload_bytes,
            session.source is not REMOTE_SOURCE,
            session.is_large,
            session.is_stepwise,
        )

    @property
    def last_id(self) -> EventId:
        """Of the last event of all, when they have their events."""
        if isinstance(self.sessions, PackedSessions):
            packed = self.sessions.packed[-1]
            return EventId(packed.server, packed.session, len(packed))
        return self.sessions[-1].last_id


class Repeated:
    """The outcome of a request that was registered before, with the same request key.

    Args:
        session: of the first request, or one with the same events that is stored already.
        making: makes the events of such a one, if it is large.

    Attributes:
        session: as given.
        committed, is_large: of the session.
    """

    __slots__ = ("_making", "committed", "is_large", "session")

    def __init__(self, session: Session, making: Steps[list[Event]] | None = None) -> None:
        self.session = session
        self.committed = session.committed
        self.is_large = session.is_large
        self._making = making

    def make_events(self) -> Steps[None]:
        """Make the events of a large session, before it is answered."""
        if self._making is not None:
            self.session.events = yield from self._making


def is_large(n_events: int, n_bytes: int) -> bool:
    """Whether a session of so many events and payload bytes is processed in slices."""
    return n_events > limits.LARGE_SESSION_EVENTS or n_bytes > limits.LARGE_SESSION_BYTES


def payload_bytes(events: Sequence[RegisterEvent | ProcessEvent | Event]) -> int:
    """Size of the payloads of events."""
    return sum([len(event.payload.data) for event in events if event.payload is not None])


def payload_sizes(requests: Sequence[Sequence[RegisterEvent | ProcessEvent]]) -> list[int]:
    """:func:`payload_bytes` of several requests, each with at least one event."""
    sizes = [
        0 if (payload := event.payload) is None else len(payload.data)
        for event in chain.from_iterable(requests)
    ]
    if len(sizes) == len(requests):  # most of them have one event
        return sizes
    of_event = iter(sizes)
    return [sum(islice(of_event, len(events))) for events in requests]


def make_events(
    server: int,
    session: int,
    asked: Iterable[RegisterEvent | ProcessEvent],
    timestamp: Timestamp,
) -> list[Event]:
    """Events of a session: one timestamp, instances from 1."""
    return [
        Event(EventId(server, session, instance), i.type, timestamp, i.source_timestamp, i.payload)
        for instance, i in enumerate(asked, 1)
    ]


class SessionIdAllocator:
    """See the module.

    Args:
        backend: stores the reservation.
        server_id: of the ids.

    Attributes:
        server_id: as given.
    """

    def __init__(self, backend: Backend, server_id: int) -> None:
        self._backend = backend
        self.server_id = server_id
        self._timestamp = Timestamp(0, 0)
        self.renew()

    def renew(self) -> None:
        """Go on behind what is stored and reserved; nothing is under way."""
        mark = self._backend.high_water_mark(self.server_id)
        self._session = mark.session
        self._ceiling = mark.session  # session ids up to here are reserved durably
        self._asked_ceiling = mark.session
        self._timestamp = max(self._timestamp, mark.timestamp or self._timestamp)

    def next_sessions(self, n_sessions: int = 1) -> int:
        """Allocate consecutive session ids, greater than all before; returns the first.

        Raises:
            LimitError: they are not reserved on disk (it is slow, or failed).
        """
        last = self._session + n_sessions
        if last + limits.RESERVED_SESSIONS // 2 > self._asked_ceiling:
            self.reserve()
        if last > self._ceiling:
            raise LimitError("session ids are not reserved on disk yet, try again")
        self._session = last
        return last - n_sessions + 1

    @property
    def newest(self) -> Timestamp:
        """The greatest timestamp used, or the least that may be."""
        return self._timestamp

    def now(self) -> Timestamp:
        """The wall clock, or the greatest timestamp used so far if that is later."""
        self._timestamp = timestamp = max(self._timestamp, Timestamp.now())
        return timestamp

    def see(self, timestamp: Timestamp) -> None:
        """Give only later timestamps than one that another server of the group gave.

        What is registered after it took over from a server whose clock is ahead is found behind
        what that one registered. A clock that is wrong by more (``limits.MAX_SEEN_AHEAD_S``) is not
        followed.
        """
        if timestamp >= self._timestamp and ahead_s(timestamp) <= limits.MAX_SEEN_AHEAD_S:
            # equal ones are ordered by server
            self._timestamp = Timestamp(
                *divmod(timestamp.s * 1_000_000 + timestamp.us + 1, 1_000_000)
            )

    def create_events(
        self,
        session: int,
        register_events: Iterable[RegisterEvent | ProcessEvent],
        timestamp: Timestamp,
    ) -> list[Event]:
        """Events of a session: one timestamp (:meth:`now`), instances from 1."""
        return make_events(self.server_id, session, register_events, timestamp)

    def create_sessions(
        self, first: int, requests: Sequence[Sequence[RegisterEvent | ProcessEvent]]
    ) -> list[Sequence[Event]]:
        """As :meth:`create_events`, of consecutive sessions, with one timestamp."""
        timestamp = self.now()
        if max(map(len, requests)) > 1:
            return [self.create_events(i, j, timestamp) for i, j in enumerate(requests, first)]
        ids = map(EventId, repeat(self.server_id), count(first), repeat(1))
        asked = chain.from_iterable(requests)
        return [
            (Event(event_id, i.type, timestamp, i.source_timestamp, i.payload),)
            for event_id, i in zip(ids, asked, strict=False)
        ]

    def create_events_in_steps(
        self, session: int, register_events: Sequence[RegisterEvent | ProcessEvent]
    ) -> Steps[list[Event]]:
        """As :meth:`create_events`."""
        server, timestamp = self.server_id, self.now()
        events: list[Event] = Many()
        for part in parts(len(register_events)):
            events += [
                Event(
                    EventId(server, session, instance),
                    i.type,
                    timestamp,
                    i.source_timestamp,
                    i.payload,
                )
                for instance, i in enumerate(register_events[part], part.start + 1)
            ]
            yield
        return events

    def reserve(self) -> asyncio.Future[None]:
        """Reserve ids ahead; returns when that is durable."""
        ceiling = self._asked_ceiling = self._session + limits.RESERVED_SESSIONS
        future = self._backend.reserve(self.server_id, ceiling)

        def on_done(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and not future.exception():
                self._ceiling = max(self._ceiling, ceiling)
            elif self._asked_ceiling == ceiling:
                self._asked_ceiling = self._ceiling  # the next request tries again

        if future.done():
            on_done(future)
        else:
            future.add_done_callback(on_done)
        return future

    def release(self) -> asyncio.Future[None]:
        """Give back reserved, unused ids; no more ids can be allocated."""
        self._ceiling = self._session
        return self._backend.reserve(self.server_id, self._session)
