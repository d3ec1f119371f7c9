"""Engine: turns registration requests into sessions of events (000, "Module engine").

One registration request is one session. The engine checks it, gives it the next session
id, lets the modules look at it and add to it, gives its events one timestamp that never
goes backwards, tells its observers, hands the events to the backend, and is told by the
backend when they are durable::

    register() ─▶ check ─▶ modules ─▶ conditions ─▶ events ─▶ backend ─▶ observers (registered)
                                                                 │
                     observers (persisted), Session.committed ◀── commit

The way back: when a commit is done, observers are told that its sessions are persisted, and then
those who registered them go on (``Session.committed``). So a client that hears of persisted events
hears of its own before its registration is acknowledged. Only of a session that is told of in
slices, the acknowledgement does not wait for them. The engine sees to it: it is the first that a
commit calls back, because nobody else has that future before (``_track``).

Without modules, all of this but the commit happens within the call of ``register``. With
modules, sessions wait in a queue and are processed one after the other, each without
waiting for the commit of the one before. A large session is handed over, and told of, in
slices; what comes meanwhile waits for it, so that the order stays.

Life cycle: STANDBY; :meth:`Engine.start` makes it STARTING, creates the modules, registers
the event ``event/<server id>/engine`` STARTED (with the store's ``history``, unless that was told
before) and makes it OPERATIONAL; :meth:`Engine.stop` makes it STOPPING, ends the sessions under
way, registers STOPPED, closes the modules and makes it STANDBY again, each with a bound. While the
backend cannot write (``Backend.failure``), it is STANDBY meanwhile, and so it is while its events
are ahead of the clock by too much (``clock``). Registrations fail unless it is OPERATIONAL; queries
do not mind. An engine whose modules cannot go on closes by itself.

Where a commit failed and its outcome is not known (``OutcomeUnknownError``), nobody is told of its
sessions until the backend knows: then observers are, if they are stored.

Everything here runs on the event loop's thread.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import Final

from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.backends.common import failed
from eventer_bridge.backends.history import History
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.clock import ClockWatch
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.connection_events import Announcer
from eventer_bridge.core.remembered import Remembered, type_bytes
from eventer_bridge.core.session import REMOTE_SOURCE, Session, is_large, payload_bytes
from eventer_bridge.core.session_ids import SessionIdAllocator
from eventer_bridge.core.stalls import Work
from eventer_bridge.core.validation import check_count, check_type
from eventer_bridge.errors import (
    EventerBridgeError,
    InvalidEventError,
    ModuleError,
    NotOperationalError,
    OutcomeUnknownError,
    StorageError,
)
from eventer_bridge.model import (
    Event,
    EventType,
    JsonPayload,
    ProcessEvent,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
    Status,
)
from eventer_bridge.modules.facade import ModuleEngineAdapter
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.modules.runner import ModuleRunner
from eventer_bridge.slices import Many, Steps, WorkLine, next_turn, parts
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

STEP_NEW_TYPES: Final = 16
"""New types that are checked in one step: up to 0.5 ms, if they have many segments."""

ENGINE_SOURCE: Final = Source(SourceType.ENGINE, 0)
"""Source of what the engine registers itself."""


async def create(
    backend: Backend,
    server_id: int,
    *,
    modules: Iterable[ModuleConf] = (),
    conditions: Conditions | None = None,
) -> "Engine":
    """Create an engine and start it.

    Args:
        backend: where events are kept; stays the caller's to close, after the engine.
        server_id: identifier of this server, part of every event id it gives.
        modules: configurations of modules, in the order in which they add to sessions.
        conditions: what events have to fulfil to be stored.

    Raises:
        StorageError: the first session ids could not be reserved.
        ModuleError: a module could not be created; the text says why.
    """
    engine = Engine(backend, server_id, modules, conditions)
    try:
        await engine.start()
    except BaseException:
        await aio.uncancellable(engine.async_close())
        raise
    return engine


class Engine(EventCore):
    """See the module. Made by :func:`create`; what is made without it is STANDBY at first.

    Closing it stops it and gives back the session ids that were reserved and not used.

    Args:
        backend: see :func:`create`, as the others.
        server_id: identifier of this server.
        modules: configurations of modules.
        conditions: conditions of events.
    """

    def __init__(
        self,
        backend: Backend,
        server_id: int,
        modules: Iterable[ModuleConf] = (),
        conditions: Conditions | None = None,
    ) -> None:
        super().__init__(limits.MAX_PENDING_BYTES)
        self._backend = backend
        self._server_id = server_id
        self._module_confs = tuple(modules)
        self._conditions = conditions
        self._loop = asyncio.get_running_loop()
        self._async_group = aio.Group()
        self._phase = Status.STANDBY
        self._is_started = False  # STARTED is registered, and STOPPED is not
        self._is_before_stop = False  # modules may register for the last time
        self._announcer = Announcer(server_id, self._register_announced)
        self._session_ids = SessionIdAllocator(backend, server_id)
        self._clock = ClockWatch(lambda: self._session_ids.newest, self._notify_status)
        self._checked_types: Remembered[EventType, None] = Remembered()
        self._runner: ModuleRunner | None = None
        self._n_own = 0  # sessions under way that were registered here, not replicated
        self._uncommitted: dict[asyncio.Future[None], list[Session]] = {}
        self._unnotified: set[Session] = set()  # of those whose outcome is not known
        self._handing_over = WorkLine()
        self._notifying = WorkLine()
        self._own_ended = asyncio.Event()  # set while there are none of them
        self._own_ended.set()
        self._starting_or_stopping = asyncio.Lock()
        self._failure_handle = backend.register_failure_cb(self._notify_status)
        self.async_group.spawn(self._clock.run)
        self.async_group.spawn(aio.call_on_cancel, self._close)
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
        """See :class:`EventCore`."""
        is_able = self._backend.failure is None and self._clock.fault is None
        if self._phase is Status.OPERATIONAL and not is_able:
            return Status.STANDBY
        return self._phase

    def register(
        self,
        source: Source,
        register_events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None = None,
    ) -> Session:
        """Register events as one session, all or none.

        Returns:
            The session, whose events are durable when its ``committed`` is done; sessions
            are committed in the order of the calls. Of no events, it is done at once.

        Raises:
            NotOperationalError: the status is not OPERATIONAL.
            InvalidEventError: a type cannot be registered.
            LimitError: one of ``limits`` would be exceeded.
            ConditionError: a condition does not hold. This and what follows fails the
                session's ``committed`` if there are modules.
            ModuleError: a module failed.
            StorageError: the store failed.
            OutcomeUnknownError: it did, and nobody knows whether the events are stored.
            ClosedError: the store is closed.
        """
        if self._phase is not Status.OPERATIONAL or self._clock.fault is not None:
            is_last_of_module = self._is_before_stop and source.type is SourceType.MODULE
            self._check_ready(self._phase is Status.OPERATIONAL or is_last_of_module)
        return self._register(source, register_events, quota)

    @property
    def clock_ahead_s(self) -> float:
        """Seconds that the newest event of this server is ahead of the clock of its machine."""
        return self._clock.ahead_s

    def replicated(self, server_id: int) -> HighWaterMark:
        """The last session of another server that is kept; ``timestamp`` is None where none is.

        Raises:
            StorageError: that is not known: what failed to be stored may be found all the same.
            ClosedError: the store is closed.
        """
        if self._backend.failure is not None:
            raise StorageError(self._backend.failure)
        return self._backend.last_session(server_id)

    def replicate(self, events: Sequence[Event]) -> asyncio.Future[None]:
        """Keep a session of another server as it is, and tell of it. Whatever the status is.

        Args:
            events: events of one session of that server, as ``Backend.register`` asks for:
                later than everything of it that was handed over before.

        Returns:
            A future that is done when they are durable; never to be cancelled.
        """
        server_id = events[0].id.server
        if server_id == self._server_id:
            error = InvalidEventError(f"events of server {server_id}, which is this one")
            return failed(self._loop.create_future(), error)
        n_bytes = payload_bytes(events)
        if is_large(len(events), n_bytes) or self._handing_over.is_busy:
            future = self._loop.create_future()
            session = Session(REMOTE_SOURCE, len(events), n_bytes, future, events)
            self._pending.add(len(events), n_bytes)
            self._handing_over.add(functools.partial(self._take_over_replicated, session))
            return future
        try:
            self._backend.check_types({event.type for event in events})
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        commit = self._backend.register(events)
        if commit.done() and commit.exception():
            return commit
        self._pending.add(len(events), n_bytes)
        self._track(Session(REMOTE_SOURCE, len(events), n_bytes, commit, events), commit)
        return commit

    async def give_way(self) -> None:
        """Let what is registered here go before what is replicated, for a while at the most."""
        await next_turn()
        if self._n_own:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.GIVE_WAY_S):
                    await self._own_ended.wait()

    async def query(
        self,
        params: QueryParams,
        subscription: Subscription | None = None,
        client: str = "",
        after: Collection[asyncio.Future[None]] = (),
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """See :class:`EventCore`; and ``Backend.query`` for what else is promised."""
        if waiting := [commit for commit in after if not commit.done()]:
            await asyncio.wait(waiting)
        return await self._backend.query(params, subscription, client, holding)

    async def check_ready(self) -> None:
        """See :class:`EventCore`."""
        for fault in (self._backend.failure, self._clock.fault):
            if fault is not None:
                raise NotOperationalError(fault)
        await super().check_ready()
        await self._backend.check()

    def _work(self) -> Iterable[Work]:
        backend = self._backend
        yield Work("events wait for their commit", self.pending_events, self._pending.n_ended)
        yield Work("queries wait for their answer", sum(backend.query_load), backend.query_turns)

    async def start(self) -> None:
        """Become OPERATIONAL, if it is STANDBY.

        Raises:
            StorageError: session ids could not be reserved, or STARTED not be registered.
            ModuleError: a module could not be created, or failed STARTED.
        """
        async with self._starting_or_stopping:
            if self._phase is not Status.STANDBY or not self.is_open:
                return
            self._enter(Status.STARTING)
            await self._session_ids.reserve()
            if self._module_confs:
                self._runner = ModuleRunner(
                    self._server_id,
                    self._next_session,
                    self._on_processed,
                    self._on_failed,
                    self._on_modules_died,
                )
                engine = ModuleEngineAdapter(self, self._runner)
                await self._runner.create_modules(self._module_confs, engine)
            await self._register_status("STARTED", await self._new_history())
            self._is_started = True
            if self._runner is not None and self._runner.is_abandoned:
                raise ModuleError("modules cannot go on")
            self._enter(Status.OPERATIONAL)

    async def stop(self, *, is_last: bool = False) -> None:
        """Become STANDBY, whatever it is; each step of it is bounded.

        Queries are answered until it is closed.

        Args:
            is_last: whether connections end with it, and are told of so.
        """
        async with self._starting_or_stopping:
            if self._phase is Status.STANDBY:
                return
            self._enter(Status.STOPPING)
            await self._announcer.settle()
            if self._runner is not None and not await _in_time(self._end_modules(is_last)):
                mlog.error("modules do not end their sessions, which fail now")
                await self._runner.abandon()
            if is_last:
                await self._announcer.end()
            await self._register_stopped()
            if self._runner is not None:
                if not await _in_time(self._runner.wait_ended()):
                    mlog.error("modules do not close their sessions")
                    await self._runner.abandon()
                timeout_s = limits.STOP_TIMEOUT_S + limits.INTERRUPTED_TIMEOUT_S
                if not await _in_time(self._runner.async_close(), timeout_s):
                    mlog.error("modules do not end")
                self._runner = None
            self._enter(Status.STANDBY)

    async def _end_modules(self, is_last: bool) -> None:
        """Let modules process what is under way, and then register what they still have."""
        assert self._runner is not None
        await self._own_ended.wait()
        if is_last:
            await self._announcer.end()
        await self._runner.wait_ended()
        self._is_before_stop = True
        try:
            await self._runner.before_stop()
        finally:
            self._is_before_stop = False

    async def _register_stopped(self) -> None:
        # not for replicated sessions, which go on coming
        if not await _in_time(self._own_ended.wait(), limits.DRAIN_TIMEOUT_S):
            mlog.error("sessions do not end", extra={"sessions": self._n_own})
        elif self._is_started and self._backend.is_open:
            try:
                registered = self._register_status("STOPPED")
                if not await _in_time(registered, limits.DRAIN_TIMEOUT_S):
                    mlog.error("STOPPED is not committed in time")
            except EventerBridgeError as e:
                mlog.error("engine could not register its end", extra={"reason": str(e)})
        self._is_started = False

    def _on_modules_died(self) -> None:
        """Nothing can be registered any more."""
        self._enter(Status.STOPPING)
        self.close()

    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """Register the events of ``connection_events``.

        While the server is not OPERATIONAL, there is nothing but a line in the log.
        """
        self._announcer.announce(source, client_name, is_connected=is_connected)

    def _register_announced(
        self, source: Source, events: Sequence[RegisterEvent], quota: TypeQuota | None
    ) -> None:
        self._check_ready(self._is_started)  # which it is until STOPPED
        self._register(source, events, quota)

    def _check_ready(self, is_ready: bool) -> None:
        if not is_ready:
            raise NotOperationalError(f"server is {self._phase.name}, not OPERATIONAL")
        if self._clock.fault is not None:
            raise NotOperationalError(self._clock.fault)

    def check_types(
        self, events: Iterable[RegisterEvent | ProcessEvent], quota: TypeQuota | None = None
    ) -> None:
        """Refuse events whose types cannot be registered.

        Args:
            events: events.
            quota: of the client that brings them.

        Raises:
            InvalidEventError: a type cannot be registered.
            LimitError: there are too many types, or too many of the client's.
        """
        if new_types := self._unchecked_types(events):
            self._check_new_types(new_types, quota)

    def _unchecked_types(
        self, events: Iterable[RegisterEvent | ProcessEvent | Event]
    ) -> set[EventType]:
        checked = self._checked_types.known
        return {event.type for event in events if event.type not in checked}

    def _check_new_types(self, new_types: Collection[EventType], quota: TypeQuota | None) -> None:
        for event_type in new_types:
            check_type(event_type)
            if history.is_history(event_type) and self._phase is not Status.STARTING:
                raise InvalidEventError("event/?/history is for servers, which tell of their own")
        self._backend.check_types(new_types, quota)
        for event_type in new_types:
            if not history.is_history(event_type):  # to be refused each time
                self._checked_types.remember(event_type, None, type_bytes(event_type))

    async def _close(self) -> None:
        await self.stop(is_last=True)
        self._failure_handle.cancel()
        if not self._backend.is_open:
            return
        try:
            await self._session_ids.release()
        except EventerBridgeError as e:
            mlog.error("engine could not flush", extra={"reason": str(e)})

    async def known_history(self, server_id: int) -> History | None:
        """The history that the events of a server are of which are stored; None: not known.

        Raises:
            EventerBridgeError: as :meth:`query`.
        """
        params = QueryLatestParams([history.type_of(server_id)])
        result = await self._backend.query(params)
        return history.read_all(result.events).get(server_id)

    async def _new_history(self) -> list[RegisterEvent]:
        """What this server is to tell of its history, unless it has told that already."""
        told = await self.known_history(self._server_id)
        history_id = self._backend.history_id
        if told is not None and told.id == history_id:
            return []
        last = self._backend.last_session(self._server_id)
        last_session = None if last.timestamp is None else last.session
        return [history.begin(self._server_id, history_id, told, last_session)]

    async def _register_status(self, status: str, others: Sequence[RegisterEvent] = ()) -> None:
        event_type = ("event", str(self._server_id), "engine")
        event = RegisterEvent(event_type, None, JsonPayload.of(status))
        session = self._register(ENGINE_SOURCE, [event, *others])
        await asyncio.wait([session.committed])
        session.committed.result()

    def _register(
        self,
        source: Source,
        events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None = None,
    ) -> Session:
        n_events = len(events)
        check_count(n_events)
        n_bytes = payload_bytes(events)
        is_stepwise = is_large(n_events, n_bytes)
        has_modules = self._runner is not None and not self._runner.is_abandoned
        if (not is_stepwise or has_modules) and (new_types := self._unchecked_types(events)):
            is_stepwise |= len(new_types) > limits.MANY_NEW_TYPES
            if not is_stepwise or has_modules:
                self._check_new_types(new_types, quota)
        if not events:
            nothing: asyncio.Future[None] = self._loop.create_future()
            nothing.set_result(None)
            return Session(source, 0, 0, nothing)
        if not has_modules and not is_stepwise and not self._handing_over.is_busy:
            created, commit = self._hand_over(events, quota, n_events)
            session = Session(source, n_events, n_bytes, commit, created)
            self._begin_own(session)
            self._track(session, commit)
            return session
        session = Session(source, n_events, n_bytes, self._loop.create_future(), quota=quota)
        session.is_stepwise = is_stepwise
        self._begin_own(session)
        if has_modules:
            assert self._runner is not None
            self._runner.submit(session, events)
        else:
            self._handing_over.add(functools.partial(self._take_over, session, events))
        return session

    def _begin_own(self, session: Session) -> None:
        self._pending.add(session.requested, session.payload_bytes)
        if session.is_large:
            self._pending.large_events += session.requested
        if not self._n_own:
            self._own_ended.clear()
        self._n_own += 1

    def _hand_over(
        self,
        events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None,
        n_asked: int,
        session_id: int | None = None,
    ) -> tuple[list[Event], asyncio.Future[None]]:
        """Hand a session's events to the backend."""
        if self._conditions:
            self._conditions.check(events)
        if session_id is None:
            session_id = self._session_ids.next_session()
        created = self._session_ids.create_events(session_id, events)
        commit = self._backend.register(created, quota, n_asked)
        if commit.done() and (error := commit.exception()):
            raise error
        return created, commit

    def _next_session(self) -> int:
        """For modules, which are not to look at what cannot be stored."""
        if self._backend.failure is not None:
            raise StorageError(self._backend.failure)
        return self._session_ids.next_session()

    def _on_processed(
        self, session: Session, session_id: int, events: Sequence[ProcessEvent]
    ) -> None:
        added = events[session.requested :]
        self.check_types(added)
        added_bytes = payload_bytes(added)  # fails before anything is handed over
        session.is_stepwise |= is_large(len(events), session.payload_bytes + added_bytes)
        if self._handing_over.is_busy or session.is_stepwise:
            self._handing_over.add(
                functools.partial(self._take_over, session, events, session_id, added_bytes)
            )
            return
        session.events, commit = self._hand_over(
            events, session.quota, session.requested, session_id
        )
        self._on_handed_over(session, commit, added_bytes)

    def _on_failed(self, session: Session, error: EventerBridgeError) -> None:
        self._n_own -= 1
        self._pending.remove(session.requested, session.payload_bytes)
        if session.is_large:
            self._pending.large_events -= session.requested
        session.resolve(error)
        self._notify_drained()

    def _take_over(
        self,
        session: Session,
        events: Sequence[RegisterEvent | ProcessEvent],
        session_id: int | None = None,
        added_bytes: int = 0,
    ) -> Steps[None]:
        """Hand a session over in its turn, a large one in steps."""
        try:
            if session.is_stepwise:
                created, commit = yield from self._hand_over_in_steps(session, events, session_id)
            else:
                created, commit = self._hand_over(
                    events, session.quota, session.requested, session_id
                )
        except EventerBridgeError as e:
            self._on_failed(session, e)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # a panic of RocksDB's binding is no Exception
            mlog.exception("session failed")
            self._on_failed(session, StorageError(f"the session failed: {e!r}"))
        else:
            session.events = created
            self._on_handed_over(session, commit, added_bytes)

    def _take_over_replicated(self, session: Session) -> Steps[None]:
        """As :meth:`_take_over`, of another server's session."""
        try:
            if session.is_stepwise:
                commit = yield from self._backend.register_in_steps(session.events)
            else:
                commit = self._backend.register(session.events)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as e:
            mlog.exception("replicated session failed")
            commit = failed(self._loop.create_future(), StorageError(f"it failed: {e!r}"))
        if commit.done() and (error := commit.exception()):
            self._pending.remove(session.requested, session.payload_bytes)
            session.resolve(error)
            self._notify_drained()
        else:
            self._track(session, commit)

    def _hand_over_in_steps(
        self,
        session: Session,
        events: Sequence[RegisterEvent | ProcessEvent],
        session_id: int | None,
    ) -> Steps[tuple[list[Event], asyncio.Future[None]]]:
        """As :meth:`_hand_over`; its types are checked, too."""
        events = Many(events)
        for part in parts(len(events)):
            # what modules added was checked, and does not count as the client's
            asked = events[part.start : min(part.stop, session.requested)]
            new_types = [*self._unchecked_types(asked)]
            for begin in range(0, len(new_types), STEP_NEW_TYPES):
                some = new_types[begin : begin + STEP_NEW_TYPES]
                self._check_new_types(some, session.quota)
                yield
            if self._conditions:
                self._conditions.check(events[part])
            yield
        if session_id is None:
            session_id = self._session_ids.next_session()
        created = yield from self._session_ids.create_events_in_steps(session_id, events)
        commit = yield from self._backend.register_in_steps(
            created, session.quota, session.requested
        )
        if commit.done() and (error := commit.exception()):
            raise error
        return created, commit

    def _on_handed_over(
        self, session: Session, commit: asyncio.Future[None], added_bytes: int
    ) -> None:
        """Count what modules added, too."""
        n_events = len(session.events)
        if n_events != session.requested:
            self._pending.add(n_events - session.requested, added_bytes)
            session.payload_bytes += added_bytes
            if session.is_large:
                self._pending.large_events -= session.requested
            session.is_large = is_large(n_events, session.payload_bytes)
            if session.is_large:
                self._pending.large_events += n_events
        self._track(session, commit)

    def _track(self, session: Session, commit: asyncio.Future[None]) -> None:
        """Wait for the commit of a session, and tell of the session meanwhile."""
        sessions = self._uncommitted.get(commit)
        if sessions is None:
            sessions = self._uncommitted[commit] = []
            # callbacks are called in the order in which they are added, and this is the first:
            # what is persisted is told of before it is acknowledged
            commit.add_done_callback(self._on_committed)
        sessions.append(session)
        if session.is_stepwise or self._notifying.is_busy:
            self._notifying.add(functools.partial(self._notify_registered_in_turn, session))
        else:
            self._notify_session(session, persisted=False)

    def _on_committed(self, commit: asyncio.Future[None]) -> None:
        sessions = self._uncommitted.pop(commit)
        error = commit.exception()
        if isinstance(error, OutcomeUnknownError) and error.decided is not None:
            error.decided.add_done_callback(functools.partial(self._on_decided, sessions, error))
        is_busy = self._notifying.is_busy
        for session in sessions:
            if error is not None or not (session.is_stepwise or is_busy):
                self._end(session, commit)
                if error is None:
                    self._notify_session(session, persisted=True)
            else:
                self._notifying.add(functools.partial(self._end_in_turn, session, commit))
                is_busy = True  # those behind wait, too
        self._notify_drained()

    def _on_decided(
        self, sessions: Sequence[Session], error: OutcomeUnknownError, _: object
    ) -> None:
        """It is known at last whether these are stored."""
        untold, self._unnotified = self._unnotified, set()
        if not error.is_stored():
            return
        for session in sessions:
            for persisted in (False, True) if session in untold else (True,):
                self._notifying.add(
                    functools.partial(self._notify_in_turn, session, persisted=persisted)
                )

    def _end(self, session: Session, commit: asyncio.Future[None]) -> None:
        n_events = len(session.events)
        self._pending.remove(n_events, session.payload_bytes)
        if session.source is not REMOTE_SOURCE:
            self._n_own -= 1
            if session.is_large:
                self._pending.large_events -= n_events
        if session.committed is not commit:
            session.resolve(commit.exception())

    def _end_in_turn(self, session: Session, commit: asyncio.Future[None]) -> Steps[None]:
        self._end(session, commit)
        yield from self._notify_in_turn(session, persisted=True)
        self._notify_drained()

    def _notify_registered_in_turn(self, session: Session) -> Steps[None]:
        """Tell of a session, unless its commit failed meanwhile."""
        error = session.committed.exception() if session.committed.done() else None
        if error is None:
            yield from self._notify_in_turn(session, persisted=False)
        elif isinstance(error, OutcomeUnknownError):
            if error.is_stored() is None:
                self._unnotified.add(session)
            elif error.is_stored():
                yield from self._notify_in_turn(session, persisted=False)

    def _notify_in_turn(self, session: Session, *, persisted: bool) -> Steps[None]:
        if session.is_stepwise:
            yield from self._notify_in_steps(session, persisted=persisted)
        else:
            self._notify_session(session, persisted=persisted)

    def _notify_drained(self) -> None:
        if not self._n_own:
            self._own_ended.set()
        self._pending.notify_drained()

    def _enter(self, phase: Status) -> None:
        self._phase = phase
        self._notify_status()


async def _in_time(waiting: Awaitable[object], timeout_s: float | None = None) -> bool:
    """Wait; whether that was enough.

    Args:
        waiting: what for.
        timeout_s: how long; None: ``limits.STOP_TIMEOUT_S``.
    """
    try:
        async with asyncio.timeout(limits.STOP_TIMEOUT_S if timeout_s is None else timeout_s):
            await waiting
    except TimeoutError:
        return False
    return True
