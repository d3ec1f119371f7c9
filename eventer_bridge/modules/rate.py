"""Rates: how many events of each type were stored, window by window.

At the end of every window it registers, in a session of its own, an event for each type that had
events in the window, and one with count 0 for each that had events only in the window before:

* type: ``prefix`` and the segments of the counted type;
* source timestamp: the end of the window;
* payload: ``{"count": …, "window_s": the actual length of the window}``.

It counts only stored events, and not its own. Windows that end while the server is not OPERATIONAL
are skipped. When the server stops, the open window ends early, without zeros, and its counts so far
are registered. A kill costs the counts of the open window; the events are stored, and a query can
count them. Two modules of this kind should not count each other's events: they would count each
other's counts.

Configuration::

    module: eventer_bridge.modules.rate
    subscriptions: [[plant, '*']]
    window_s: 60
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from eventer_bridge.errors import EventerBridgeError, NotOperationalError
from eventer_bridge.model import EventType, JsonPayload, ProcessEvent, RegisterEvent, Timestamp
from eventer_bridge.modules.base import EVENT_TYPE, QUERY_TYPES, Module, ModuleEngine, ModuleSession
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

DEFAULT_WINDOW_S: Final = 60
DEFAULT_PREFIX: Final = ("rate",)
DEFAULT_MAX_TYPES: Final = 1_000

json_schema: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Rates",
    "type": "object",
    "required": ["module", "subscriptions"],
    "additionalProperties": False,
    "properties": {
        "module": {"const": "eventer_bridge.modules.rate"},
        "subscriptions": QUERY_TYPES,
        "window_s": {
            "description": f"length of a window in seconds; default, {DEFAULT_WINDOW_S}",
            "type": "number",
            "minimum": 0.1,
            "maximum": 86_400,
        },
        "max_types": {
            "description": "most types counted in one window, the first ones to occur;"
            f" default, {DEFAULT_MAX_TYPES}",
            "type": "integer",
            "minimum": 1,
            "maximum": 10_000,
        },
        "prefix": {**EVENT_TYPE, "description": "prefix of the types of its events; default, rate"},
    },
}


async def create(conf: ModuleConf, engine: ModuleEngine) -> Module:
    """Create the module; ``InvalidSubscriptionError``: a subscription is wrong."""
    return Rate(conf, engine)


class Rate(Module):
    """See the module."""

    def __init__(self, conf: ModuleConf, engine: ModuleEngine) -> None:
        self._subscription = Subscription(map(tuple, conf["subscriptions"]))
        self._window_s: float = conf.get("window_s", DEFAULT_WINDOW_S)
        self._max_types: int = conf.get("max_types", DEFAULT_MAX_TYPES)
        self._prefix: EventType = tuple(conf.get("prefix", DEFAULT_PREFIX))
        self._engine = engine
        self.source: Final = engine.create_source()
        self._counts: Counter[EventType] = Counter()
        self._n_left_out = 0
        self._silent: set[EventType] = set()  # had events in the previous window
        self._begin = asyncio.get_running_loop().time()
        self.async_group.spawn(self._window_loop)

    @property
    @override
    def subscription(self) -> Subscription:
        return self._subscription

    @override
    async def create_session(self) -> ModuleSession:
        return _Session(self)

    def add(self, counts: Counter[EventType]) -> None:
        """Count the events of a session."""
        for event_type, count in counts.items():
            if event_type in self._counts or len(self._counts) < self._max_types:
                self._counts[event_type] += count
            else:
                self._n_left_out += count

    @override
    async def before_stop(self) -> None:
        """Register the open window."""
        self._silent.clear()  # the window may have been too short for them
        await self._end_window()

    async def _window_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begin = self._begin
            await asyncio.sleep(max(0, begin + self._window_s - loop.time()))
            if begin == self._begin:  # else it has already ended
                await self._end_window()

    async def _end_window(self) -> None:
        now = asyncio.get_running_loop().time()
        self._begin, elapsed_s = now, now - self._begin
        counts, self._counts = self._counts, Counter()
        if self._n_left_out:
            mlog.warning(
                "events of too many types are not counted",
                extra={"events": self._n_left_out, "max_types": self._max_types},
            )
            self._n_left_out = 0
        events = [
            event
            for event_type in [*counts, *(self._silent - counts.keys())]
            if (event := self._event(event_type, counts[event_type], elapsed_s)) is not None
        ]
        self._silent = set(counts)
        try:
            await self._engine.register(events)
        except NotOperationalError as e:
            mlog.debug("window skipped", extra={"reason": str(e)})
        except EventerBridgeError as e:
            mlog.warning("window lost", extra={"reason": str(e)})

    def _event(self, event_type: EventType, count: int, elapsed_s: float) -> ProcessEvent | None:
        payload = JsonPayload.of({"count": count, "window_s": round(elapsed_s, 3)})
        event = RegisterEvent((*self._prefix, *event_type), Timestamp.now(), payload)
        try:
            return self._engine.create_process_event(self.source, event)
        except EventerBridgeError as e:  # too long with the prefix, or too many types
            mlog.warning(
                "rate cannot be registered",
                extra={"event_type": "/".join(event_type), "reason": str(e)},
            )
            return None


class _Session(ModuleSession):
    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._counts: Counter[EventType] = Counter()

    @override
    async def process(self, events: Sequence[ProcessEvent]) -> Sequence[ProcessEvent]:
        self._counts.update([i.type for i in events if i.source != self._rate.source])
        return []

    @override
    async def async_close(self, is_committed: bool) -> None:
        if is_committed:
            self._rate.add(self._counts)
