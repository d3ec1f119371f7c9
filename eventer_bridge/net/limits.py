"""Every bound of connections, with its unit in the name and its reason."""

from typing import Final

from eventer_bridge import limits

# --- admission --------------------------------------------------------------------------

MAX_CONNECTIONS: Final = 10_000
"""Known connections of the process (after init), of all wires. Fewer if the limit of open files
requires it."""

MAX_CONNECTIONS_PER_ADDRESS: Final = 5_000
"""The same per address, which may be a proxy or a NAT with all clients of a site, but not with all
clients."""

MAX_NEW_CONNECTIONS: Final = 1_000
"""Connections before init, and those of HTTP, which has none. Each takes 50 kB in a TLS handshake,
and at most 180 kB, with an incomplete first message or a long chain of certificates."""

MAX_NEW_CONNECTIONS_PER_ADDRESS: Final = 512
"""The same per address: when a proxy is back, all clients behind it connect at once."""

NEW_CONNECTION_GRACE_S: Final = 0.2
"""Time for a new connection's handshake before its slot may be taken; enough for a slow network. It
also bounds the cost of peers that reconnect when closed: all ``MAX_NEW_CONNECTIONS`` slots are
taken at most once in this time."""

RESERVED_DESCRIPTORS: Final = 384
"""Open files other than client connections: 256 of the store (its sorted files), those of a store
being reopened or copied meanwhile, its logs, remote servers, and listeners."""

MIN_CONNECTIONS: Final = 16
"""Connections that a process needs to be useful; it does not start with fewer."""

LISTEN_BACKLOG: Final = 1_024
"""Connections that the kernel holds until they are accepted."""

ACCEPT_TURN_CONNECTIONS: Final = 32
"""Connections accepted in a row, about 2 ms, by all listeners together, before others get their
turn."""

ACCEPT_PAUSE_S: Final = 0.5
"""Pause of a listener that is out of descriptors or memory."""

ACCEPT_FAILURE_LOG_S: Final = 60.0
"""Period of log lines about that."""

FREE_LOGIN_FAILURES: Final = 10
"""Wrong names or tokens of one address answered at once: several clients of a site whose token was
changed."""

LOGIN_FAILURE_PERIOD_S: Final = 0.5
"""Period of further answers: two guesses a second."""

MAX_LOGIN_DELAY_S: Final = 8.0
"""Longest delay of such an answer; below the time limit for init, so that there is one."""

MAX_FAILED_ADDRESSES: Final = 10_000
"""Addresses whose wrong names and tokens are counted, the most recent ones; about 2 MB."""

# --- frames and conversations -----------------------------------------------------------

MAX_FIRST_FRAME_BYTES: Final = 64 << 10
"""Size of messages up to the peer's first, pings not counted: names, a token and subscriptions.
After it, the listener has authenticated the peer."""

MAX_FRAME_BYTES: Final = 16 << 20
"""Size of a listener's later messages: thousands of events in one registration."""

MAX_ANSWER_FRAME_BYTES: Final = 256 << 20
"""The same for outgoing connections: other servers may answer a query in one message of any
size, as long as a gateway has memory for it (``memory``)."""

MAX_PEER_CONVERSATIONS: Final = 1_024
"""Conversations of a peer that await our reply; with so many, it is not read from. Also those that
the peer began and does not continue; with more, it is closed."""

MAX_OWN_CONVERSATIONS: Final = 65_536
"""Our conversations that the peer has not ended, at about 0.3 kB each. A peer that left so many
unanswered will not answer the next one."""

MIN_REQUESTS_TOGETHER: Final = 4
"""Requests of a peer that are handled faster together than one by one."""

MAX_CACHED_HEADS: Final = 64
"""Types of messages, with their flags, whose encoding is kept; both peers send a dozen."""

MAX_CACHED_INTEGERS: Final = 256
"""Leading groups of encoded Integers that are kept: connections and sessions count on side by side;
30 kB."""

# --- turns and buffers ------------------------------------------------------------------

FULL_READ_BYTES: Final = 192 << 10
"""Bytes received at once from a connection after which others get their turn. The event loop reads
250 kB at a time, up to 32 times, before it serves another connection."""

BATCH_BYTES: Final = 32 << 10
"""Small messages of one peer that are cut, and may be decoded, before the first of them is handled:
more than the 64 registrations that a fast client has in flight, with request keys."""

