"""Every bound of the event core, with its unit in the name and its reason."""

from typing import Final

MAX_SESSION_EVENTS: Final = 65_536
"""Events of one registration request; more would make one commit stall all others."""

LARGE_SESSION_EVENTS: Final = 2_048
"""Events of a registration above which it is dealt with in slices, between which others get
their turn; at about 6 us an event, fewer take 12 ms."""

LARGE_SESSION_BYTES: Final = 512 << 10
"""Payload of a registration above which it is dealt with in slices, too: copying it four times
takes 1 ms."""

MANY_NEW_TYPES: Final = 64
"""Event types in a registration that nobody used of late, with more of which it is dealt with in
slices, too: to add one takes 20 to 100 us, and to match it with what others subscribe to takes
5 us for each of them that has a thousand patterns."""

LARGE_MESSAGE_BYTES: Final = 32 << 10
"""An Eventer registration above which it is decoded in slices: of about 1,000 events."""

INLINE_SCHEMA_BYTES: Final = 16 << 10
"""A message of a client with payload schemas above which a process of its own checks them. Smaller
ones take the event loop up to 10 ms with usual schemas: ``contains`` 1.3 ms, ``uniqueItems``
0.4 ms, 20 alternatives for each item 6 to 10 ms."""

SCHEMA_CHECK_TIMEOUT_S: Final = 2.0
"""Time that such a check of one registration takes, longer than which it is refused. It holds up
the large registrations of all clients."""

SCHEMA_START_TIMEOUT_S: Final = 10.0
"""Until that process is ready; it needs about 0.3 s."""

MAX_PATTERN_BACKTRACKS: Final = 10_000
"""Steps back of one pattern with one text, if it has look-around or back references (others have
none): 0.7 ms. The library's own bound is 100 times that."""

STEP_EVENTS: Final = 256
"""Events of a large registration that are dealt with between two looks at the clock."""

STEP_BYTES: Final = 256 << 10
"""Bytes of payloads of an answer that are encoded between two looks at the clock."""

SLICE_S: Final = 0.002
"""Time that a large message is worked on at a stretch."""

FREED_OBJECTS: Final = 2_048
"""Events of a large session that are freed at a stretch, or encoded ones: 0.7 ms."""

MAX_LARGE_SESSIONS: Final = 2
"""Large registrations that are under way, so that one is prepared while another is synced. The
next ones wait as the bytes that they came in, in the order in which they came."""

MAX_PENDING_EVENTS: Final = 20_000
"""Events that wait for their commit. Above it the engine is full and its clients are not
read from: at 100,000 events/s this is 0.2 s of work."""

MAX_PENDING_BYTES: Final = 64 << 20
"""Payload bytes that wait for their commit; as above, for large payloads."""

RESERVED_SESSIONS: Final = 200_000
"""Session ids that are reserved on disk ahead of use, so that an id which anybody may
have seen is never given again, also not after kill -9. A crash costs at most so many ids
of 2**63."""

MAX_GROUP_EVENTS: Final = 4_096
"""Events of one group commit: larger groups are no faster, but delay their first."""

MAX_GROUP_BYTES: Final = 4 << 20
"""The same in bytes, where nobody joins any more: to write them takes 10 ms, in which nobody else
can run."""

MAX_GATHERING_S: Final = 0.005
"""How long a group commit waits for more events while they come: the turns of two or three clients
that send as much as they can. What is written at once costs one sync."""

COMMIT_PART_ROWS: Final = 2_048
"""Rows of a large session that are written and synced at a time, as of 1,024 events: 0.7 ms in
which nobody else can run, 5 ms where others use the processor's caches. Each part costs a sync."""

COMMIT_PART_BYTES: Final = 1 << 20
"""The same in bytes: 2 ms."""

MAX_EVENT_TYPES: Final = 1_000_000
"""What all known event types may cost (see ``type_budget``). They are kept in memory: at 0.3 kB
each if they are like others, and up to ``TYPE_PRICE_BYTES`` for each that they cost."""

RESERVED_EVENT_TYPES: Final = 10_000
"""Of these, those that clients leave to the server itself, its modules and other servers."""

