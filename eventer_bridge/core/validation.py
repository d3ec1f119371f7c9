"""Validation of events to register: their number, types, payloads (000; ``limits``) and conditions.

Classes belong to the event loop's thread.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from eventer_bridge import limits, payloads
from eventer_bridge.backends import history
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.errors import InvalidEventError, LimitError
from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import (
    BinaryPayload,
    EventType,
    Payload,
    check_registrable,
)
from eventer_bridge.slices import Steps, at_once

MAX_UTF8_BYTES: Final = 4
"""Of a character."""


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
    if sum(map(len, event_type)) * MAX_UTF8_BYTES > limits.MAX_TYPE_BYTES:
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


class TypeChecks:
    """Checks each event type once, and remembers those that can be registered.

    Args:
        backend: keeps the types.
        may_tell_history: whether the events are those with which the server itself begins.

    Attributes:
        known: types that were checked before; always the same dict.
    """

    def __init__(self, backend: Backend, may_tell_history: Callable[[], bool]) -> None:
        self._backend = backend
        self._may_tell_history = may_tell_history
        self._checked: BoundedCache[EventType, None] = BoundedCache()
        self.known: dict[EventType, None] = self._checked.known

    def unchecked(self, event_types: Iterable[EventType]) -> set[EventType]:
        """Those of these types that were not checked before."""
        known = self.known
        return {event_type for event_type in event_types if event_type not in known}

    def check(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """Refuse types that cannot be registered.

        Args:
            event_types: types of events.
            quota: of the client that brings them.

        Raises:
            InvalidEventError: a type cannot be registered.
            LimitError: there are too many types, or too many of the client's.
        """
        if new_types := self.unchecked(event_types):
            self.check_new(new_types, quota)

    def check_new(self, new_types: Collection[EventType], quota: TypeQuota | None) -> None:
        """As :meth:`check`, of types that are not known."""
        for event_type in new_types:
            check_type(event_type)
        histories = {*filter(history.is_history, new_types)}
        if histories and not self._may_tell_history():
            raise InvalidEventError("event/?/history is for servers, which tell of their own")
        self._backend.check_types(new_types, quota)
        for event_type in new_types:
            if event_type not in histories:  # these are to be refused each time
                self._checked.put(event_type, None, type_bytes(event_type))
