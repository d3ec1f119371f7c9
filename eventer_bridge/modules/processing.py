"""Rounds: modules process the events of a session and add to them, until none adds more.

In each round every module session gets the events that joined in the previous round and match its
subscription. Sessions of different modules run concurrently within a round; what they return joins
the session in the order of the modules in the configuration::

    round 1: the request's events ─▶ A, B, C ─▶ what A, B, C returned ─▶ round 2 …

A module that raises anything (including SystemExit, and what extension modules derive from
BaseException), returns something else, takes too long, or adds events without end fails the
registration, and only that. A module that keeps running although it was interrupted blocks
everything, and ends the engine (``runner``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from eventer_bridge import limits
from eventer_bridge.errors import LimitError, ModuleError
from eventer_bridge.model import EventId, ProcessEvent
from eventer_bridge.modules.base import Module, ModuleSession
from eventer_bridge.modules.calls import Calls
from eventer_bridge.modules.made import check_made
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

T = TypeVar("T")
Args = TypeVarTuple("Args")


class NamedModule(NamedTuple):
    """A module, its name in the configuration, and its subscription."""

    name: str
    module: Module
    subscription: Subscription


class ModuleSessions:
    """The module sessions of one session; close it in any case.

    Args:
        modules: of the engine, in their order.
        calls: the calls of modules, shared by all sessions.
    """

    def __init__(self, modules: Sequence[NamedModule], calls: Calls) -> None:
        self._modules = modules
        self._calls = calls
        self._sessions: list[tuple[NamedModule, ModuleSession]] = []
        self._interrupted: list[str] = []
        self._deadline: asyncio.Timeout | None = None

    async def process(
        self, server: int, session: int, requested: Sequence[ProcessEvent]
    ) -> list[ProcessEvent]:
        """Begin a session of every module, and run the rounds.

        Args:
            server: server id.
            session: session id.
            requested: events that the session begins with.

        Returns:
            All events of the session, with their ids.

        Raises:
            ModuleError: a module failed, or they took too long.
            LimitError: too many rounds or events.
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
                        await self._close_one(named, session, is_committed)
                    return
            except TimeoutError:
                assert named is not None
                mlog.error("module takes too long to close", extra={"module_name": named.name})

    async def _close_one(
        self, named: NamedModule, session: ModuleSession, is_committed: bool
    ) -> None:
        try:
            await self._call(named.name, session.async_close, is_committed)
        except ModuleError:
            return  # logged; the registration is no longer affected

    async def _rounds(
        self, server: int, session: int, requested: Sequence[ProcessEvent]
    ) -> list[ProcessEvent]:
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

    async def _round(self, new: Sequence[ProcessEvent]) -> list[ProcessEvent]:
        calls: list[Awaitable[list[ProcessEvent]]] = []
        for named, session in self._sessions:
            matches = named.subscription.matches
            offered = [event for event in new if matches(event.type)]
            if offered:
                calls.append(self._call(named.name, _process, session, offered))
        if len(calls) == 1:
            return await calls[0]
        # all of them must end before the next round, and before they are closed
        results = await asyncio.gather(*calls, return_exceptions=True)
        added: list[ProcessEvent] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            added += result
        return added

    async def _call(self, name: str, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Call code of a module.

        Raises:
            ModuleError: it raised.
            asyncio.CancelledError: the task was cancelled.
        """
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


async def _process(session: ModuleSession, events: list[ProcessEvent]) -> list[ProcessEvent]:
    returned: Any = await session.process(events)
    if not isinstance(returned, Sequence):
        raise TypeError(
            f"process returned {type(returned).__name__}, expected a sequence of events"
        )
    added = list(returned)
    for i in added:
        if not isinstance(i, ProcessEvent):
            raise TypeError(f"process returned {type(i).__name__}, expected a ProcessEvent")
        check_made(i)
    return added


def _with_ids(
    server: int, session: int, first_instance: int, events: Sequence[ProcessEvent]
) -> list[ProcessEvent]:
    return [
        ProcessEvent(
            i.source, i.type, i.source_timestamp, i.payload, EventId(server, session, instance)
        )
        for instance, i in enumerate(events, first_instance)
    ]