MAX_CLIENT_EVENT_TYPES: Final = 100_000
"""What the types that one client brought may cost, unless its configuration says otherwise:
100 MB. Types are for ever, so that ten such clients leave nothing to others."""

MAX_ANNOUNCED_NAMES: Final = 10_000
"""The same for types with names of clients, which tell who is connected. Where there is a token
for all, clients make up their names."""

MAX_NAME_CHARACTERS: Final = 256
"""Of a name that a client makes up: it is kept as long as the client is connected, and stands in
an event type and in lines of the log."""

TYPE_PRICE_BYTES: Final = 1_024
"""Memory of a type that costs 1; a longer one costs more."""

assert MAX_CLIENT_EVENT_TYPES + MAX_ANNOUNCED_NAMES + RESERVED_EVENT_TYPES < MAX_EVENT_TYPES

MAX_TYPE_SEGMENTS: Final = 64
"""Segments of an event type; the trie of types is as deep."""

MAX_TYPE_BYTES: Final = 1_024
"""UTF-8 bytes of all segments of an event type."""

MAX_SUBSCRIPTION_TYPES: Final = 1_000
"""Query types of one subscription or query."""

MAX_COMMON_TYPES: Final = 10_000
"""Query types that two subscriptions have in common, where they are needed one by one (for a
remote server): 5 MB. They could be as many as the product."""

MAX_VISIBLE_BYTES: Final = 64 << 20
"""Memory for the sets of types that clients may see, a byte for each type: those of 64 clients
of different rights if there are a million types. Of others they are made anew when they ask."""

MAX_QUERY_IDS: Final = 4_096
"""Event ids that one query asks for, each of which is looked up: as many as an answer holds."""

MAX_COMPARED_BYTES: Final = 256 << 10
"""Bytes of a JSON payload that a query by payload decodes to compare it; a longer one is only
compared as bytes. Decoding can take 20 ms and 10 MB for as many, and nobody else runs meanwhile."""

MAX_RECEIVED_EVENTS: Final = 1_000_000
"""Events of one message of a remote server. Decoded, an event without payload takes 30 times the
memory of its 8 bytes in a message; a server of another make may not limit its answers."""

REMEMBERED_SECONDS: Final = 20_000
"""Seconds whose encoding is remembered before it begins anew."""

MAX_REMEMBERED_BYTES: Final = 256
"""Bytes of an encoded event type that is remembered: nobody fills the memory with long ones."""

MAX_JSON_DEPTH: Final = 128
"""Arrays and objects inside each other in a payload. Peers decode with recursive parsers;
1,000 levels end Python's."""

MAX_RECEIVED_DEPTH: Final = 512
"""Arrays and objects inside each other in whatever is received, payloads that another server
stored included. Half of what the decoder of Python 3.11 follows, at the least."""

MAX_NUMBER_DIGITS: Final = 1_000
"""Digits in a row in a number of a payload. Python's JSON decoder refuses 4,300 of them, so
that one registration could cut off all its subscribers."""

MAX_PAYLOAD_BYTES: Final = (16 << 20) + (64 << 10)
"""Of a payload, its label included. A message of a client holds no more (``MAX_FRAME_BYTES``); the
rest is for what is added to a notification of RSB. A server of another make may have any."""

MAX_SESSION_BYTES: Final = 32 << 20
"""Payloads of a session of another server, which subscribers are told of in one message. A session
of ours has as much as a message of a client, and what modules or other notifications of RSB add."""

MAX_RESULTS: Final = 4_096
"""Events of one answer to a timeseries or server query; the rest by paging. What
hat-event has by default."""

MAX_RESULT_BYTES: Final = 16 << 20
"""Payload bytes of one answer; a larger answer ends early with ``more_follows``."""

MAX_LATEST_RESULTS: Final = 100_000
"""Events of one answer to a query for the latest, of which Hat's clients ask for one only."""

LATEST_CACHE_TYPES: Final = 10_000
"""Types whose latest event is kept in memory, the most recently written."""

