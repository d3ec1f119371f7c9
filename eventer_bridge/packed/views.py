"""Events of batches as objects."""

from typing import Any

from eventer_bridge.model import Event, EventId, Timestamp


def session_events(batch: Any, part: slice = slice(None)) -> list[Event]:
    """The events that a batch became, or some of them, as objects."""
    server, session, timestamp = batch.server, batch.session, Timestamp(batch.s, batch.us)
    instances, events = batch.instances[part], batch[part]
    return [
        Event(EventId(server, session, instance), i.type, timestamp, i.source_timestamp, i.payload)
        for instance, i in zip(instances, events, strict=True)
    ]
