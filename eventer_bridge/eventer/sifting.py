"""Filtering of events that one server receives from another.

A client accepts any event that a server has stored. A server that stores or forwards them
refuses payloads that its own clients may not register either (``validation``).

Sans I/O; any thread.
"""

from collections.abc import Sequence

import msgspec

from eventer_bridge import payloads
from eventer_bridge.core.validation import check_payload_in_steps
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.eventer.messages import MsgEventsNotify, MsgQueryRes, RefusedEvent
from eventer_bridge.model import Event, JsonPayload
from eventer_bridge.slices import Steps, parts


def sift(message: object) -> Steps[object]:
    """A message in which events whose payload exceeds a bound are ``refused``."""
    if isinstance(message, MsgEventsNotify):
        events, refused = yield from _sift(message.events, message.refused)
        return MsgEventsNotify(events, refused)
    if isinstance(message, MsgQueryRes):
        result = message.result
        events, refused = yield from _sift(result.events, message.refused)
        return MsgQueryRes(msgspec.structs.replace(result, events=events), refused)
    return message


def _sift(
    events: Sequence[Event], refused: Sequence[RefusedEvent]
) -> Steps[tuple[Sequence[Event], Sequence[RefusedEvent]]]:
    kept: list[Event] = []
    sifted: list[RefusedEvent] = []
    for part in parts(len(events)):
        for position, event in enumerate(events[part], part.start):
            payload = event.payload
            is_harmless = payload is None or (
                type(payload) is JsonPayload and len(payload.data) <= payloads.HARMLESS_BYTES
            )
            if not is_harmless:
                try:
                    yield from check_payload_in_steps(payload)
                except InvalidEventError as e:
                    sifted.append(RefusedEvent(event.id, str(e), position))
                    continue
            kept.append(event)
        yield
    if not sifted:
        return events, refused
    # in the order of the message: paging continues after the last of them
    return kept, sorted([*refused, *sifted], key=lambda i: i.events_before)