READERS: Final = 2
"""Queries that are read for at a time; the others that are under way wait for their turn."""

READER_TURN_S: Final = 0.005
"""Time that a query is read for at a stretch, if others wait. Handing over costs 0.1 ms."""

READER_STRETCH_S: Final = 0.001
"""Time that a thread works at a stretch before the event loop may run. Giving way costs 50 us."""

MAX_QUERIES_BEGUN: Final = 64
"""Queries that had a turn and did not end, each of which holds a thread and a snapshot. One
client may have as many as are left to others, so that 32 at most; more of them wait."""

LARGE_ANSWER_BYTES: Final = 256 << 10
"""What an answer takes above which it is a large one. All others that are under way
(``MAX_QUERIES_BEGUN``) take 16 MB together."""

ANSWER_EVENT_BYTES: Final = 512
"""What an event of an answer takes, besides its payload."""

MAX_LARGE_ANSWERS: Final = 4
"""Large answers that are read or encoded at a time. One of 16 MB takes 32 MB, as events and
encoded; one of 100,000 latest events 60 MB. One client may have as many as are left to others,
so that 2 at most."""

MARK_SYNC_PERIOD_S: Final = 10.0
"""Between two syncs of the mark of how far the store's log was acknowledged (``acknowledged``).
After a power cut it may be so far behind; a sync of the disk each time would double their number
where one is made for each commit."""

MAX_STALL_S: Final = 10.0
"""While registrations or queries wait and none is done for so long, the server is not ready. A
sync takes milliseconds, on a disk that is busy with other things up to some seconds."""

LOOK_TIMEOUT_S: Final = 5.0
"""For the storage thread to look at its disk: it comes behind a sync."""

MIN_FREE_BYTES: Final = 16 << 20
"""Free on the disk of the store, or the server is not ready: one large registration, and as much
for the files that it is moved to."""

STORE_RETRY_PERIOD_S: Final = 1.0
"""After a failed commit the store is opened again so often, until it works. Each try that
gets as far as that costs about as much as a start."""

CLOCK_PERIOD_S: Final = 1.0
"""Between two looks at the clock of this machine."""

CLOCK_TOLERANCE_S: Final = 5.0
"""By which events may be ahead of the clock, or it may jump, without a word: it is put right by
less all the time."""

MAX_CLOCK_AHEAD_S: Final = 24 * 3600.0
"""By which events may be ahead of the clock before nothing more is registered: more than a wrong
time zone makes."""

assert MAX_PENDING_EVENTS * 2 <= RESERVED_SESSIONS, (
    "a session has at least one event, so that what is pending must never outrun the ids"
    " that are already reserved on disk"
)

REMEMBERED_BYTES: Final = 20 << 20
"""Memory for what is remembered of event types (a client's rights, receivers, conditions, …)
before it begins anew, each by itself: 50,000 types of four short segments. Peers make types up,
of which the longest take ten times as much as ordinary ones."""

MAX_REASON_CHARACTERS: Final = 500
"""Of a reason that is answered: a peer's data may be part of it."""

MAX_REGISTRATIONS_IN_FLIGHT: Final = 1_024
"""Registrations of one Eventer client that are under way; then it is not read from."""

MAX_QUERIES_WAITING: Final = 64
"""Queries of one Eventer client that wait for their turn; then it is not read from."""

ACK_TIMEOUT_S: Final = 30.0
"""What a client that keeps events gets to acknowledge a notification."""

DECLINED_LINGER_S: Final = 0.5
"""What a declined Eventer client gets to read why and to close first, as hat-event gives."""

DRAIN_TIMEOUT_S: Final = 10.0
"""What registrations that are under way get to be answered when a server closes."""

RESPONSE_TIMEOUT_S: Final = 30.0
"""What a remote Event Server gets to answer a request; above what a large query takes."""

RECONNECT_MIN_S: Final = 0.1
"""Longest wait before the second attempt to connect to a remote Event Server; it doubles."""

RECONNECT_MAX_S: Final = 10.0
"""Longest wait between two attempts to connect to a remote Event Server."""

