"""Sessions as Eventer messages (001): each event is encoded once for all receivers.

Runs on the event loop's thread.
"""

from collections.abc import Sequence

from eventer_bridge.eventer import codec, events
from eventer_bridge.packed import Batch, encode_sbs_answers, make_events
from eventer_bridge.slices import Many, Steps, event_parts


def notification(session: Batch, indices: Sequence[int]) -> bytes:
    """A ``MsgEventsNotify`` with some of the session's events (``fanout.EncodeCb``)."""
    encoded = encoded_events(session)
    if len(indices) < len(encoded):
        encoded = [encoded[i] for i in indices]
    return codec.encode_events_notify(encoded)


def prepare(session: Batch) -> Steps[None]:
    """Encode a large session's events in steps, for the other functions here."""
    if "eventer" in session.encodings:
        return
    yield from make_events(session, Many())
    encoded: list[bytes] = Many()
    for part in event_parts(session.events):
        encoded += events.encode_events(part)
        yield
    session.encodings["eventer"] = encoded


def is_answerable(session: Batch) -> bool:
    """Whether the answer to a large session that has ended can be created at once."""
    return "eventer" in session.encodings or session.committed.exception() is not None


def register_successes(sessions: list[Batch]) -> list[bytes]:
    """A ``MsgRegisterRes`` for each session."""
    if all(i.is_sbs for i in sessions):
        return encode_sbs_answers(sessions)
    if not any(i.encodings for i in sessions):  # nobody else gets them
        return codec.encode_register_successes([i.events[: i.requested] for i in sessions])
    return [codec.encode_register_success(encoded_requested(i)) for i in sessions]


def encoded_requested(session: Batch) -> Sequence[bytes]:
    """The encoded events of the request, without those added by modules."""
    encoded = encoded_events(session)
    return encoded if len(encoded) == session.requested else encoded[: session.requested]


def encoded_events(session: Batch) -> Sequence[bytes]:
    """The encoded events of a session, in order; encoded on the first call."""
    encoded: Sequence[bytes] | None = session.encodings.get("eventer")
    if encoded is None:
        encoded = session.encodings["eventer"] = events.encode_events(session.events)
    return encoded
