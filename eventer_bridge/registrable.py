"""Which event types can be registered (000, "type"; ``limits``)."""

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import EventType, check_registrable


def check_type(event_type: EventType) -> None:
    """Refuse a type that cannot be registered.

    Raises:
        InvalidEventError: it has wildcards, or is too long.
    """
    check_registrable(event_type)
    if len(event_type) > limits.MAX_TYPE_SEGMENTS:
        raise InvalidEventError(
            f"event type has {len(event_type)} segments, at most {limits.MAX_TYPE_SEGMENTS}"
            " are allowed"
        )
    size_bytes = sum(len(segment.encode()) for segment in event_type)
    if size_bytes > limits.MAX_TYPE_BYTES:
        raise InvalidEventError(
            f"event type has {size_bytes} bytes, at most {limits.MAX_TYPE_BYTES} are allowed"
        )