MAX_GROUP_SERVERS: Final = 16
"""Servers of a group whose events are kept, each by a connection of its own; a pair has one
other. A monitor server may tell of any number."""

STABLE_CONNECTION_S: Final = 1.0
"""A connection to a remote Event Server that held for so long was of use: when it is lost, the
next one is tried at once. One that breaks off before counts as an attempt that failed."""

GIVE_WAY_S: Final = 0.010
"""What a replication that catches up waits, between two slices of its work, for what is registered
here to be stored: two commits. So it has a sixth of the time at the least."""

MAX_FOLLOWED_EVENTS: Final = 1_024
"""Events of a remote Event Server that wait for their commit; with more, it is not read from. What
is registered here is committed behind them, some 5 ms later, and finds a core that is not full of
them (``MAX_PENDING_EVENTS``)."""

LAG_PERIOD_S: Final = 1.0
"""Between two questions to a remote Event Server, for what a replication lacks; each costs it one
query that finds nothing."""

MAX_SYNCED_LAG_S: Final = 10.0
"""What a replication that is synced may be behind: of the looks in so many seconds, one at least
found nothing missing. A network has hiccups of some seconds."""

MAX_SYNCED_LAG_EVENTS: Final = 100_000
"""The same in events: 2 s at the speed of catching up."""

LEFT_OUT_REPORT_S: Final = 10.0
"""Between two events that tell a remote Event Server that more of its events were left out."""

MAX_REMOTE_SERVERS: Final = 1_024
"""Servers whose events one remote Event Server tells of, each with a position of its own."""

COMPARED_SESSIONS: Final = 100
"""Of a remote Event Server's sessions that are kept, the last ones, whose types are compared with
what is there where the very last one is not."""

COMPARED_TYPES: Final = 50
"""Types of those sessions that are asked for, in one query."""

MAX_HISTORY_SPANS: Final = 100
"""Histories that one goes on from: a store that was restored more often has forgotten the oldest,
and who followed those begins anew."""

MAX_HISTORY_ID_CHARACTERS: Final = 64
"""Name of a history; ours have 36 characters."""

RESTORED_SESSIONS: Final = 10**12
"""How far a restore raises the mark of session ids at least. By right it is the number of
microseconds since 1970, which no server comes to that gives less than a million ids a second, and
which is another one for each restore of the same backup; this holds where the clock is behind. Up
to 2**53, which JSON numbers have exactly everywhere, there is room until the year 2255."""

MAX_REFUSED_PAGES: Final = 1_000
"""Answers in a row, to one query, in which a remote Event Server tells of nothing but events
that cannot be ones here: four millions of them, if it answers as we do."""

RELAYED_QUERY_TIMEOUT_S: Final = 60.0
"""What a relayed query gets, with all pages of the remote Event Server that it is picked out
of; a server of another make may have no end of them."""

MAX_RELAYED_QUERIES: Final = 4
"""Queries, or pages of them, that a remote Event Server is asked for at a time: it may answer
them one after the other. The others wait here, where clients take turns."""

RELAYED_RESPONSE_TIMEOUT_S: Final = 2 * RELAYED_QUERY_TIMEOUT_S
"""What a remote Event Server gets to answer on the connection for relayed queries. Ending it
ends the queries of all clients: nobody waits any more for what takes so long."""

MAX_RELAYED_BYTES: Final = 16 << 20
"""Payload bytes that a remote Event Server was sent and has not answered for. Above it, clients
are not read from; above twice as many, their registrations fail. Below what may wait to be
sent (``MAX_SEND_BUFFER_BYTES``), or else the connection would be given up as too slow."""

MAX_MODULE_ROUNDS: Final = 64
"""Times that the modules are offered what was added to a session; more is taken for an
endless loop of modules that answer each other."""

MODULE_TIMEOUT_S: Final = 10.0
"""Time that modules have to process one session, and one of them to close its part of it;
they hold up every registration meanwhile."""

MODULE_SLICE_S: Final = 0.001
"""Time that sessions with modules are processed at a stretch before others get their turn."""

MAX_ALARM_STATES: Final = 100_000
"""Alarms whose state a module of thresholds keeps in memory; it asks the store for others."""

