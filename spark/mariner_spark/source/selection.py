"""Which events a read gives, by its options; pure values that planning and tasks use alike."""

from collections.abc import Iterable
from typing import Any

import msgspec

from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner_spark.times import Interval


class Selection(msgspec.Struct, frozen=True):
    """Conditions, all of which hold for the events of a read.

    Attributes:
        types: query types, any of which matches; None: all.
        time: timestamps.
        servers: ids of servers; None: all.
        source: source timestamps; None: any, and none at all.
    """

    types: tuple[EventType, ...] | None = None
    time: Interval = Interval()
    servers: frozenset[int] | None = None
    source: Interval | None = None

    def select_types(self, event_types: Iterable[tuple[Any, EventType]]) -> list[Any]:
        """Keys of the types that it asks for, out of pairs of key and type."""
        if self.types is None:
            return [key for key, _ in event_types]
        asked = Subscription(self.types)
        return [key for key, event_type in event_types if asked.matches(event_type)]

    @property
    def is_servers_only(self) -> bool:
        """Whether it asks for servers, and nothing else."""
        others = self.types is not None or self.source is not None
        return self.servers is not None and not others and self.time.is_everything