TURN_MESSAGES: Final = 128
"""Messages of one peer handled in a turn, including pings: more than the 64 registrations that a
fast client has in flight."""

TURN_S: Final = 0.006
"""The same in seconds, for messages that take longer."""

MIN_HELD_S: Final = 0.01
"""Shortest time for which a client over its quota is not read from. More often costs more than it
smooths."""

SEND_HIGH_WATER_BYTES: Final = 1 << 20
"""Unread bytes of a peer above which a listener reads nothing from it, and senders wait."""

KERNEL_UNSENT_BYTES: Final = 512 << 10
"""Unsent bytes that the kernel buffers for a peer. By default it buffers up to 4 MB: 830 MB for 200
peers that read nothing, which is not counted, and which the loop has to copy."""

MAX_SEND_BUFFER_BYTES: Final = 32 << 20
"""The same, above which another message closes the peer. A single message, of any size, never
does."""

MAX_UNREAD_PONGS: Final = 1_000
"""Pings from a peer that does not read, above which it is closed. A peer that awaits its pongs has
one in progress."""

JOINED_BYTES: Final = 4 << 10
"""Average size of parts below which they are joined for sending, which is faster; copying larger
ones takes more time and memory than it saves."""

# --- deadlines --------------------------------------------------------------------------

CONNECT_TIMEOUT_S: Final = 10.0
"""Time limit for connecting, TCP and TLS together."""

FIRST_MESSAGE_TIMEOUT_S: Final = 10.0
"""From the connection to the first message, pings not counted; also for the TLS handshake. A
listener cannot ping before: it does not know the peer's dialect."""

MESSAGE_TIMEOUT_S: Final = 120.0
"""From the first bytes of a message to its end: 16 MiB at 140 kB/s."""

CONVERSATION_TIMEOUT_S: Final = 5.0
"""Time limit for the peer to continue a conversation (chatter's default)."""

PING_DELAY_S: Final = 30.0
"""Silence before a peer is pinged (chatter's default)."""

PING_TIMEOUT_S: Final = 30.0
"""Silence after a ping before a peer is closed. Chatter counts a conversation's 5 s; we do not, as
a component that is busy for longer is not dead."""

KEEPALIVE_DELAY_S: Final = 30
"""Silence before the kernel probes a connection: RSB has no pings."""

WRITE_STALL_TIMEOUT_S: Final = 30.0
"""Time above the high-water mark without progress after which a connection is closed."""

TCP_USER_TIMEOUT_S: Final = 60.0
"""Time without acknowledgement by the peer's kernel after which a connection is lost."""

# --- closing and reconnecting -----------------------------------------------------------

CLOSE_TIMEOUT_S: Final = 5.0
"""Time limit for a closing connection to deliver its last bytes."""

LINGER_S: Final = 0.5
"""Time for the peer to end, too, after the last byte left: closing with bytes unread would reset
the connection, and the last bytes sent would be lost."""

MAX_DROPPED_BYTES: Final = 1 << 20
"""Bytes dropped meanwhile; a peer that sends more is closed at once."""

RECONNECT_MIN_S: Final = 0.1
"""Longest wait before the second attempt to connect to a remote Event Server; it doubles."""

RECONNECT_MAX_S: Final = 10.0
"""Longest wait between two attempts to connect to a remote Event Server."""

STABLE_CONNECTION_S: Final = 1.0
"""Lifetime above which a connection to a remote Event Server counts as successful: when it is lost,
the next attempt follows at once. A shorter one counts as a failed attempt."""

assert MAX_SEND_BUFFER_BYTES > SEND_HIGH_WATER_BYTES
assert MAX_CONNECTIONS * limits.UNCOUNTED_BYTES <= limits.MAX_MEMORY_BYTES // 3
assert 4 * MAX_FRAME_BYTES < limits.MAX_MEMORY_BYTES
assert MAX_LOGIN_DELAY_S < FIRST_MESSAGE_TIMEOUT_S
assert limits.SCRYPT_TIMEOUT_S < FIRST_MESSAGE_TIMEOUT_S
assert MAX_FIRST_FRAME_BYTES <= MAX_FRAME_BYTES <= MAX_ANSWER_FRAME_BYTES
assert MAX_FRAME_BYTES <= limits.MAX_PAYLOAD_BYTES
assert BATCH_BYTES <= limits.LARGE_MESSAGE_BYTES
assert limits.MAX_SESSION_BYTES <= MAX_ANSWER_FRAME_BYTES