assert MAX_ALARM_STATES >= MAX_SESSION_EVENTS, "those of one session are needed at once"

MAX_AUDITED_CONNECTIONS: Final = 20_000
"""Connections whose client's name an audit module remembers: twice what a server accepts."""

INTERRUPTED_TIMEOUT_S: Final = 2.0
"""What a module that is interrupted gets to end what it does. After it the gateway ends: no
session could be processed any more."""

STOP_TIMEOUT_S: Final = 5.0
"""What modules get to end the sessions under way when the engine stops, then to hear of
their end, then to close. Three times this is below what a gateway has to stop."""

MAX_UNCLOSED_SESSIONS: Final = 1_024
"""Ended sessions that slow modules were not told of yet; with more, nothing is processed."""

MAX_CONTROL_LINE_BYTES: Final = 32 << 10
"""A request to the process that has a store open: a path (4 kB) with every byte escaped."""

MAX_CONTROL_CONNECTIONS: Final = 8
"""Such requests at a time; they are answered one after the other."""

CONTROL_TIMEOUT_S: Final = 10.0
"""To connect, to send such a request and to take its answer, all on the same machine."""

CHECKPOINT_TIMEOUT_S: Final = 4 * 3600.0
"""Until a checkpoint is made. Within a file system that takes well below a second;
copying to another at 100 MB/s, this is 1.4 TB."""

MAX_HAT_UNREFERENCED: Final = 1_000_000
"""Events of a hat-event database that its own index lacks: none, unless it is damaged.
Their places are kept in memory, at about 0.3 kB each."""

MAX_LISTED: Final = 1_000
"""Events that could not be imported, or findings about a store, that are told one by one."""

RETENTION_PERIOD_S: Final = 10.0
"""Seconds between two looks at what may be deleted; so much longer than ``duration`` an
event may stay."""

RETENTION_TOLERANCE: Final = 1.1
"""A rule's ``max_entries`` or ``size`` exceeded by this factor is looked at before the period
is over."""

RETENTION_MIN_PERIOD_S: Final = 1.0
"""Seconds between two looks at least, however far a small limit is exceeded meanwhile."""

RETENTION_BATCH_EVENTS: Final = 1_000
"""Events that are deleted in one write: about 2 ms, in which nobody else can run."""

RETENTION_RANGE_ROWS: Final = 16
"""Rows that follow each other are deleted as one range from so many on. Fewer go one by one:
until it is written out, a range costs the first read after each deletion some 0.2 us."""

RETENTION_CPU_SHARE: Final = 0.06
"""Part of a processor that choosing what is deleted may take while events are registered and
the event loop is busy. Registration is slowed by about twice as much; 20% are allowed."""

RETENTION_IDLE_SHARE: Final = 0.25
"""The same while the event loop has time: deleting keeps up with 30,000 events/s."""

RETENTION_LOG_S: Final = 30.0
"""Seconds between two lines of the log about a deletion that goes on."""

assert INLINE_SCHEMA_BYTES <= LARGE_MESSAGE_BYTES

# --- connections --------------------------------------------------------------------------

MAX_CONNECTIONS: Final = 10_000
"""Known connections of the process (after init), of all wires. Fewer where the limit of open
files asks for it."""

MAX_CONNECTIONS_PER_ADDRESS: Final = 5_000
"""The same of one address, which may be a proxy or a NAT with all clients of a site behind it,
but not all there is."""

MAX_NEW_CONNECTIONS: Final = 1_000
"""Connections before init, and those of HTTP, which has none. Each takes 50 kB in a TLS
handshake, and at most 180 kB: with a first message that is not whole, or a long chain of
certificates."""

MAX_NEW_CONNECTIONS_PER_ADDRESS: Final = 512
"""The same of one address: all the clients behind a proxy that comes back connect at once."""

NEW_CONNECTION_GRACE_S: Final = 0.2
"""What a new connection has for its handshake before its place may go to another: one over a
slow network gets through it. It also bounds what peers cost that come again when they are
closed: so often a second are ``MAX_NEW_CONNECTIONS`` places given away at most."""

