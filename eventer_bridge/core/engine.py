"""Engine: the event core that stores events itself, and its life cycle (000, "Module engine").

What becomes of a registration is in :class:`~eventer_bridge.core.session_core.SessionCore`, and of
what other servers registered in :class:`~eventer_bridge.core.replicated.ReplicaCore`.

STANDBY; :meth:`Engine.start` makes it STARTING, creates the modules, registers the event
``event/<server id>/engine`` STARTED (with the store's ``history`` if it is a new one) and makes it
OPERATIONAL; :meth:`Engine.stop` makes it STOPPING, ends the sessions under way, registers STOPPED,
closes the modules and makes it STANDBY again, each with a bound. While the backend cannot write
(``Backend.failure``), or its events are too far ahead of the clock (``clock``), it has a ``fault``,
and is STANDBY meanwhile. Registrations fail unless it is OPERATIONAL; queries are always answered.
An engine whose modules cannot continue closes by itself.

Everything here runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.history import History
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.base import Work
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.connection_events import Announcer
from eventer_bridge.core.cursors import Cursors
from eventer_bridge.core.paging import query_all
from eventer_bridge.core.replicated import ReplicaCore
from eventer_bridge.errors import EventerBridgeError, ModuleError, NotOperationalError, StorageError
from eventer_bridge.model import (
    Event,
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
from eventer_bridge.modules.base import ModuleEngine
from eventer_bridge.modules.calls import check_made
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.modules.runner import ModuleRunner
from eventer_bridge.resources import call_on_cancel, call_on_done, closed_on_error, in_time

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

ENGINE_SOURCE: Final = Source(SourceType.ENGINE, 0)
"""Source of what the engine registers itself."""


async def create(
    backend: Backend,
    server_id: int,
    *,
    modules: Iterable[ModuleConf] = (),
    conditions: Conditions | None = None,
    hold_s: float = 0.0,
) -> "Engine":
    """Create an engine and start it; arguments: see :class:`Engine`.

    ``StorageError``: the first session ids could not be reserved. ``ModuleError``: a module could
    not be created; the text says why.
    """
    engine = Engine(backend, server_id, modules, conditions, hold_s)
    async with closed_on_error(engine):
        await engine.start()
    return engine


class Engine(ReplicaCore):
    """See the module. Made by :func:`create`; what is made without it is STANDBY at first.

    Closing it stops it and gives back the session ids that were reserved and not used.
    ``waits_for`` is why it is not started, as who starts it tells (``remote.monitor``).

    Args:
        backend: where events are kept; stays the caller's to close, after the engine.
        server_id: identifier of this server, part of every event id it gives.
        modules: configurations of modules, in the order in which they add to sessions.
        conditions: what events have to fulfil to be stored.
        hold_s: how long at most retention keeps what is behind a cursor; 0: it does not care.
        is_in_pair: see :class:`~eventer_bridge.core.session_core.SessionCore`.
    """

    def __init__(
        self,
        backend: Backend,
        server_id: int,
        modules: Iterable[ModuleConf] = (),
        conditions: Conditions | None = None,
        hold_s: float = 0.0,
        *,
        is_in_pair: bool = False,
    ) -> None:
        self._module_confs = tuple(modules)
        self.server_id: int = server_id
        has_modules = bool(self._module_confs)
        super().__init__(
            backend, server_id, conditions, has_modules=has_modules, is_in_pair=is_in_pair
        )
        self.waits_for: str | None = None
        self._is_started = False  # STARTED is registered, and STOPPED is not
        self._announcer = Announcer(server_id, self._register_announced)
        self._starting_or_stopping = asyncio.Lock()
        self._failure_handle = backend.failure_cbs.register(self._notify_status)
        if backend.is_keeping:
            cursors = self.cursors = Cursors(backend, hold_s, core=self)
            self.async_group.spawn(cursors.rows.run)
            self.async_group.spawn(cursors.watch)
        self.async_group.spawn(self._clock.run)
        self.async_group.spawn(call_on_cancel, self._close)
        self.async_group.spawn(call_on_done, backend.wait_closing(), self.close)

    @property
    def clock_ahead_s(self) -> float:
        """Seconds that the newest event of this server is ahead of the clock of its machine."""
        return self._clock.ahead_s

    @override
    async def answer(
        self,
        query: VisibleQuery,
        client: str = "",
        after: Collection[asyncio.Future[None]] = (),
        holding: ExitStack | None = None,
    ) -> QueryResult:
        """See also ``Backend.answer``."""
        if waiting := [commit for commit in after if not commit.done()]:
            await asyncio.wait(waiting)
        return await self._backend.answer(query, client, holding)

    @override
    def answer_at_once(
        self, query: VisibleQuery, after: Collection[asyncio.Future[None]] = ()
    ) -> QueryResult | None:
        if after and not all(commit.done() for commit in after):
            return None
        return self._backend.answer_at_once(query)

    @property
    @override
    def hindrance(self) -> str | None:
        return None if self.status is Status.OPERATIONAL else self.fault or self.waits_for

    @override
    def n_deletions(self) -> int:
        return self._backend.n_deletions()

    @override
    async def check_ready(self) -> None:
        await super().check_ready()
        await self._backend.check()

    @override
    def _work(self) -> Iterable[Work]:
        backend = self._backend
        yield Work("events wait for their commit", self.pending_events, self.n_ended)
        yield Work("queries wait for their answer", sum(backend.query_load), backend.query_turns)

    async def find_fault(self) -> str | None:
        """As :attr:`fault`, of this moment; also what ``Backend.check`` finds.

        That little of the disk is free is no fault: others may have no more.
        """
        self._clock.look()
        try:
            await self._backend.check(min_free_bytes=0)
        except StorageError as e:
            return str(e)
        return self.fault

    async def start(self) -> None:
        """Become OPERATIONAL, if it is STANDBY.

        ``StorageError``, ``OutcomeUnknownError``: session ids could not be reserved, or STARTED not
        be registered. ``ModuleError``: a module could not be created, or failed STARTED.
        """
        async with self._starting_or_stopping:
            if self._phase is not Status.STANDBY or not self.is_open:
                return
            self._enter(Status.STARTING)
            if self.is_regaining:
                await self._end_regaining()
            known = await self.read_histories()
            await self._session_ids.reserve()
            if self._module_confs:
                self._runner = ModuleRunner(
                    self._server_id,
                    self._next_session,
                    self._on_processed,
                    self._on_failed,
                    self._on_modules_died,
                )
                engine = _ModuleEngine(self, self._runner)
                await self._runner.create_modules(self._module_confs, engine)
            begun = self._new_history(known)
            if begun and known is not None:
                extra = {"history": self._backend.history_id, "before": known.id}
                audit.info("restored", extra=extra)
            await self._register_status("STARTED", begun)
            self._is_started = True
            await self.note_whole()
            if self._runner is not None and self._runner.is_abandoned:
                raise ModuleError("modules cannot go on")
            self._enter(Status.OPERATIONAL)

    @property
    def is_whole(self) -> bool:
        """See ``Backend.is_whole``."""
        return self._backend.is_whole

    async def note_whole(self) -> None:
        """See ``Backend.note_whole``; a failure is logged."""
        try:
            await self._backend.note_whole()
        except StorageError as e:
            mlog.warning("event store cannot be noted as whole", extra={"reason": str(e)})

    async def begin_regaining(self) -> None:
        """Take events of this server from others, which have more of them, until it is started.

        It will go on far above them, with another history: clients may have seen more than anybody
        still has. ``NotOperationalError``: it is not STANDBY. Others: the store failed.
        """
        if self._phase is not Status.STANDBY:
            raise NotOperationalError(f"server is {self._phase.name}, not STANDBY")
        if not self.is_regaining:
            await self._backend.begin_history(self._server_id)
            self._session_ids.renew()
            self.is_regaining = True
            # what clients know of it is of the history of what it gets back
            own = self._server_id
            self._set_histories({i: known for i, known in self.histories.items() if i != own})

    async def _end_regaining(self) -> None:
        own = self._server_id
        last, mark = self._backend.last_session(own), self._backend.high_water_mark(own)
        if mark.session < last.session + limits.RESTORED_SESSIONS:
            # it lost its store before, and had gone on further above than it would this time
            await self._backend.begin_history(own)
        self._session_ids.renew()
        self.is_regaining = False

    async def stop(self, *, is_last: bool = False) -> None:
        """Become STANDBY, whatever it is; each step of it is bounded.

        Queries are answered until it is closed. ``is_last``: connections end with it, which their
        events say.
        """
        async with self._starting_or_stopping:
            if self._phase is Status.STANDBY:
                return
            self._enter(Status.STOPPING)
            await self._announcer.settle()
            runner, timeout_s = self._runner, limits.STOP_TIMEOUT_S
            if runner is not None and not await in_time(self._end_modules(is_last), timeout_s):
                mlog.error("modules do not end their sessions, which fail now")
                await runner.abandon()
            if is_last:
                await self._announcer.end()
            await self._register_stopped()
            if self._runner is not None:
                if not await in_time(self._runner.wait_ended(), limits.STOP_TIMEOUT_S):
                    mlog.error("modules do not close their sessions")
                    await self._runner.abandon()
                timeout_s = limits.STOP_TIMEOUT_S + limits.INTERRUPTED_TIMEOUT_S
                if not await in_time(self._runner.async_close(), timeout_s):
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
        if not await in_time(self._own_ended.wait(), limits.DRAIN_TIMEOUT_S):
            mlog.error("sessions do not end", extra={"sessions": self._n_own})
        elif self._is_started and self._backend.is_open:
            try:
                registered = self._register_status("STOPPED")
                if not await in_time(registered, limits.DRAIN_TIMEOUT_S):
                    mlog.error("STOPPED is not committed in time")
            except EventerBridgeError as e:
                mlog.error("engine could not register its end", extra={"reason": str(e)})
        self._is_started = False

    def _on_modules_died(self) -> None:
        """Nothing can be registered any more."""
        self._enter(Status.STOPPING)
        self.close()

    @override
    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """Register the events of ``connection_events``.

        While the server is not OPERATIONAL, there is nothing but a line in the log.
        """
        self._announcer.announce(source, client_name, is_connected=is_connected)

    def _register_announced(
        self, source: Source, events: Sequence[RegisterEvent], quota: TypeQuota | None
    ) -> None:
        if not self._is_started:  # which it is until STOPPED
            raise NotOperationalError(f"server is {self._phase.name}, not OPERATIONAL")
        self._check_clock()
        self._register_own(source, events, quota)

    async def _close(self) -> None:
        await self.stop(is_last=True)
        self._failure_handle.cancel()
        if not self._backend.is_open or self._backend.is_passive:
            return
        try:
            await self.settle()
        except EventerBridgeError as e:
            mlog.error("engine could not flush", extra={"reason": str(e)})

    async def settle(self) -> None:
        """Have everything in the store that is not yet, and give back unused ids; when stopped."""
        if self.cursors is not None:
            await self.cursors.rows.flush()
        await self._session_ids.release()

    def take_over(self) -> None:
        """Before :meth:`start`: go on from what another member of the group stored."""
        self._session_ids.renew()
        self._note_stored()
        self._clock.look()
        if self.cursors is not None:
            self.cursors.load()

    def give_up(self) -> None:
        """After :meth:`stop`: another member of the group goes on, which has the cursors."""
        if self.cursors is not None:
            self.cursors.give_up()

    async def known_history(self, server_id: int) -> History | None:
        """The history of the stored events of a server; None: not known."""
        params = QueryLatestParams([history.type_of(server_id)])
        result = await self._backend.query(params)
        return history.read_all(result.events).get(server_id)

    async def read_histories(self) -> History | None:
        """Learn of which histories the stored events are; to be done before clients connect.

        Of those that it regained, it is their own history until it is started. Returns this
        server's history as it was announced; None: it was not.
        """
        stored = query_all(self._backend.query, QueryLatestParams([history.ANY_TYPE]))
        found = history.read_all([event async for event in stored])
        known = found.pop(self._server_id, None)
        found |= self.histories  # what was replicated meanwhile is newer
        if known is not None:
            found[self._server_id] = known
        is_behind = self.is_regaining and known is not None
        for event in () if is_behind else self._new_history(known):  # announced when it starts
            assert isinstance(event.payload, JsonPayload)
            first = self._backend.high_water_mark(self._server_id).session + 1
            if (own := history.decode(event.payload.data, first)) is not None:
                found[self._server_id] = own
        self._set_histories(found)
        return known

    def _set_histories(self, histories: Mapping[int, History]) -> None:
        own = self._server_id
        before, now = self.histories.get(own), histories.get(own)
        self.histories = histories
        if (before and before.id) != (now and now.id):
            self._notify_other_history(own)

    def _new_history(self, known: History | None) -> list[RegisterEvent]:
        """The event that announces this server's history; none if it was announced before."""
        history_id = self._backend.history_id
        if not history_id or (known is not None and known.id == history_id):
            return []
        last = self._backend.last_session(self._server_id)
        last_session = None if last.timestamp is None else last.session
        return [history.begin(self._server_id, history_id, known, last_session)]

    async def _register_status(self, status: str, others: Sequence[RegisterEvent] = ()) -> None:
        event_type = ("event", str(self._server_id), "engine")
        event = RegisterEvent(event_type, None, JsonPayload.of(status))
        session = self._register_own(ENGINE_SOURCE, [event, *others])
        await asyncio.wait([session.committed])
        session.committed.result()

    def _enter(self, phase: Status) -> None:
        self._phase = phase
        self._notify_status()


class _ModuleEngine(ModuleEngine):
    """The engine, as its modules see it."""

    def __init__(self, engine: Engine, runner: ModuleRunner) -> None:
        self._engine = engine
        self._runner = runner

    @property
    @override
    def server_id(self) -> int:
        return self._engine.server_id

    @override
    def create_source(self) -> Source:
        return self._engine.create_source(SourceType.MODULE)

    @override
    def create_process_event(self, source: Source, register_event: RegisterEvent) -> ProcessEvent:
        check_made(register_event)
        self._engine.check_types([register_event.type])
        return ProcessEvent(
            source, register_event.type, register_event.source_timestamp, register_event.payload
        )

    @override
    async def register(self, process_events: Sequence[ProcessEvent]) -> Sequence[Event]:
        if self._runner.calls.is_in_one:
            raise ModuleError(
                "a module session may not wait for another session: return the events from"
                " process, or register from a task of the module"
            )
        if not process_events:
            return []
        for event in process_events:
            check_made(event)
        session = self._engine.register(process_events[0].source, process_events)
        await asyncio.wait([session.committed])
        session.committed.result()
        return session.events[: session.requested]

    @override
    async def query(self, params: QueryParams) -> QueryResult:
        return await self._engine.query(params)
