"""Rounds: modules look at the events of a session and add to them, until none adds more.

In each round every module session is offered what joined in the round before and matches
its subscription. Sessions of different modules run concurrently within a round; what they
return joins the session in the order of the modules in the configuration::

    round 1: the request's events ─▶ A, B, C ─▶ what A, B, C returned ─▶ round 2 …

A module that raises, returns something else, takes too long, or adds without end fails the
registration, and only that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from eventer_bridge import limits
from eventer_bridge.errors import LimitError, ModuleError
from eventer_bridge.model import EventId, ProcessEvent
from eventer_bridge.modules.base import Module, ModuleSession

mlog = logging.getLogger(__name__)

T = TypeVar("T")


class NamedModule(NamedTuple):
    """A module and what to call it in errors: its name in the configuration."""

    name: str
    module: Module


class ModuleSessions:
    """The module sessions of one session; to be closed in any case.

    Args:
        processing: the tasks in which a module session processes are kept in here.
    """

    def __init__(self, processing: set[asyncio.Task[Any]]) -> None:
        self._processing = processing
        self._sessions: list[tuple[NamedModule, ModuleSession]] = []

    async def open(self, modules: Sequence[NamedModule]) -> None:
        """Tell every module that a session began.

        Raises:
            ModuleError: a module failed; those before it have sessions.
        """
        for named in modules:
            if named.module.is_open:
                session = await _call(named.name, named.module.create_session)
                self._sessions.append((named, session))

    async def process(
        self, server: int, session: int, requested: Sequence[ProcessEvent]
    ) -> list[ProcessEvent]:
        """Run the rounds.

        Args:
            server: server id.
            session: session id.
            requested: events that the session begins with.

        Returns:
            All events of the session, with their ids.

        Raises:
            ModuleError: a module failed.
            LimitError: too many rounds or events.
        """
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
                    f"a session with what modules added has more than"
                    f" {limits.MAX_SESSION_EVENTS} events"
                )
            new = _with_ids(server, session, len(events) + 1, added)
            events = events + new
        return events

    async def close(self) -> None:
        """Tell every module that the session ended."""
        sessions, self._sessions = self._sessions, []
        for named, session in sessions:
            try:
                await _call(named.name, session.async_close)
            except ModuleError:
                continue  # it is in the log; the registration is not concerned any more

    async def _round(self, new: Sequence[ProcessEvent]) -> list[ProcessEvent]:
        calls: list[Awaitable[list[ProcessEvent]]] = []
        for named, session in self._sessions:
            matches = named.module.subscription.matches
            offered = [event for event in new if matches(event.type)]
            if offered:
                calls.append(self._process(named.name, session, offered))
        if len(calls) == 1:
            return await calls[0]
        # all of them have to end before the next round, or before they are closed
        results = await asyncio.gather(*calls, return_exceptions=True)
        added: list[ProcessEvent] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            added += result
        return added

    async def _process(
        self, name: str, session: ModuleSession, events: Sequence[ProcessEvent]
    ) -> list[ProcessEvent]:
        task = asyncio.current_task()
        assert task is not None
        self._processing.add(task)
        try:
            added: Any = await _call(name, lambda: session.process(events))
        finally:
            self._processing.discard(task)
        if not isinstance(added, Sequence) or not all(isinstance(i, ProcessEvent) for i in added):
            mlog.error("module returned something else than events", extra={"module": name})
            raise ModuleError(f"module {name} returned something else than process events")
        return list(added)


def _with_ids(
    server: int, session: int, first_instance: int, events: Sequence[ProcessEvent]
) -> list[ProcessEvent]:
    return [
        msgspec.structs.replace(event, id=EventId(server, session, instance))
        for instance, event in enumerate(events, first_instance)
    ]


async def _call(name: str, function: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(limits.MODULE_TIMEOUT_S) as timeout:
            return await function()
    except TimeoutError as e:
        if not timeout.expired():
            raise _failure(name, e) from e
        mlog.error(
            "module takes too long",
            extra={"module": name, "timeout_s": limits.MODULE_TIMEOUT_S},
        )
        raise ModuleError(f"module {name} took longer than {limits.MODULE_TIMEOUT_S} s") from None
    except Exception as e:
        raise _failure(name, e) from e


def _failure(name: str, error: Exception) -> ModuleError:
    mlog.error("module failed", extra={"module": name}, exc_info=error)
    return ModuleError(f"module {name} failed: {type(error).__name__}")
