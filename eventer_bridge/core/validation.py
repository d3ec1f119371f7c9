"""Validation of events to register: their number, types and payloads (000; ``limits``)."""

from eventer_bridge import limits, payloads
from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.model import BinaryPayload, EventType, Payload, check_registrable
from eventer_bridge.slices import Steps, at_once


def too_many(n_events: int) -> LimitError:
    """The error for a request with more than ``limits.MAX_SESSION_EVENTS`` events."""
    return LimitError(
        f"{n_events} events in one request, at most {limits.MAX_SESSION_EVENTS} are allowed"
    )


def check_type(event_type: EventType) -> None:
    """Refuse a type that cannot be registered.

    Raises:
        InvalidEventError: it has wildcards, or is too long.
    """
    # sizes first: they bound error texts and caches
    if len(event_type) > limits.MAX_TYPE_SEGMENTS:
        raise InvalidEventError(
            f"event type has {len(event_type)} segments, at most {limits.MAX_TYPE_SEGMENTS}"
            " are allowed"
        )
    check_length(event_type)
    _check_bytes(sum([len(segment.encode("utf-8", "surrogatepass")) for segment in event_type]))
    check_registrable(event_type)


def check_length(event_type: EventType) -> None:
    """Refuse a type that is too long, without examining its segments.

    Looking it up in a dictionary takes 15 ms per 16 MB.

    Raises:
        InvalidEventError: it is too long.
    """
    _check_bytes(sum(map(len, event_type)))


def _check_bytes(size_bytes: int) -> None:
    if size_bytes > limits.MAX_TYPE_BYTES:
        raise InvalidEventError(
            f"event type has {size_bytes} bytes, at most {limits.MAX_TYPE_BYTES} are allowed"
        )


def check_payload(payload: Payload | None) -> None:
    """Refuse a payload that subscribers could not decode.

    Args:
        payload: a JSON one is valid JSON.

    Raises:
        InvalidEventError: it is too large, or exceeds ``payloads.exceeded``.
    """
    at_once(check_payload_in_steps(payload))


def check_payload_in_steps(payload: Payload | None) -> Steps[None]:
    """As :func:`check_payload`, of a payload that may be large."""
    if payload is None:
        return
    n_bytes = content_bytes(payload)
    if n_bytes > limits.MAX_PAYLOAD_BYTES:
        raise InvalidEventError(
            f"payload has {n_bytes} bytes, at most {limits.MAX_PAYLOAD_BYTES} are allowed"
        )
    if isinstance(payload, BinaryPayload) or n_bytes <= payloads.HARMLESS_BYTES:
        return
    if reason := (yield from payloads.exceeded_in_steps(bytes(payload.data))):
        raise InvalidEventError(f"payload: {reason}")


def content_bytes(payload: Payload | None) -> int:
    """Bytes of a payload, including its label."""
    if payload is None:
        return 0
    if isinstance(payload, BinaryPayload):
        return len(payload.data) + len(payload.data_type.encode("utf-8", "surrogatepass"))
    return len(payload.data)
