"""The engine, as its modules see it. Belongs to the event loop's thread."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from eventer_bridge.core.session import Session
from eventer_bridge.errors import ModuleError
from eventer_bridge.model import (
    Event,
    ProcessEvent,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
)
from eventer_bridge.modules.base import ModuleEngine
from eventer_bridge.modules.made import check_made
from eventer_bridge.modules.runner import ModuleRunner


class _Engine(Protocol):
    """The engine, as far as needed; ``core.engine`` imports this module."""

    @property
    def server_id(self) -> int:
        """Identifier of this server."""

    def create_source(self, source_type: SourceType) -> Source:
        """A new source of events."""

    def check_types(self, events: Iterable[RegisterEvent], /) -> None:
        """Refuse events whose types cannot be registered."""

    def register(self, source: Source, events: Sequence[ProcessEvent], /) -> Session:
        """Begin a session."""

    async def query(self, params: QueryParams) -> QueryResult:
        """Query events."""


class ModuleEngineAdapter(ModuleEngine):
    """See the module.

    Args:
        engine: the engine.
        runner: runs its modules.
    """

    def __init__(self, engine: _Engine, runner: ModuleRunner) -> None:
        self._engine = engine
        self._runner = runner

    @property
    def server_id(self) -> int:
        """See :class:`ModuleEngine`."""
        return self._engine.server_id

    def create_source(self) -> Source:
        """See :class:`ModuleEngine`."""
        return self._engine.create_source(SourceType.MODULE)

    def create_process_event(self, source: Source, register_event: RegisterEvent) -> ProcessEvent:
        """See :class:`ModuleEngine`."""
        check_made(register_event)
        self._engine.check_types([register_event])
        return ProcessEvent(
            source, register_event.type, register_event.source_timestamp, register_event.payload
        )

    async def register(self, process_events: Sequence[ProcessEvent]) -> Sequence[Event]:
        """See :class:`ModuleEngine`."""
        if self._runner.is_calling:
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

    async def query(self, params: QueryParams) -> QueryResult:
        """See :class:`ModuleEngine`."""
        return await self._engine.query(params)
