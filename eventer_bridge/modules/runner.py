"""Runs the sessions of an engine that has modules, one after the other.

::

    Engine.register ─▶ submit() ─▶ queue ─▶ open, rounds (processing) ─▶ commit ─▶ ended ─▶ close
                                                   │ failed
                                                   └─▶ close

A session does not wait for the commit of the previous one. Its module sessions are closed after its
commit, in the order of the sessions; if a module takes long to close them, processing waits
(``limits.MAX_UNCLOSED_SESSIONS``). Those of a session that fails before its commit are closed at
once, before the next session.

Without any one of its loops, registrations would never be answered: a loop that dies, and a module
that cannot be interrupted, fail what is queued and end the engine.

Belongs to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from hat import aio

from eventer_bridge import limits
from eventer_bridge.core.session import Session
from eventer_bridge.errors import EventerBridgeError, ModuleError, OutcomeUnknownError
from eventer_bridge.model import ProcessEvent, RegisterEvent
from eventer_bridge.modules.base import ModuleEngine
from eventer_bridge.modules.calls import Calls, is_cancellation
from eventer_bridge.modules.loading import ModuleConf, create_module
from eventer_bridge.modules.processing import ModuleSessions, NamedModule

mlog = logging.getLogger(__name__)

CommitCb: TypeAlias = Callable[[Session, int, Sequence[ProcessEvent]], None]
"""Passes a session, its id and its events to the backend; may raise branches of
``EventerBridgeError``."""

FailCb: TypeAlias = Callable[[Session, EventerBridgeError], None]
"""Called with a failed session, and why it failed."""


class ModuleRunner(aio.Resource):
    """See the module.

    Closing it closes the modules; await the queued sessions first.

    Args:
        server_id: of the events.
        next_session: returns session ids; may raise branches of ``EventerBridgeError``.
        commit: see :data:`CommitCb`.
        fail: see :data:`FailCb`.
        on_died: called when nothing can be processed any more, before queued sessions fail.
    """

    def __init__(
        self,
        server_id: int,
        next_session: Callable[[], int],
        commit: CommitCb,
        fail: FailCb,
        on_died: Callable[[], None],
    ) -> None:
        self._server_id = server_id
        self._next_session = next_session
        self._commit = commit
        self._fail = fail
        self._on_died = on_died
        self._modules: list[NamedModule] = []
        self._calls = Calls()
        # the session being processed, until it is committed or failed
        self._session: Session | None = None
        self._module_sessions: ModuleSessions | None = None
        self._is_abandoned = False
        self._is_dead = False
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue: asyncio.Queue[tuple[Session, Sequence[ProcessEvent]]] = asyncio.Queue()
        self._ended: asyncio.Queue[tuple[ModuleSessions, Session]] = asyncio.Queue(
            limits.MAX_UNCLOSED_SESSIONS
        )
        self._async_group = aio.Group()
        self._async_group.spawn(aio.call_on_cancel, self._close_modules)
        for loop in (self._process_loop, self._end_loop, self._sweep_loop):
            self._async_group.spawn(self._keep, loop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the runner's tasks."""
        return self._async_group

    @property
    def is_calling(self) -> bool:
        """Whether the current task calls a module session."""
        return self._calls.is_in_one

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing more can be submitted: :meth:`abandon` was called, or a loop died."""
        return self._is_abandoned

    async def create_modules(self, confs: Iterable[ModuleConf], engine: ModuleEngine) -> None:
        """Create the modules, in this order.

        Raises:
            ModuleError: one could not be created; the text says which and why.
        """
        for conf in confs:
            named = await create_module(conf, engine)
            self._modules.append(named)
            self._async_group.spawn(self._watch, named)

    def submit(self, session: Session, events: Sequence[RegisterEvent | ProcessEvent]) -> None:
        """Process a session after those submitted before."""
        process_events = [
            i
            if isinstance(i, ProcessEvent)
            else ProcessEvent(session.source, i.type, i.source_timestamp, i.payload)
            for i in events
        ]
        self._queue.put_nowait((session, process_events))

    async def abandon(self) -> None:
        """Fail the session being processed, and those that wait for it.

        The modules get a moment to be interrupted; what they do later is ignored.
        """
        self._is_abandoned = True
        self._fail_queued("the server stopped before modules processed the session")
        session, sessions = self._session, self._module_sessions
        if session is not None and sessions is not None:
            sessions.interrupt()
            await asyncio.wait([session.committed], timeout=limits.INTERRUPTED_TIMEOUT_S)
            self._fail_current("a module did not end when the server stopped")

    async def wait_ended(self) -> None:
        """Wait until the module sessions of every session so far are closed, if that is possible.

        No more sessions are submitted. Does not wait for outcomes that only the store could decide.
        """
        if not self._stopping.done():
            self._stopping.set_result(None)
        if not self._is_dead:
            await self._queue.join()
            await self._ended.join()

    async def before_stop(self) -> None:
        """Let modules register what they still have, one after the other."""
        for named in self._modules:
            await self._guard(named, "module failed before the stop", named.module.before_stop)

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop as long as this is open."""
        try:
            await loop()
        except BaseException as e:
            if is_cancellation(e):
                raise
            reason = "modules cannot go on, the server stops"
            mlog.critical(reason, exc_info=e)
            self._is_abandoned = self._is_dead = True
            self._on_died()
            self._fail_current(reason)
            self._fail_queued(reason)

    def _fail_current(self, reason: str) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._fail(session, ModuleError(reason))

    def _fail_queued(self, reason: str) -> None:
        while not self._queue.empty():
            session, _ = self._queue.get_nowait()
            self._fail(session, ModuleError(reason))
            self._queue.task_done()

    async def _process_loop(self) -> None:
        loop = asyncio.get_running_loop()
        slice_end = loop.time()
        while True:
            session, requested = await self._queue.get()
            self._session = session
            sessions = self._module_sessions = ModuleSessions(self._modules, self._calls)
            try:
                await self._process(session, requested, sessions)
            except EventerBridgeError as e:
                if self._session is session:
                    self._session = None
                    self._fail(session, e)
                await sessions.close(is_committed=False)
            else:
                await self._ended.put((sessions, session))
            self._queue.task_done()
            if loop.time() >= slice_end:  # perhaps nothing above has waited
                await asyncio.sleep(0)
                slice_end = loop.time() + limits.MODULE_SLICE_S

    async def _process(
        self, session: Session, requested: Sequence[ProcessEvent], sessions: ModuleSessions
    ) -> None:
        session_id = self._next_session()
        events = await sessions.process(self._server_id, session_id, requested)
        if self._session is not session:
            raise ModuleError("the session failed while modules processed it")
        try:
            self._commit(session, session_id, events)
        except EventerBridgeError:
            raise
        except Exception as e:
            # events not created by create_process_event; the loop must go on
            mlog.exception("events of a session with modules cannot be stored")
            raise ModuleError(f"modules made events that cannot be stored: {e!r}") from e
        self._session = None

    async def _end_loop(self) -> None:
        while True:
            sessions, session = await self._ended.get()
            await sessions.close(is_committed=await self._is_committed(session))
            self._ended.task_done()

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_PERIOD_S)
            if (name := self._calls.sweep()) is not None:
                raise ModuleError(f"module {name} keeps running although it was interrupted")

    async def _is_committed(self, session: Session) -> bool:
        """Whether a session is committed; waits until it is known, or the server stops."""
        if not session.committed.done():
            await asyncio.wait([session.committed])
        error = session.committed.exception()
        if not isinstance(error, OutcomeUnknownError) or error.decided is None:
            return error is None
        waiting: list[asyncio.Future[Any]] = [error.decided, self._stopping]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return error.is_stored() is True

    async def _watch(self, named: NamedModule) -> None:
        await named.module.wait_closing()
        if self.is_open:
            mlog.error("module closed by itself", extra={"module_name": named.name})

    async def _close_modules(self) -> None:
        try:
            async with asyncio.timeout(limits.STOP_TIMEOUT_S):
                await asyncio.gather(
                    *(
                        self._guard(i, "module failed to close", i.module.async_close)
                        for i in self._modules
                    )
                )
        except TimeoutError:
            names = [i.name for i in self._modules if not i.module.is_closed]
            mlog.error("modules do not close", extra={"waiting_for": names})

    async def _guard(
        self, named: NamedModule, failure: str, function: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await function()
        except BaseException as e:
            if is_cancellation(e):
                raise
            mlog.error(failure, extra={"module_name": named.name}, exc_info=e)
