"""Engine: turns registration requests into sessions of events (000, "Module engine").

One registration request is one session. The engine checks it, gives it the next session
id, one timestamp that never goes backwards and instance ids from 1, tells its observers,
hands the events to the backend, and is told by the backend when they are durable::

    register() ─▶ check ─▶ ids, timestamp ─▶ backend ─▶ observers (registered) ─▶ Session
                                                │
                    observers (persisted) ◀── commit ──▶ Session.committed

Session ids are reserved on disk ahead of use (``limits.RESERVED_SESSIONS``): an observer
may see an id before its commit, and no id that anybody has seen is given again, also not
after kill -9.

Everything here runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.errors import (
    EventerBridgeError,
    InvalidEventError,
    LimitError,
    NotOperationalError,
)
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    Status,
    Timestamp,
    check_registrable,
)
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)


class Session:
    """The events of one registration request.

    Attributes:
        source: who asked.
        events: its events, in the order of the request.
        payload_bytes: size of all their payloads.
        committed: done when they are durable; fails with ``StorageError`` or ``ClosedError``
            where they may not be. Sessions that are committed together share it, so it is
            never to be cancelled: wait for it with ``asyncio.wait`` where that could happen.
        encodings: encoded events by wire, filled in by the wires themselves, so that an
            event is encoded once per wire and not once per receiver.
    """

    __slots__ = ("committed", "encodings", "events", "payload_bytes", "source")

    def __init__(
        self,
        source: Source,
        events: Sequence[Event],
        payload_bytes: int,
        committed: asyncio.Future[None],
    ) -> None:
        self.source = source
        self.events = events
        self.payload_bytes = payload_bytes
        self.committed = committed
        self.encodings: dict[str, Any] = {}


class Observer(Protocol):
    """Who wants to hear of sessions and of the status. Calls must not block or raise."""

    def on_session(self, session: Session, persisted: bool) -> None:
        """A session was registered (``persisted`` false) or is durable (true)."""

    def on_status(self, status: Status) -> None:
        """The status changed."""


async def create(backend: Backend, server_id: int) -> "Engine":
    """Create an engine that is OPERATIONAL.

    Args:
        backend: where events are kept; stays the caller's to close, after the engine.
        server_id: identifier of this server, part of every event id it gives.

    Raises:
        StorageError: the first session ids could not be reserved.
    """
    engine = Engine(backend, server_id)
    try:
        await engine._reserve()
    except BaseException:
        engine.close()
        raise
    engine._set_status(Status.OPERATIONAL)
    return engine


class Engine(aio.Resource):
    """See the module. Made by :func:`create`.

    Closing it refuses new registrations (STOPPING), waits until those under way are
    durable, and gives back the session ids that were reserved and not used.
    """

    def __init__(self, backend: Backend, server_id: int) -> None:
        self._backend = backend
        self._server_id = server_id
        self._loop = asyncio.get_running_loop()
        self._async_group = aio.Group()
        self._status = Status.STARTING
        self._observers: list[Observer] = []
        mark = backend.server_mark(server_id)
        self._session = mark.session
        self._ceiling = mark.session  # session ids up to here are reserved durably
        self._asked_ceiling = mark.session
        self._timestamp = mark.timestamp or Timestamp(0, 0)
        self._checked_types: set[EventType] = set()
        self._pending_events = 0
        self._pending_bytes = 0
        self._uncommitted: dict[asyncio.Future[None], list[Session]] = {}
        self._drained_cbs: list[Callable[[], None]] = []
        self._nothing_pending = asyncio.Event()
        self._nothing_pending.set()
        self.async_group.spawn(aio.call_on_cancel, self._stop)
        self.async_group.spawn(aio.call_on_done, backend.wait_closing(), self.close)

    @property
    def async_group(self) -> aio.Group:
        """Group of the engine's tasks."""
        return self._async_group

    @property
    def server_id(self) -> int:
        """Identifier of this server."""
        return self._server_id

    @property
    def status(self) -> Status:
        """Current status; registrations succeed only while it is OPERATIONAL."""
        return self._status

    @property
    def pending_events(self) -> int:
        """Events that wait for their commit."""
        return self._pending_events

    @property
    def is_full(self) -> bool:
        """Whether callers should stop handing in work until :meth:`when_drained` calls."""
        return (
            self._pending_events > limits.MAX_PENDING_EVENTS
            or self._pending_bytes > limits.MAX_PENDING_BYTES
        )

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as the engine is no longer full."""
        self._drained_cbs.append(callback)

    def add_observer(self, observer: Observer) -> None:
        """Tell ``observer`` of every session and status from now on."""
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Tell it no longer."""
        self._observers.remove(observer)

    def register(self, source: Source, register_events: Sequence[RegisterEvent]) -> Session:
        """Register events as one session, all or none.

        Returns:
            The session, whose events are durable when its ``committed`` is done; sessions
            are committed in the order of the calls. Of no events, it is done at once.

        Raises:
            NotOperationalError: the status is not OPERATIONAL.
            InvalidEventError: a type cannot be registered.
            LimitError: one of ``limits`` would be exceeded.
            StorageError: the store failed.
            ClosedError: the store is closed.
        """
        self._check(register_events)
        if not register_events:
            nothing: asyncio.Future[None] = self._loop.create_future()
            nothing.set_result(None)
            return Session(source, (), 0, nothing)
        events = self._create_events(register_events)
        commit = self._backend.register(events)
        if commit.done() and (error := commit.exception()):
            raise error
        payload_bytes = sum([len(i.payload.data) for i in register_events if i.payload is not None])
        session = Session(source, events, payload_bytes, commit)
        self._pending_events += len(events)
        self._pending_bytes += payload_bytes
        sessions = self._uncommitted.get(commit)
        if sessions is None:
            sessions = self._uncommitted[commit] = []
            commit.add_done_callback(self._on_committed)
            self._nothing_pending.clear()
        sessions.append(session)
        for observer in self._observers:
            observer.on_session(session, persisted=False)
        return session

    async def query(
        self, params: QueryParams, subscription: Subscription | None = None
    ) -> QueryResult:
        """Answer a query; see ``Backend.query`` for what is promised and raised."""
        return await self._backend.query(params, subscription)

    def _check(self, register_events: Sequence[RegisterEvent]) -> None:
        if self._status is not Status.OPERATIONAL:
            raise NotOperationalError(f"server is {self._status.name}, not OPERATIONAL")
        if len(register_events) > limits.MAX_SESSION_EVENTS:
            raise LimitError(
                f"{len(register_events)} events in one request, at most"
                f" {limits.MAX_SESSION_EVENTS} are allowed"
            )
        checked = self._checked_types
        new_types = {event.type for event in register_events if event.type not in checked}
        if not new_types:
            return
        for event_type in new_types:
            _check_type(event_type)
        self._backend.check_types(new_types)
        if len(checked) > limits.CHECKED_TYPES:
            checked.clear()
        checked |= new_types

    def _create_events(self, register_events: Sequence[RegisterEvent]) -> list[Event]:
        if self._session >= self._ceiling:
            raise LimitError("session ids are not reserved on disk yet, try again")
        self._session += 1
        if self._session + limits.RESERVED_SESSIONS // 2 > self._asked_ceiling:
            self._reserve().add_done_callback(_ignore_result)
        self._timestamp = timestamp = max(self._timestamp, Timestamp.now())

        server, session = self._server_id, self._session
        return [
            Event(
                EventId(server, session, instance), i.type, timestamp, i.source_timestamp, i.payload
            )
            for instance, i in enumerate(register_events, 1)
        ]

    def _reserve(self) -> asyncio.Future[None]:
        ceiling = self._asked_ceiling = self._session + limits.RESERVED_SESSIONS
        future = self._backend.reserve(self._server_id, ceiling)

        def on_done(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and not future.exception():
                self._ceiling = ceiling

        if future.done():
            on_done(future)
        else:
            future.add_done_callback(on_done)
        return future

    def _on_committed(self, commit: asyncio.Future[None]) -> None:
        sessions = self._uncommitted.pop(commit)
        is_durable = not commit.cancelled() and commit.exception() is None
        for session in sessions:
            self._pending_events -= len(session.events)
            self._pending_bytes -= session.payload_bytes
            if is_durable:
                for observer in self._observers:
                    observer.on_session(session, persisted=True)
        if not self._uncommitted:
            self._nothing_pending.set()
        if self._drained_cbs and not self.is_full:
            callbacks, self._drained_cbs = self._drained_cbs, []
            for callback in callbacks:
                callback()

    def _set_status(self, status: Status) -> None:
        if status is self._status:
            return
        self._status = status
        mlog.info("engine status changed", extra={"status": status.name})
        for observer in self._observers:
            observer.on_status(status)

    async def _stop(self) -> None:
        self._set_status(Status.STOPPING)
        await self._nothing_pending.wait()
        if not self._backend.is_open:
            return
        try:
            await self._backend.reserve(self._server_id, self._session)
        except EventerBridgeError as e:
            mlog.error("engine could not flush", extra={"reason": str(e)})


def _check_type(event_type: EventType) -> None:
    check_registrable(event_type)
    if len(event_type) > limits.MAX_TYPE_SEGMENTS:
        raise InvalidEventError(
            f"event type has {len(event_type)} segments, at most {limits.MAX_TYPE_SEGMENTS}"
            " are allowed"
        )
    size_bytes = sum(len(segment.encode()) for segment in event_type)
    if size_bytes > limits.MAX_TYPE_BYTES:
        raise InvalidEventError(
            f"event type has {size_bytes} bytes, at most {limits.MAX_TYPE_BYTES} are allowed"
        )


def _ignore_result(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
