"""A module of an engine that does what an event of type ``fault/<name>`` asks for."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from eventer_bridge.model import ProcessEvent
from eventer_bridge.modules.base import Module, ModuleEngine, ModuleSession
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.resources import Tasks
from eventer_bridge.subscription import EVERYTHING, Subscription


class PanicError(BaseException):
    """What extension modules raise: theirs derive from BaseException, too."""


RAISED: Final[dict[str, type[BaseException]]] = {
    i.__name__: i
    for i in (
        ValueError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        asyncio.CancelledError,
        PanicError,
    )
}

ENDS_A_TASK: Final = "ends-a-task"

NEVER_GIVES_WAY: Final = "never-gives-way"

json_schema: Final[dict[str, Any]] = {"type": "object"}


async def create(conf: ModuleConf, engine: ModuleEngine) -> Module:
    """Create the module."""
    return _Raising()


class _Raising(Module):
    def __init__(self) -> None:
        self._async_group = Tasks()

    @property
    def async_group(self) -> Tasks:
        return self._async_group

    @property
    def subscription(self) -> Subscription:
        return EVERYTHING

    async def create_session(self) -> ModuleSession:
        return _Session(self)


class _Session(ModuleSession):
    def __init__(self, module: _Raising) -> None:
        self._module = module

    async def process(self, events: Sequence[ProcessEvent]) -> Sequence[ProcessEvent]:
        for event in events:
            if event.type[0] == "fault":
                await self._do(event.type[1])
        return []

    async def _do(self, fault: str) -> None:
        if fault in RAISED:
            raise RAISED[fault]
        if fault == ENDS_A_TASK:
            self._module.async_group.spawn(_exit)
        while fault == NEVER_GIVES_WAY:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


async def _exit() -> NoReturn:
    raise SystemExit(0)
