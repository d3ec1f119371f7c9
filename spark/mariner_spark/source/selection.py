"""Selection of events, from the options of a read; used by planning and by tasks."""

from collections.abc import Iterable
from typing import Any

import msgspec

from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner_spark.times import Interval


class Selection(msgspec.Struct, frozen=True):
    """Conditions that an event of a read must all satisfy.

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
        """Keys of the selected types, from pairs of key and type."""
        if self.types is None:
            return [key for key, _ in event_types]
        subscription = Subscription(self.types)
        return [key for key, event_type in event_types if subscription.matches(event_type)]

    @property
    def is_servers_only(self) -> bool:
        """Whether it selects by server, and by nothing else."""
        others = self.types is not None or self.source is not None
        return self.servers is not None and not others and self.time.is_everything
