"""How much memory decoded requests take, where they wait: an estimate, rather too much."""

from collections.abc import Iterable, Sequence

from eventer_bridge import limits
from eventer_bridge.model import (
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    RegisterEvent,
)
from eventer_bridge.packed import Packed


def objects_bytes(requests: Iterable[Sequence[RegisterEvent]]) -> int:
    """Memory of registrations, besides the bytes that they came as; packed ones have no objects."""
    return sum(
        [types_bytes([i.type for i in events]) for events in requests if type(events) is not Packed]
    )


def types_bytes(types: Iterable[EventType]) -> int:
    """Memory of event types, or of what has one each, besides the bytes that they came as."""
    segments = [*map(len, types)]
    return len(segments) * limits.EVENT_OBJECT_BYTES + sum(segments) * limits.SEGMENT_BYTES


def subscription_bytes(types: Sequence[EventType]) -> int:
    """Memory of a subscription: of its types, and of what matches all of them at once."""
    literal_bytes = 2 * limits.SEGMENT_BYTES + len(types) // 8
    return types_bytes(types) + sum(map(len, types)) * literal_bytes


def query_bytes(params: QueryParams, n_bytes: int) -> int:
    """Memory of a query that waits.

    Args:
        params: the query.
        n_bytes: that it came as.
    """
    if isinstance(params, QueryServerParams):
        return n_bytes
    types = params.event_types or ()
    n_ids = 0 if isinstance(params, QueryLatestParams) else len(params.ids or ())
    return n_bytes + types_bytes(types) + n_ids * limits.EVENT_OBJECT_BYTES