MAX_BUFFERED_BYTES: Final = 160 << 20
"""Parts of frames, and of what was sent and is not read, of all connections of the process
together. Ten full frames, or thousands of usual ones."""

COUNTED_BUFFER_BYTES: Final = 16 << 10
"""What a connection holds of them before it is counted: all connections together are below
the whole then."""

RESERVED_DESCRIPTORS: Final = 384
"""Open files that are not connections of clients: 256 of the store (its sorted files), those of
a store that is opened again or copied meanwhile, its logs, remote servers, and what listens."""

MIN_CONNECTIONS: Final = 16
"""Connections that a process can be of use with; it does not start where there can't be so many."""

FULL_READ_BYTES: Final = 192 << 10
"""Bytes of a connection that came at once, after which others get their turn. The event loop takes
250 kB at a time, and so it would go on, up to 32 times, before it looked at anybody else."""

LISTEN_BACKLOG: Final = 1_024
"""Connections that the kernel holds until they are accepted."""

ACCEPT_TURN_CONNECTIONS: Final = 32
"""Connections that are accepted at a stretch, about 2 ms, before others get their turn."""

ACCEPT_PAUSE_S: Final = 0.5
"""Until a listener that is out of descriptors or memory tries again."""

ACCEPT_FAILURE_LOG_S: Final = 60.0
"""Between two lines of the log that tell so."""

FREE_LOGIN_FAILURES: Final = 10
"""Wrong names or tokens of one address that are answered at once: several clients of a site
whose token was changed."""

LOGIN_FAILURE_PERIOD_S: Final = 0.5
"""Between two answers to more of them: two guesses a second."""

MAX_LOGIN_DELAY_S: Final = 8.0
"""What such an answer waits at most; below the time to init, so that there is one."""

MAX_FAILED_ADDRESSES: Final = 10_000
"""Addresses whose wrong names and tokens are remembered, those of the last ones; about 2 MB."""

# --- chatter ------------------------------------------------------------------------------

MAX_FIRST_FRAME_BYTES: Final = 64 << 10
"""A message before the peer's first that is no ping was handled: names, a token and
subscriptions, nothing large. After it, whoever listens knows who the peer is."""

MAX_FRAME_BYTES: Final = 16 << 20
"""Any later message that a listener accepts: thousands of events in one registration."""

MAX_ANSWER_FRAME_BYTES: Final = 256 << 20
"""The same where we connected: a server of another make may answer a query in one message
of any size."""

TURN_MESSAGES: Final = 128
"""Messages of one peer that are dealt with at a stretch, pings among them, before others get
their turn: more than the 64 registrations that a quick client has in flight."""

TURN_S: Final = 0.006
"""The same in seconds, for messages that take longer."""

MAX_PEER_CONVERSATIONS: Final = 1_024
"""Conversations of a peer that wait for us; with so many, it is not read from. And those
that the peer began and does not go on with; with more, it is closed."""

MAX_OWN_CONVERSATIONS: Final = 65_536
"""Conversations that we began and the peer did not end, at about 0.3 kB each. A peer that
left so many unanswered will not answer the next one."""

CONNECT_TIMEOUT_S: Final = 10.0
"""For TCP and TLS, until there is a connection."""

FIRST_MESSAGE_TIMEOUT_S: Final = 10.0
"""From the connection (and for the TLS handshake) to the first message that is no ping. A
listener cannot ping before: it does not know the peer's dialect."""

CONVERSATION_TIMEOUT_S: Final = 5.0
"""How long the peer may take to go on with a conversation (003's default)."""

PING_DELAY_S: Final = 30.0
"""A peer that was not heard for so long is pinged (003's default)."""

PING_TIMEOUT_S: Final = 30.0
"""A pinged peer that is not heard for so long is closed (003's default). Not a
conversation's 5 s: a component that is busy for longer is not dead."""

SEND_HIGH_WATER_BYTES: Final = 1 << 20
"""Bytes that a peer was sent and has not read, above which a listener reads nothing from
it, and senders are to wait."""

