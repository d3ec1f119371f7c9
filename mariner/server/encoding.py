"""Batches as Mariner messages (002): each event is encoded once for all receivers.

Runs on the event loop's thread.
"""

from collections.abc import Sequence

from eventer_bridge.net import framing
from eventer_bridge.packed import Batch, batch_parts, encode_events, make_events
from eventer_bridge.slices import Many, Steps, event_parts
from mariner.wire import codec


def notification(batch: Batch, indices: Sequence[int]) -> bytes:
    """A framed ``events`` message with some of the session's events (``fanout.EncodeCb``)."""
    if len(indices) == len(batch):
        found = encoded_session(batch)
        if len(found) > 1:  # copied once: large
            return b"".join(framing.frame_parts(codec.events_message_parts(found)))
    elif batch.is_encodable:
        found = [encode_events(batch, [*indices])]
    else:
        encoded = encoded_events(batch)
        found = [encoded[i] for i in indices]
    return framing.encode_frame(codec.encode_events_message(found))


def encoded_session(batch: Batch) -> Sequence[bytes]:
    """All of the session's events as JSON (002, ``event``), with commas between them.

    Encoded on the first call. Large sessions have several parts, which include the commas.
    """
    encoded: Sequence[bytes] | None = batch.encodings.get("mariner session")
    if encoded is None:
        encode = encode_events(batch) if batch.is_encodable else codec.encode_events(batch.events)
        encoded = batch.encodings["mariner session"] = (encode,)
    return encoded


def prepare(batch: Batch) -> Steps[None]:
    """Encode a large session's events in steps, for the other functions here."""
    if "mariner session" in batch.encodings:
        return
    joined: list[bytes] = []
    if batch.is_encodable:
        for part in batch_parts(batch):
            # cut behind the requested events, which are all of the answer
            end = batch.requested if part.start < batch.requested < part.stop else part.stop
            for begin, stop in ((part.start, end), (end, part.stop)):
                if begin < stop:
                    some = encode_events(batch, None, begin, stop)
                    joined.append(b"," + some if joined else some)
                if stop == batch.requested:
                    batch.encodings["mariner answer"] = [*joined]
            yield
    else:
        yield from make_events(batch, Many())
        encoded: list[bytes] = Many()
        for events in event_parts(batch.events):
            texts = [codec.encode_event(event) for event in events]
            encoded += texts
            joined.append(b",".join([b"", *texts] if joined else texts))
            yield
        batch.encodings["mariner events"] = encoded
    batch.encodings["mariner session"] = joined


def is_answerable(batch: Batch) -> bool:
    """Whether the answer to a large session that has ended can be created at once."""
    return "mariner session" in batch.encodings or batch.committed.exception() is not None


def register_successes(batches: list[Batch]) -> bytes:
    """The answers to batches, of which none is large: frames, joined."""
    if all(batch.is_encodable for batch in batches):
        return codec.encode_batch_successes(batches)
    if not any(batch.encodings for batch in batches):  # nobody else gets them
        ids = [batch.register_id for batch in batches]
        events = [batch.events[: batch.requested] for batch in batches]
        return framing.encode_frames(codec.encode_register_successes(ids, events))
    return framing.encode_frames(
        [
            codec.encode_register_success(i.register_id, b"".join(encoded_requested(i)))
            for i in batches
        ]
    )


def encoded_requested(batch: Batch) -> Sequence[bytes]:
    """As :func:`encoded_session`, of the request's events, without those added by modules."""
    if batch.requested == len(batch):
        return encoded_session(batch)
    answer: Sequence[bytes] | None = batch.encodings.get("mariner answer")
    if answer is not None:
        return answer
    if batch.is_encodable:
        return (encode_events(batch, None, 0, batch.requested),)
    return (b",".join(encoded_events(batch)[: batch.requested]),)


def encoded_events(batch: Batch) -> Sequence[bytes]:
    """The session's events as JSON, one by one, in order; encoded on the first call."""
    encoded = batch.encodings.get("mariner events")
    if encoded is None:
        encoded = [codec.encode_event(event) for event in batch.events]
        batch.encodings["mariner events"] = encoded
    return encoded
