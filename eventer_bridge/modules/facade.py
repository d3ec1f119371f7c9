"""The engine, as its modules see it. Belongs to the event loop's thread."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eventer_bridge.errors import ModuleError
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    JsonPayload,
    ProcessEvent,
    QueryParams,
    QueryResult,
    RegisterEvent,
    Source,
    SourceType,
    Timestamp,
)
from eventer_bridge.modules.base import ModuleEngine
from eventer_bridge.modules.runner import ModuleRunner

if TYPE_CHECKING:
    from eventer_bridge.engine import Engine  # which imports us


class EngineOfModules(ModuleEngine):
    """See the module.

    Args:
        engine: the engine.
        runner: what runs its modules.
    """

    def __init__(self, engine: "Engine", runner: ModuleRunner) -> None:
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
        _check_fields(register_event.type, register_event.source_timestamp, register_event.payload)
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
        session = self._engine.register(process_events[0].source, process_events)
        await asyncio.wait([session.committed])
        session.committed.result()
        return session.events[: session.requested]

    async def query(self, params: QueryParams) -> QueryResult:
        """See :class:`ModuleEngine`."""
        return await self._engine.query(params)


def _check_fields(event_type: Any, source_timestamp: Any, payload: Any) -> None:
    """Refuse values that were not decoded, and so not checked, but made by a module."""
    if not isinstance(event_type, tuple) or not all(isinstance(i, str) for i in event_type):
        raise TypeError(f"type {event_type!r}: expected a tuple of str")
    if not isinstance(source_timestamp, Timestamp | None):
        raise TypeError(f"source_timestamp {source_timestamp!r}: expected a Timestamp or None")
    if not isinstance(payload, JsonPayload | BinaryPayload | None):
        raise TypeError(f"payload {payload!r}: expected JsonPayload, BinaryPayload or None")