MAX_SEND_BUFFER_BYTES: Final = 32 << 20
"""The same, above which a peer that is sent yet another message is closed. One message, of
whatever size, is never the reason."""

MAX_UNREAD_PONGS: Final = 1_000
"""Pings that a peer sends while it does not read, above which it is closed. One that waits for
its pongs has a single one under way."""

JOINED_BYTES: Final = 4 << 10
"""What is sent together is joined if its parts are smaller on average, which is quicker; copying
larger ones takes more time and memory than it saves."""

WRITE_STALL_TIMEOUT_S: Final = 30.0
"""Above the high-water mark with nothing leaving for so long: the connection is closed."""

TCP_USER_TIMEOUT_S: Final = 60.0
"""What was sent and is not acknowledged by the peer's kernel for so long ends a connection."""

CLOSE_TIMEOUT_S: Final = 5.0
"""What a closing connection gets to deliver its last bytes."""

LINGER_S: Final = 0.5
"""What the peer gets to end, too, once it got everything: with bytes unread, the system would reset
the connection, and what was sent last be lost."""

MAX_DROPPED_BYTES: Final = 1 << 20
"""What is dropped meanwhile; a peer that sends more is not waited for."""

MESSAGE_TIMEOUT_S: Final = 120.0
"""From the first bytes of a message to its end: 16 MiB at 140 kB/s."""

SWEEP_PERIOD_S: Final = 1.0
"""How often deadlines of connections are looked at."""

MAX_LOG_CHARACTERS: Final = 500
"""Of a reason that a peer's data is part of."""

assert MAX_SEND_BUFFER_BYTES > SEND_HIGH_WATER_BYTES
assert MAX_CONNECTIONS * COUNTED_BUFFER_BYTES <= MAX_BUFFERED_BYTES
assert MAX_FRAME_BYTES < MAX_BUFFERED_BYTES
assert MAX_LOGIN_DELAY_S < FIRST_MESSAGE_TIMEOUT_S
assert 2 * MAX_RELAYED_BYTES <= MAX_SEND_BUFFER_BYTES
assert MAX_FIRST_FRAME_BYTES <= MAX_FRAME_BYTES <= MAX_ANSWER_FRAME_BYTES
assert MAX_FRAME_BYTES <= MAX_PAYLOAD_BYTES <= MAX_SESSION_BYTES <= MAX_ANSWER_FRAME_BYTES

# --- RSB ------------------------------------------------------------------------------------

MAX_NOTIFICATION_BYTES: Final = 16 << 20
"""A notification: an image of a camera, not a film."""

MAX_NOTIFICATION_ITEMS: Final = 1_024
"""Causes, user times or user infos of one event. Each is an object in memory, of which the
bytes of a notification could announce a million."""

MAX_RSB_CONNECTIONS: Final = 1_024
"""Participants' connections to the bus; every event is relayed to all of them."""

RSB_SHARE: Final = 4
"""What part of the known connections of the process those of RSB may be, where the limit of open
files allows fewer than usual: a quarter. RSB has no names, so strangers count as known."""

MAX_RSB_CONNECTIONS_PER_ADDRESS: Final = 512
"""The same of one address, so that it cannot take the whole bus."""

RSB_TURN_EVENTS: Final = 64
"""Events of one connection that are taken in at a stretch, about 1.5 ms, before others get
their turn."""

RSB_TURN_FRAMES: Final = 1_024
"""Frames to other participants that these make at most, at 1.5 us each; questions are answered
with as many again."""

RSB_TURN_BYTES: Final = 512 << 10
"""Bytes of these events above which it is the last one: registering 1 MB takes 30 ms."""

RSB_TURN_RELAYED_BYTES: Final = 8 << 20
"""The same for what they make others get, at about 0.3 ms each MB."""

KEEPALIVE_DELAY_S: Final = 30
"""A silent connection is probed by the kernel then: RSB has no pings."""

SEEN_EVENTS: Final = 65_536
"""Events of the bus whose ids are remembered, so that one that comes back by another way (a
replicated server) is not sent there again: of 3 s at 20,000 events/s, about 10 MB."""
