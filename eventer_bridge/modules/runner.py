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
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

import msgspec

from eventer_bridge import limits, model, slices
from eventer_bridge.errors import EventerBridgeError, LimitError, ModuleError, OutcomeUnknownError
from eventer_bridge.modules.base import Module, ModuleEngine, ModuleSession
from eventer_bridge.modules.calls import Calls, check_made, is_cancellation
from eventer_bridge.modules.loading import ModuleConf, NamedModule, create_module
from eventer_bridge.packed import Batch, batch_parts
from eventer_bridge.resources import Resource, call_on_cancel

mlog = logging.getLogger(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")


class ModuleSessions:
    """The module sessions of one session, in rounds, until none adds more; close it in any case.

    In each round every module session gets the events that joined in the previous round and match
    its subscription. Sessions of different modules run concurrently within a round; what they
    return joins the session in the order of the modules in the configuration::

        round 1: the request's events ─▶ A, B, C ─▶ what A, B, C returned ─▶ round 2 …

    A module that raises anything (including SystemExit, and what extension modules derive from
    BaseException), returns something else, takes too long, or adds events without end fails the
    registration, and only that.
    """

    def __init__(self, modules: Sequence[NamedModule], calls: Calls) -> None:
        self._modules = modules
        self._calls = calls
        self._sessions: list[tuple[NamedModule, ModuleSession]] = []
        self._interrupted: list[str] = []
        self._deadline: asyncio.Timeout | None = None

    async def process(
        self, server: int, session: int, requested: Sequence[model.ProcessEvent]
    ) -> list[model.ProcessEvent]:
        """Begin a session of every module, and run the rounds; returns all events, with their ids.

        Raises ``ModuleError`` (one failed, or they took too long), ``LimitError`` (too much).
        """
        try:
            async with asyncio.timeout(limits.MODULE_TIMEOUT_S) as self._deadline:
                for named in self._modules:
                    opened = await self._call(named.name, _open, named.module)
                    if opened is not None:
                        self._sessions.append((named, opened))
                return await self._rounds(server, session, requested)
        except TimeoutError:
            names = ", ".join(self._interrupted) or "none"
            mlog.error("modules take too long", extra={"interrupted": names})
            raise ModuleError(
                f"modules took too long for a session (at most {limits.MODULE_TIMEOUT_S} s,"
                f" less while the server stops): interrupted {names}"
            ) from None
        finally:
            self._deadline = None

    def interrupt(self) -> None:
        """End the time for processing now."""
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0)

    async def close(self, is_committed: bool) -> None:
        """Close the session of every module."""
        sessions, self._sessions = self._sessions, []
        remaining = iter(sessions)
        named: NamedModule | None = None
        while True:
            try:
                async with asyncio.timeout(limits.MODULE_TIMEOUT_S):  # usually one for all of them
                    for named, session in remaining:
                        with contextlib.suppress(ModuleError):  # logged; nothing else is affected
                            await self._call(named.name, session.async_close, is_committed)
                    return
            except TimeoutError:
                assert named is not None
                mlog.error("module takes too long to close", extra={"module_name": named.name})

    async def _rounds(
        self, server: int, session: int, requested: Sequence[model.ProcessEvent]
    ) -> list[model.ProcessEvent]:
        events = _with_ids(server, session, 1, requested)
        new = events
        n_rounds = 0
        while new and self._sessions:
            n_rounds += 1
            if n_rounds > limits.MAX_MODULE_ROUNDS:
                raise LimitError(
                    f"modules still add events after {limits.MAX_MODULE_ROUNDS} rounds"
                )
            added = await self._round(new)
            if len(events) + len(added) > limits.MAX_SESSION_EVENTS:
                raise LimitError(
                    f"a session with the events that modules added has more than"
                    f" {limits.MAX_SESSION_EVENTS} events"
                )
            new = _with_ids(server, session, len(events) + 1, added)
            events = events + new
        return events

    async def _round(self, new: Sequence[model.ProcessEvent]) -> list[model.ProcessEvent]:
        calls: list[Awaitable[list[model.ProcessEvent]]] = []
        for named, session in self._sessions:
            matches = named.subscription.matches
            offered = [event for event in new if matches(event.type)]
            if offered:
                calls.append(self._call(named.name, _process, session, offered))
        if len(calls) == 1:
            return await calls[0]
        # all of them must end before the next round, and before they are closed
        results = await asyncio.gather(*calls, return_exceptions=True)
        added: list[model.ProcessEvent] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            added += result
        return added

    async def _call(self, name: str, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Call code of a module, or raise ``ModuleError``."""
        try:
            return await self._calls.make(name, function, *args)
        except asyncio.CancelledError:
            self._interrupted.append(name)
            raise


async def _open(module: Module) -> ModuleSession | None:
    """A session of a module; None: the module is closed."""
    if not module.is_open:
        return None
    session: Any = await module.create_session()
    if not isinstance(session, ModuleSession):
        raise TypeError("create_session returned no ModuleSession")
    return session


async def _process(
    session: ModuleSession, events: list[model.ProcessEvent]
) -> list[model.ProcessEvent]:
    returned: Any = await session.process(events)
    if not isinstance(returned, Sequence):
        raise TypeError(
            f"process returned {type(returned).__name__}, expected a sequence of events"
        )
    added = list(returned)
    for i in added:
        if not isinstance(i, model.ProcessEvent):
            raise TypeError(f"process returned {type(i).__name__}, expected a ProcessEvent")
        check_made(i)
    return added


def _with_ids(
    server: int, session: int, first_instance: int, events: Sequence[model.ProcessEvent]
) -> list[model.ProcessEvent]:
    return [
        msgspec.structs.replace(i, id=model.EventId(server, session, instance))
        for instance, i in enumerate(events, first_instance)
    ]


CommitCb: TypeAlias = Callable[[Batch, int, Sequence[model.ProcessEvent]], None]
"""Passes a session, its id and its events to the backend; may raise branches of
``EventerBridgeError``."""

FailCb: TypeAlias = Callable[[Batch, EventerBridgeError], None]
"""Called with a failed session, and why it failed."""


class ModuleRunner(Resource):
    """See the module. Closing it closes the modules; await the queued sessions first.

    ``next_session`` returns session ids, and may raise branches of ``EventerBridgeError``;
    ``on_died`` is called when nothing can be processed any more, before queued sessions fail.
    ``is_abandoned``: nothing more can be submitted, after :meth:`abandon`, or as a loop died.
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
        self.calls = Calls()
        # the session being processed, until it is committed or failed
        self._session: Batch | None = None
        self._module_sessions: ModuleSessions | None = None
        self.is_abandoned = False
        self._is_dead = False
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue: asyncio.Queue[Batch] = asyncio.Queue()
        self._ended: asyncio.Queue[tuple[ModuleSessions, Batch]] = asyncio.Queue(
            limits.MAX_UNCLOSED_SESSIONS
        )
        self.async_group.spawn(call_on_cancel, self._close_modules)
        for loop in (self._process_loop, self._end_loop, self._sweep_loop):
            self.async_group.spawn(self._keep, loop)

    async def create_modules(self, confs: Iterable[ModuleConf], engine: ModuleEngine) -> None:
        """Create the modules, in this order; ``ModuleError`` says which could not be, and why."""
        for conf in confs:
            named = await create_module(conf, engine)
            self._modules.append(named)
            self.async_group.spawn(self._watch, named)

    def submit(self, session: Batch) -> None:
        """Process a session after those submitted before."""
        self._queue.put_nowait(session)

    async def abandon(self) -> None:
        """Fail the session being processed, and those that wait for it.

        The modules get a moment to be interrupted; what they do later is ignored.
        """
        self.is_abandoned = True
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
            self.is_abandoned = self._is_dead = True
            self._on_died()
            self._fail_current(reason)
            self._fail_queued(reason)

    def _fail_current(self, reason: str) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._fail(session, ModuleError(reason))

    def _fail_queued(self, reason: str) -> None:
        while not self._queue.empty():
            session = self._queue.get_nowait()
            self._fail(session, ModuleError(reason))
            self._queue.task_done()

    async def _process_loop(self) -> None:
        loop = asyncio.get_running_loop()
        slice_end = loop.time()
        while True:
            session = self._session = await self._queue.get()
            sessions = self._module_sessions = ModuleSessions(self._modules, self.calls)
            try:
                await self._process(session, sessions)
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

    async def _process(self, session: Batch, sessions: ModuleSessions) -> None:
        session_id = self._next_session()
        requested = await slices.run(_process_events(session))
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
            if (name := self.calls.sweep()) is not None:
                raise ModuleError(f"module {name} keeps running although it was interrupted")

    async def _is_committed(self, session: Batch) -> bool:
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


def _process_events(session: Batch) -> slices.Steps[Sequence[model.ProcessEvent]]:
    """The requested events as modules see them."""
    events: list[model.ProcessEvent] = []
    for part in batch_parts(session):
        events += [
            i
            if isinstance(i, model.ProcessEvent)
            else model.ProcessEvent(session.source, i.type, i.source_timestamp, i.payload)
            for i in session[part]
        ]
        yield
    return events
