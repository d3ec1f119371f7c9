"""Sessions as Mariner messages (002): each event is encoded once for all receivers.

Runs on the event loop's thread.
"""

from collections.abc import Sequence
from functools import partial

from eventer_bridge.core.session import Session
from eventer_bridge.net import framing
from eventer_bridge.packed import encode_events
from eventer_bridge.slices import Many, Steps, event_parts
from mariner.wire import codec


def notification(session: Session, indices: Sequence[int]) -> bytes:
    """A framed ``events`` message with some of the session's events (``fanout.EncodeCb``)."""
    if len(indices) == session.n_events:
        found = encoded_session(session)
        if len(found) > 1:  # copied once: large
            return b"".join(framing.frame_parts(codec.events_message_parts(found)))
    elif session.packed is not None:
        found = [encode_events(session.packed, [*indices])]
    else:
        encoded = encoded_events(session)
        found = [encoded[i] for i in indices]
    return framing.encode_frame(codec.encode_events_message(found))


def encoded_session(session: Session) -> Sequence[bytes]:
    """All of the session's events as JSON (002, ``event``), with commas between them.

    Encoded on the first call. Most receivers get all events, and this costs half as much as
    encoding them one by one. Large sessions have several parts, which include the commas.
    """
    encoded: Sequence[bytes] | None = session.encodings.get("mariner session")
    if encoded is None:
        if session.packed is None:
            events = codec.encode_events(session.events)
        else:
            events = encode_events(session.packed)
        encoded = session.encodings["mariner session"] = (events,)
    return encoded


def prepare(session: Session) -> Steps[None]:
    """Encode a large session's events in steps, for the other functions here."""
    if "mariner session" in session.encodings:
        return
    encoded: list[bytes] = Many()
    joined: list[bytes] = []
    for events in event_parts(session.events):
        some = [codec.encode_event(event) for event in events]
        encoded += some
        joined.append(b",".join([b"", *some] if joined else some))
        yield
    session.encodings["mariner events"] = encoded
    session.encodings["mariner session"] = joined


def is_answerable(session: Session) -> bool:
    """Whether the answer to a large session that has ended can be created at once."""
    return "mariner session" in session.encodings or session.committed.exception() is not None


def keep_encoded(sessions: Sequence[Session]) -> None:
    """See ``ClientWire.keep_encoded``."""
    for session in sessions:
        (encoded,) = encoded_session(session)
        session.keep_encoded(partial(codec.decode_events, encoded))


def register_successes(requests: Sequence[int], sessions: Sequence[Session]) -> list[bytes]:
    """The answer to each of these requests, of which none is large."""
    own = [i.decoded for i in sessions if not i.encodings and i.requested == len(i.decoded)]
    if len(own) == len(sessions):  # nobody else gets them
        return codec.encode_register_successes(requests, own)
    return [
        # handed over in steps, behind others, a session has parts with the commas
        codec.encode_register_success(request, b"".join(encoded_requested(session)))
        for request, session in zip(requests, sessions, strict=True)
    ]


def encoded_requested(session: Session) -> Sequence[bytes]:
    """As :func:`encoded_session`, of the request's events, without those added by modules."""
    if session.is_encoded or session.requested == len(session.events):
        return encoded_session(session)
    return (b",".join(encoded_events(session)[: session.requested]),)


def encoded_events(session: Session) -> Sequence[bytes]:
    """The session's events as JSON, one by one, in order; encoded on the first call."""
    encoded = session.encodings.get("mariner events")
    if encoded is None:
        encoded = [codec.encode_event(event) for event in session.events]
        session.encodings["mariner events"] = encoded
    return encoded
