"""What can be registered: how many events at once, of which types (000, "type"; ``limits``)."""

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.model import EventType, check_registrable


def check_count(n_events: int) -> None:
    """Refuse more events than one request may have.

    Raises:
        LimitError: they are too many.
    """
    if n_events > limits.MAX_SESSION_EVENTS:
        raise LimitError(
            f"{n_events} events in one request, at most {limits.MAX_SESSION_EVENTS} are allowed"
        )


def check_type(event_type: EventType) -> None:
    """Refuse a type that cannot be registered.

    Raises:
        InvalidEventError: it has wildcards, or is too long.
    """
    # sizes first: what is said of it, and remembered, is bounded
    if len(event_type) > limits.MAX_TYPE_SEGMENTS:
        raise InvalidEventError(
            f"event type has {len(event_type)} segments, at most {limits.MAX_TYPE_SEGMENTS}"
            " are allowed"
        )
    size_bytes = sum(map(len, event_type))
    if size_bytes <= limits.MAX_TYPE_BYTES:
        size_bytes = sum([len(segment.encode("utf-8", "surrogatepass")) for segment in event_type])
    if size_bytes > limits.MAX_TYPE_BYTES:
        raise InvalidEventError(
            f"event type has {size_bytes} bytes, at most {limits.MAX_TYPE_BYTES} are allowed"
        )
    check_registrable(event_type)
