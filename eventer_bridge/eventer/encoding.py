"""Sessions as Eventer messages (001): each event is encoded once for all receivers.

Runs on the event loop's thread.
"""

from collections.abc import Sequence
from functools import partial

from eventer_bridge.core.session import Session, packed_of
from eventer_bridge.eventer import codec, events
from eventer_bridge.packed import encode_sbs_answers
from eventer_bridge.slices import Many, Steps, event_parts


def notification(session: Session, indices: Sequence[int]) -> bytes:
    """A ``MsgEventsNotify`` with some of the session's events (``fanout.EncodeCb``)."""
    encoded = encoded_events(session)
    if len(indices) < len(encoded):
        encoded = [encoded[i] for i in indices]
    return codec.encode_events_notify(encoded)


def prepare(session: Session) -> Steps[None]:
    """Encode a large session's events in steps, for the other functions here."""
    if "eventer" in session.encodings:
        return
    encoded: list[bytes] = Many()
    for part in event_parts(session.events):
        encoded += events.encode_events(part)
        yield
    session.encodings["eventer"] = encoded


def is_answerable(session: Session) -> bool:
    """Whether the answer to a large session that has ended can be created at once."""
    return "eventer" in session.encodings or session.committed.exception() is not None


def keep_encoded(sessions: Sequence[Session]) -> None:
    """See ``ClientWire.keep_encoded``."""
    answers = codec.encode_register_successes([i.decoded for i in sessions])
    for session, answer in zip(sessions, answers, strict=True):
        session.encodings["eventer answer"] = answer
        session.keep_encoded(partial(codec.decode_register_success, answer))


def register_successes(sessions: Sequence[Session]) -> list[bytes]:
    """A ``MsgRegisterRes`` for each session."""
    if packed := packed_of(sessions):
        return encode_sbs_answers(packed)
    own = [i.decoded for i in sessions if not i.encodings and i.requested == len(i.decoded)]
    if len(own) == len(sessions):  # nobody else gets them
        return codec.encode_register_successes(own)
    return [_register_success(i) for i in sessions]


def _register_success(session: Session) -> bytes:
    if session.packed is not None:
        return encode_sbs_answers([session.packed])[0]
    answer: bytes | None = session.encodings.get("eventer answer")
    return answer or codec.encode_register_success(encoded_requested(session))


def encoded_requested(session: Session) -> Sequence[bytes]:
    """The encoded events of the request, without those added by modules."""
    encoded = encoded_events(session)
    return encoded if len(encoded) == session.requested else encoded[: session.requested]


def encoded_events(session: Session) -> Sequence[bytes]:
    """The encoded events of a session, in order; encoded on the first call."""
    encoded: Sequence[bytes] | None = session.encodings.get("eventer")
    if encoded is None:
        encoded = session.encodings["eventer"] = events.encode_events(session.events)
    return encoded
