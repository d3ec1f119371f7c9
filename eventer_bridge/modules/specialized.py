"""Specialised module engine: one module that hosts several of one kind (000, "Components").

To the engine it is one module, with the union of the subscriptions of its sub-modules. A sub-module
is a ``Module`` like any other, with a configuration of its own. It costs nothing without work: its
session is created when the first event matches its subscription.

Sub-modules process one after the other, in their order. If one raises, the registration fails, and
the traceback in the log has a note that names it.
"""

import logging
import sys
from collections.abc import Sequence

from typing_extensions import override

from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import EventType, ProcessEvent
from eventer_bridge.modules.base import Module, ModuleSession
from eventer_bridge.modules.calls import is_cancellation
from eventer_bridge.resources import call_on_cancel
from eventer_bridge.subscription import NOTHING, Subscription

mlog = logging.getLogger(__name__)


class SpecializedModule(Module):
    """See the module. Closing it closes the sub-modules.

    Errors name these by ``kind``, the key of their configurations.
    """

    def __init__(self, kind: str, sub_modules: Sequence[Module]) -> None:
        self._kind = kind
        self.sub_modules = list(sub_modules)
        self._subscriptions = [i.subscription for i in sub_modules]
        self._subscription = NOTHING.union(*self._subscriptions)
        self._wanted_by: BoundedCache[EventType, list[int]] = BoundedCache()
        self.async_group.spawn(call_on_cancel, self._close)
        for index, sub_module in enumerate(self.sub_modules):
            self.async_group.spawn(self._watch, index, sub_module)

    @property
    @override
    def subscription(self) -> Subscription:
        return self._subscription

    @override
    async def create_session(self) -> ModuleSession:
        return _Session(self)

    @override
    async def before_stop(self) -> None:
        for sub_module in self.sub_modules:
            await sub_module.before_stop()

    def name_of(self, index: int) -> str:
        """What to call a sub-module in errors."""
        return f"{self._kind}[{index}]"

    def wanted_by(self, event_type: EventType) -> list[int]:
        """Indices of the sub-modules whose subscription matches, rising."""
        indices = self._wanted_by.known.get(event_type)
        if indices is None:
            indices = [i for i, j in enumerate(self._subscriptions) if j.matches(event_type)]
            n_bytes = type_bytes(event_type) + sys.getsizeof(indices)
            self._wanted_by.put(event_type, indices, n_bytes)
        return indices

    async def _watch(self, index: int, sub_module: Module) -> None:
        await sub_module.wait_closing()
        if self.is_open:
            mlog.error("sub-module closed by itself", extra={"sub_module": self.name_of(index)})

    async def _close(self) -> None:
        for sub_module in self.sub_modules:
            await sub_module.async_close()


class _Session(ModuleSession):
    def __init__(self, host: SpecializedModule) -> None:
        self._host = host
        self._sessions: dict[int, ModuleSession] = {}

    @override
    async def process(self, events: Sequence[ProcessEvent]) -> Sequence[ProcessEvent]:
        offered: dict[int, list[ProcessEvent]] = {}
        for event in events:
            for index in self._host.wanted_by(event.type):
                offered.setdefault(index, []).append(event)
        added: list[ProcessEvent] = []
        for index in sorted(offered):
            try:
                session = await self._session(index)
                if session is not None:
                    added += await session.process(offered[index])
            except BaseException as e:
                e.add_note(f"in {self._host.name_of(index)}")
                raise
        return added

    @override
    async def async_close(self, is_committed: bool) -> None:
        errors: list[BaseException] = []
        for index, session in self._sessions.items():
            try:
                await session.async_close(is_committed)
            except BaseException as e:  # close the others as well
                if is_cancellation(e):
                    raise
                e.add_note(f"in {self._host.name_of(index)}")
                errors.append(e)
        if errors:
            raise BaseExceptionGroup("sub-modules failed to close their sessions", errors)

    async def _session(self, index: int) -> ModuleSession | None:
        session = self._sessions.get(index)
        if session is None:
            sub_module = self._host.sub_modules[index]
            if not sub_module.is_open:
                return None
            session = self._sessions[index] = await sub_module.create_session()
        return session
