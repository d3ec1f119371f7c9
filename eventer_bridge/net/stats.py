"""Counts of what a server did, plain integers on the hot path, read by the metrics."""

from collections import Counter


class ServerStats:
    """Counts since the start. Written and read on the event loop's thread.

    Attributes:
        connections: connections that are open now (from ``accept`` on, with or without init).
        clients: connections that are initialised now.
        accepted: connections accepted.
        frames_in, frames_out: messages received and sent.
        bytes_in, bytes_out: their bytes, with framing.
        events_registered: events that clients registered; not those that modules added.
        events_notified: events sent in notifications, counted per receiver.
        declined: connections whose init was declined.
        rejected: refused registrations by reason.
        outcome_unknown: registrations of which it is not known whether they are stored.
        refused: connections that got no place, or lost it before their init, by reason.
        closed: closed connections by reason.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.clients = 0
        self.accepted = 0
        self.frames_in = 0
        self.frames_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.events_registered = 0
        self.events_notified = 0
        self.declined = 0
        self.rejected: Counter[str] = Counter()
        self.outcome_unknown = 0
        self.refused: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
