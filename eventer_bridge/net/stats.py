"""A server's counters: plain integers on the hot path, read by the metrics."""

import enum
from collections import Counter


class CloseReason(enum.StrEnum):
    """Reasons for closing a connection, for logs and metrics."""

    CLOSED = "closed by this side"
    SERVER_CLOSING = "server closing"
    PEER_CLOSED = "peer closed"
    LOST = "connection lost"
    PROTOCOL_ERROR = "protocol error"
    INTERNAL_ERROR = "internal error"
    DECLINED = "declined"
    TOO_MANY_CONNECTIONS = "too many connections"
    SLOT_TAKEN = "place needed for another"
    TOO_MUCH_BUFFERED = "too much is buffered"
    SLOW_CONSUMER = "slow consumer"
    WRITE_STALLED = "write stalled"
    NO_HANDSHAKE = "no handshake"
    NO_FIRST_MESSAGE = "no first message"
    UNFINISHED_MESSAGE = "unfinished message"
    PING_TIMEOUT = "ping timeout"
    QUERY_FAILED = "query failed"
    OUTCOME_UNKNOWN = "outcome unknown"
    ANOTHER_HISTORY = "another history"
    REMOVED = "removed from the configuration"
    BY_OPERATOR = "closed by an operator"
    CURSOR_LOST = "another connection has its cursor"
    GAP = "a gap in what it gets"


class RefusedSlot(enum.StrEnum):
    """Reasons for refusing a slot, or taking it away before init, for logs and metrics."""

    ADDRESS_FULL = "too many new connections of the address"
    ALL_FULL = "too many new connections"
    TAKEN = CloseReason.SLOT_TAKEN.value


class ServerStats:
    """Counts since the start. Written and read on the event loop's thread.

    Attributes:
        connections: open connections (from ``accept`` on, with or without init).
        clients: initialised connections.
        events_registered: by clients; not those added by modules.
        events_notified: counted per receiver.
        declined: connections whose init was declined.
        rejected: refused registrations by reason.
        outcome_unknown: registrations that may or may not be stored.
        refused: connections without a slot, by :class:`RefusedSlot`.
        closed: closed connections, by :class:`CloseReason`.
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
