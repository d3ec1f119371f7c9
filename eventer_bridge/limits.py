"""Every bound of events, sessions, storage, queries and clients, with its unit in the name.

Those of connections, of other servers and of RSB are in the ``limits`` of their rooms.
"""

from typing import Final

MAX_MEMORY_BYTES: Final = 128 << 20
"""What the process holds for its peers, all together (``memory``): eight full messages, or
thousands of usual ones."""

SHED_SHARE: Final = 8
"""Divisor for how much of that becomes free at a time when it is used up: closing connections one
by one would cost more than it frees."""

UNCOUNTED_BYTES: Final = 4 << 10
"""What a connection holds that is too little to be counted: 40 MB of 10,000 connections."""

RELEASED_BYTES: Final = 64 << 10
"""What is released at a time and counted at once; counting less of it each time would cost as much
as some events, and a second later it is counted anyway."""

EVENT_OBJECT_BYTES: Final = 256
"""Memory of a decoded event or query type, besides its payload and its segments."""

SEGMENT_BYTES: Final = 64
"""Memory of a short segment of a decoded type; a longer one takes a byte more for each of its
characters, which came as bytes."""

MAX_SESSION_EVENTS: Final = 65_536
"""Events of one registration request; more would make one commit stall all others."""

LARGE_SESSION_EVENTS: Final = 2_048
"""Events of a registration above which it is processed in slices, between which others get their
turn; at about 6 us an event, fewer take 12 ms."""

LARGE_SESSION_BYTES: Final = 512 << 10
"""Payload of a registration above which it is processed in slices, too: copying it four times
takes 1 ms."""

MANY_NEW_TYPES: Final = 128
"""New or uncached event types of a registration above which it is processed in slices, too: adding
one takes 8 to 80 us, and matching it takes 5 us per subscription of a thousand patterns."""

LARGE_MESSAGE_BYTES: Final = 32 << 10
"""Size above which an Eventer registration is decoded in slices: about 1,000 events."""

STEP_NEW_TYPES: Final = 16
"""New types that are checked in one step: up to 0.5 ms, if they have many segments."""

INLINE_SCHEMA_BYTES: Final = 16 << 10
"""Size of a registration above which a separate process checks payload schemas. Smaller ones take
the event loop up to 10 ms with usual schemas: ``contains`` 1.3 ms, ``uniqueItems`` 0.4 ms, 20
alternatives for each item 6 to 10 ms."""

SCHEMA_CHECK_TIMEOUT_S: Final = 2.0
"""Time limit for that check of one registration. It holds up the large registrations of all
clients."""

SCHEMA_START_TIMEOUT_S: Final = 10.0
"""Time limit for the start of that process; it takes about 0.3 s."""

MAX_PATTERN_BACKTRACKS: Final = 10_000
"""Backtracking steps of one pattern with one text, if it has look-around or back references (others
have none): 0.7 ms. The library's own bound is 100 times that."""

STEP_EVENTS: Final = 256
"""Events of a large registration processed between two looks at the clock."""

STEP_BYTES: Final = 256 << 10
"""Payload bytes of an answer encoded between two looks at the clock."""

SLICE_S: Final = 0.002
"""Length of a slice of work on a large message."""

ITERATION_S: Final = 0.01
"""Length of an iteration of the event loop above which connections that sent something wait for
their turns: thousands may have a large message at the same time."""

READS_IN_TIME: Final = 8
"""Reads that are taken before that is measured, which costs as much as some events."""

FREED_OBJECTS: Final = 2_048
"""Events of a large session, or encoded ones, freed in one step: 0.7 ms."""

MAX_LARGE_SESSIONS: Final = 2
"""Large registrations in progress, so that one is prepared while another is synced. Further ones
wait undecoded, those of each client in turn."""

MAX_PENDING_EVENTS: Final = 20_000
"""Events waiting for their commit. Above it the engine is full and its clients are not read from:
at 100,000 events/s this is 0.2 s of work."""

MAX_PENDING_BYTES: Final = 16 << 20
"""Payload bytes waiting for their commit; as above: four groups, which take a slow disk 0.5 s."""

MAX_LARGE_PENDING_BYTES: Final = 48 << 20
"""The same, of large registrations, which take longer: those in progress (``MAX_LARGE_SESSIONS``)
keep no small ones waiting."""

RESERVED_SESSIONS: Final = 200_000
"""Session ids reserved on disk ahead of use, so that an id that may have been seen is never
reused, even after kill -9. A crash costs at most so many ids of 2**63."""

MAX_GROUP_EVENTS: Final = 4_096
"""Events of one group commit: larger groups are no faster, but delay their first."""

MAX_GROUP_BYTES: Final = 4 << 20
"""The same in bytes: writing them takes 10 ms, in which no other thread can run."""

MAX_GATHERING_S: Final = 0.015
"""How long a group commit waits while more events arrive: two turns of a client that sends at full
speed (``net.limits.TURN_S``), or one each of two. A group costs one sync."""

COMMIT_PART_ROWS: Final = 2_048
"""Rows of a large session written and synced at a time: 0.7 ms in which no other thread can run,
5 ms if others use the processor's caches. Each part costs a sync."""

COMMIT_PART_BYTES: Final = 1 << 20
"""The same in bytes: 2 ms."""

MAX_EVENT_TYPES: Final = 1_000_000
"""Cost of all known event types (see ``type_budget``). They are kept in memory: ordinary ones at
0.3 kB each (0.5 kB while their events come in the order of their source timestamps), others at up
to ``TYPE_PRICE_BYTES`` per unit of cost."""

RESERVED_EVENT_TYPES: Final = 10_000
"""The part of these reserved for the server itself, its modules and other servers."""

MAX_CLIENT_EVENT_TYPES: Final = 100_000
"""Default cost of the types that one client may add: 100 MB. Types are never removed, so ten such
clients leave nothing to others."""

MAX_ANNOUNCED_NAMES: Final = 10_000
"""The same for types with names of clients, of connection events. With one token for all, clients
can invent names."""

TURN_ANNOUNCEMENTS: Final = 32
"""Connections announced in one iteration of the loop, about 2 ms: a network failure ends thousands
at once."""

MAX_NAME_CHARACTERS: Final = 256
"""Length of a client's name: it is kept while the client is connected, and is part of an event type
and of log lines."""

TYPE_PRICE_BYTES: Final = 1_024
"""Memory of a type that costs 1; a longer one costs more."""

assert MAX_CLIENT_EVENT_TYPES + MAX_ANNOUNCED_NAMES + RESERVED_EVENT_TYPES < MAX_EVENT_TYPES

MAX_TYPE_SEGMENTS: Final = 64
"""Segments of an event type; the trie of types is as deep."""

MAX_TYPE_BYTES: Final = 1_024
"""UTF-8 bytes of all segments of an event type."""

MAX_SUBSCRIPTION_TYPES: Final = 1_000
"""Query types of one subscription or query; more, or longer ones, are refused when they are
decoded."""

MAX_QUERY_SEGMENTS: Final = 16_384
"""Segments of all query types of a subscription or query: decoding them takes 1 to 8 ms and 1 MB of
memory."""

MAX_CLIENT_SUBSCRIPTIONS: Final = 50_000
"""Default number of query types that all connections of a client subscribe to: 45 MB, and 0.3 ms
for each new event type, which all of them are matched with."""

MAX_COMMON_TYPES: Final = 10_000
"""Common query types of two subscriptions, if needed one by one (for a remote server): 5 MB. They
could be as many as the product."""

MAX_VISIBLE_BYTES: Final = 64 << 20
"""Memory for the sets of types that clients may see, a byte for each type: 64 clients of different
rights if there are a million types. The sets of others are rebuilt for each query."""

MAX_QUERY_IDS: Final = 4_096
"""Event ids in one query, each of which is looked up: as many as an answer holds."""

MAX_COMPARED_BYTES: Final = 256 << 10
"""Size of a JSON payload that a query by payload decodes for comparison; a longer one is compared
as bytes. Decoding can take 20 ms and 10 MB, and no other thread runs meanwhile."""

MAX_RECEIVED_EVENTS: Final = 1_000_000
"""Events of one message of a remote server. Decoded, an event without payload takes 30 times the
memory of its 8 bytes in a message; other servers may not limit their answers."""

CACHED_SECONDS: Final = 20_000
"""Seconds with a cached encoding; then the cache is cleared."""

MAX_CACHED_TYPE_BYTES: Final = 256
"""Size of an encoded event type that is cached, so that long ones cannot fill the memory."""

MAX_JSON_DEPTH: Final = 128
"""Arrays and objects inside each other in a payload. Peers decode with recursive parsers;
1,000 levels end Python's."""

MAX_RECEIVED_DEPTH: Final = 512
"""Arrays and objects inside each other in any received message, including payloads that another
server stored. At least half of what the decoder of Python 3.11 follows."""

MAX_NUMBER_DIGITS: Final = 1_000
"""Digits in a row in a number of a payload. Python's JSON decoder refuses 4,300 of them, so
that one registration could cut off all its subscribers."""

MAX_PAYLOAD_BYTES: Final = (16 << 20) + (64 << 10)
"""Size of a payload, including its label. A client's message holds no more
(``net.limits.MAX_FRAME_BYTES``); the rest is for additions to an RSB notification. Other servers
may have any size."""

MAX_SESSION_BYTES: Final = 32 << 20
"""Payload bytes of a session of another server, which subscribers get in one message. A session of
ours has those of a client's message, plus those added by modules or other RSB notifications."""

MAX_RESULTS: Final = 4_096
"""Events of one answer to a timeseries or server query; the rest by paging. The default of
hat-event."""

MAX_RESULT_BYTES: Final = 16 << 20
"""Payload bytes of one answer; a larger answer ends early with ``more_follows``."""

MAX_LATEST_RESULTS: Final = 100_000
"""Events of one answer to a query for the latest, which Hat's clients do not page."""

LATEST_CACHE_TYPES: Final = 10_000
"""Types whose latest event is kept in memory, the most recently written."""

READERS: Final = 2
"""Queries that read at a time; others in progress wait for their turn."""

READER_TURN_S: Final = 0.005
"""Length of a query's turn, if others wait. Switching costs 0.1 ms."""

READER_STRETCH_S: Final = 0.001
"""Time a reader works before it yields to the event loop, which costs 50 us."""

SHORT_QUERY_EVENTS: Final = 128
"""Queries of one type for so many events are answered on the event loop's thread: 0.1 ms."""

SHORT_QUERIES_S: Final = 0.001
"""Time that they may take of an iteration of the loop, all together; others go to the readers."""

MAX_QUERIES_BEGUN: Final = 64
"""Unfinished queries that have had a turn, each of which holds a thread and a snapshot. One client
may have as many as are left to others, so 32 at most; further ones wait."""

LARGE_ANSWER_BYTES: Final = 256 << 10
"""Memory above which an answer is large. All others in progress (``MAX_QUERIES_BEGUN``) take 16 MB
together."""

ANSWER_EVENT_BYTES: Final = 512
"""Memory of an event of an answer, besides its payload."""

MAX_LARGE_ANSWERS: Final = 4
"""Large answers read or encoded at a time. One of 16 MB takes 32 MB, as events and encoded; one of
100,000 latest events 60 MB. One client may have as many as are left to others, so 2 at most."""

MARK_SYNC_PERIOD_S: Final = 10.0
"""Period of syncing the mark of how far the store's log was acknowledged (``log_tail``), which
may be so far behind after a power cut. With one sync per commit, syncing it each time would double
their number."""

LOG_AHEAD_BYTES: Final = 512 << 10
"""Zeros that are written ahead of the store's log (``log_tail``): 0.1 ms."""

LOG_AHEAD_COMMIT_BYTES: Final = 64 << 10
"""Largest commit for which they are written; and the fewest that are ahead of it then."""

MAX_STALL_S: Final = 10.0
"""If registrations or queries wait and none is done for so long, the server is not ready. A sync
takes milliseconds, on a busy disk up to some seconds."""

LOOK_TIMEOUT_S: Final = 5.0
"""Time limit for the storage thread's check of its disk, which waits for a sync."""

MIN_FREE_BYTES: Final = 16 << 20
"""Free space on the store's disk, below which the server is not ready: one large registration, and
as much for the files that it is moved to."""

STORE_RETRY_PERIOD_S: Final = 1.0
"""Period of reopening the store after a failed commit. Each attempt that gets so far costs about as
much as a start."""

BLOCK_CACHE_BYTES: Final = 32 << 20
"""Cache of decompressed blocks, indexes and filters of all families."""

WRITE_BUFFER_BYTES: Final = 4 << 20
"""Memory for rows of one family, before another one takes the next rows: adding a row to one of
16 MB takes twice as long, as most of that is not in the processor's cache."""

MERGED_BUFFERS: Final = 2
"""So many buffers are written as one sorted file, and four times as many are kept while the disk is
slow. More and smaller ones make adding rows cheaper and reading dearer, which looks into each: with
eight of 2 MB, a replay takes 20 % longer."""

COMPACTED_FILES: Final = 8
"""New sorted files of a family that are compacted together. Each time, all that was compacted
before is written again; until then, each query looks into each of them. Compared with RocksDB's
default of 4, storing 3,000,000 events in batches costs a fifth less, and reading the newest 1,000
events of all types takes 6 % longer."""

ALL_WRITE_BUFFERS_BYTES: Final = 64 << 20
"""Memory for rows of all families together, including those being written."""

MAX_WAL_BYTES: Final = 128 << 20
"""Maximum log to replay after a crash: about a second."""

MIN_BLOB_BYTES: Final = 64 << 10
"""Size from which the value of an event goes to a blob file (``.blob``). In a sorted file it would
be a block, which reading the row before or after it loads and unpacks: 75 ms if four files have one
of 15 MB, during which no other thread can run."""

MAX_OPEN_FILES: Final = 256
"""Maximum open files; each costs some memory besides the descriptor."""

LATEST_CACHE_ROW_BYTES: Final = 4096
"""Larger values are read from the store; with the limit of types this is 40 MB at most."""

LOG_LOOKS: Final = 100
"""How often a directory is listed until a log is found: RocksDB may replace the only one
meanwhile."""

REOPEN_MARGIN_BYTES: Final = 1 << 20
"""Size of what opening writes besides the rows of the log: file list, options, RocksDB's log."""

CLOCK_PERIOD_S: Final = 1.0
"""Period of checking the clock of this machine."""

CLOCK_TOLERANCE_S: Final = 5.0
"""How far events may be ahead of the clock, or it may jump, without a log line: smaller corrections
are frequent."""

MAX_CLOCK_AHEAD_S: Final = 24 * 3600.0
"""How far events may be ahead of the clock before registrations are refused: more than a wrong time
zone."""

COURSE_TOLERANCE_S: Final = 1.0
"""How far the clock may jump without being noted for age, which is known to so much: it is looked
at once a second."""

MAX_COURSE_POINTS: Final = 1_000
"""Jumps of the clock, and times that the machine was off, that are told apart for age: two a day
for more than a year; 20 kB in the store."""

COURSE_PERIOD_S: Final = 10.0
"""How often passed time is kept, with a commit of something else: so much does not count after the
machine lost its power."""

IDLE_COURSE_PERIOD_S: Final = 600.0
"""The same while nothing else is committed: a sync."""

MAX_SEEN_AHEAD_S: Final = 600.0
"""How far the timestamps of the other server of a pair may be ahead of the clock of this machine to
be followed: clocks that are not set are minutes apart. One that is wrong by hours or years would
make those of the whole pair wrong."""

assert MAX_SEEN_AHEAD_S <= MAX_CLOCK_AHEAD_S

assert MAX_PENDING_EVENTS * 2 <= RESERVED_SESSIONS, (
    "a session has at least one event, so that what is pending must never outrun the ids"
    " that are already reserved on disk"
)

CACHE_BYTES: Final = 20 << 20
"""Memory of each cache by event type (a client's rights, receivers, conditions, …) before it is
cleared: 50,000 types of four short segments. Peers can invent types, of which the longest take
ten times as much as ordinary ones."""

MAX_REASON_CHARACTERS: Final = 500
"""Length of a reason in an answer: a peer's data may be part of it."""

MAX_LOG_CHARACTERS: Final = 500
"""The same of a reason in the log."""

SWEEP_PERIOD_S: Final = 1.0
"""Period of checking deadlines, of connections and of modules."""

MAX_GATHERED_EVENTS: Final = 128
"""Events of registrations that the core gets together: 1.5 ms, or 8 ms if each has a new type."""

MAX_GATHERED_BYTES: Final = LARGE_SESSION_BYTES
"""The same of the messages that they came as."""

ANSWERED_EVENTS: Final = 1_024
ANSWERED_BYTES: Final = 512 << 10
"""Registered events and bytes of their payloads that are answered at one go. With the last session,
which exceeds them, that is 2 MB at most."""

MAX_REQUEST_KEY_CHARACTERS: Final = 64
"""Length of a request key: a UUID has 36 characters, a SHA-256 in hexadecimal 64."""

REQUEST_KEYS: Final = 100_000
"""Default number of request keys that are kept of each client, at 50 to 100 bytes on disk."""

REQUEST_KEYS_S: Final = 24 * 3600.0
"""Default time for which they are kept: a day without a network."""

COUNTED_REQUEST_KEYS: Final = 1_024
"""Request keys of a client between two notes of how many there are."""

MIN_REQUEST_RUN: Final = 8
"""Keys from which requests that came together in the order of their keys share a row. Random keys
come in order once in 40,000 times: their clients have no such rows, which would have to be looked
up for each."""

MAX_KEY_OWNERS: Final = 10_000
"""Clients whose number of request keys is kept in memory: at least so many that had some last, and
at most twice as many; it is read anew for others."""

MAX_CURSOR_NAME_CHARACTERS: Final = 64
"""Length of a cursor's name."""

MAX_PARKED_REASON_CHARACTERS: Final = 500
"""Length of the reason for which a client parks an event."""

MAX_PARKED_AT_ONCE: Final = 1_024
"""Events that are parked, or done, by one message."""

MAX_CURSORS: Final = 1_000
"""Cursors of all clients; each is in memory with a position for each server, and its lag is looked
at."""

MAX_CLIENT_CURSORS: Final = 100
"""Cursors of one client."""

MAX_CURSOR_TYPES: Final = 100
"""Query types that are kept with a cursor, for its lag; if it has more, all events count."""

CURSOR_PERIOD_S: Final = 0.2
"""How long an acknowledgement waits for others before it is written; what comes again after a
crash."""

CURSOR_LAG_PERIOD_S: Final = 10.0
"""Period of looking how far cursors are behind."""

MAX_LAG_EVENTS: Final = 1_000
"""Events behind a cursor that are counted, in 0.4 ms."""

MAX_DELETED_CURSORS: Final = 1_000
"""Deleted cursors whose number of resets is kept, for one of the same name: those that were deleted
last."""

FEW_PARKED: Final = 64
"""Rows of parked events that are looked up one by one, about 20 us each; reading all rows of a
cursor takes up to 5 ms."""

MAX_PARKED: Final = 1_000
"""Events that a cursor may have parked; somebody is to look at them before there are so many."""

REPLAY_PAGE_EVENTS: Final = 2_048
"""Events of a message of a replay: some 10 ms of reading, and 0.3 MB."""

MAX_HELD_BYTES: Final = 4 << 20
"""Notifications held for a client that is about to catch up: 0.2 s at full speed. If there are
more, it reads them from the store."""

MAX_JOINING: Final = 16
"""Connections for which notifications are held at a time, while what came since their last read is
read; others wait some milliseconds."""

MAX_CLIENT_JOINING: Final = 4
"""The same of one client: its reads may wait behind its own queries."""

MAX_REGISTRATIONS_IN_FLIGHT: Final = 1_024
"""Registrations of one client in progress; above it, the client is not read from."""

MAX_QUERIES_WAITING: Final = 64
"""Queries of one connection waiting for their turn; from so many on, it is not read from."""

MAX_QUERIES_WAITING_BYTES: Final = 256 << 10
"""The same, of the memory that they take."""

MAX_OTHER_MESSAGE_BYTES: Final = 1 << 20
"""Size of a client's message that is no registration: a query for 1,000 long types."""

ACK_TIMEOUT_S: Final = 30.0
"""Time limit for a client of persisted events to acknowledge a notification."""

DECLINED_LINGER_S: Final = 0.5
"""Time for a declined Eventer client to read the reason and close first, as in hat-event."""

DRAIN_TIMEOUT_S: Final = 10.0
"""Time limit for answering registrations in progress when a server closes."""

RESPONSE_TIMEOUT_S: Final = 30.0
"""Time limit for a remote Event Server's answer; above the time of a large query."""

GIVE_WAY_S: Final = 0.010
"""How long a replication that catches up waits between two slices for local registrations to be
stored: two commits. So it has at least a sixth of the time."""

MAX_READER_NAME_CHARACTERS: Final = 64
"""Name by which a process tells its connections from those of others; ours have about 40."""

MAX_CURSOR_READERS: Final = 16
"""Processes of which a cursor knows the newest connection: the last ones that had it."""

MAX_REMOTE_SERVERS: Final = 1_024
"""Servers whose events one remote Event Server sends, each with a position of its own."""

MAX_HISTORY_SPANS: Final = 100
"""Predecessors of a history: a store restored more often drops the oldest, and followers of those
start over."""

MAX_HISTORY_ID_CHARACTERS: Final = 64
"""Name of a history; ours have 36 characters."""

RESTORED_SESSIONS: Final = 10**12
"""How far a restore raises the mark of session ids at least: more than the store that it is a copy
of registered since, and at least to the number of microseconds since 1970, which no server reaches
with less than a million ids a second."""

MAX_RESTORED_SESSION: Final = 2**53
"""Up to which a restore raises marks further, at random: the exact range of JSON numbers."""

RESTORED_SHARE: Final = 128
"""Of what is left up to there, at most this part. Two restores of one backup have 5.6e13 ids to
choose from in 2026: that one meets the ids of the other while it registers 1e8 sessions has a
probability of 4e-6. After a hundred restores, one after the other, two thirds of it are left."""

MAX_REFUSED_PAGES: Final = 1_000
"""Successive answers of a remote Event Server to one query that have only events that are not valid
here: four million events, if its pages are like ours."""

MAX_MODULE_ROUNDS: Final = 64
"""Rounds in which modules process the events added to a session; more counts as an endless loop of
modules that answer each other."""

MODULE_TIMEOUT_S: Final = 10.0
"""Time limit for modules to process one session, and for one of them to close its part of it; every
registration waits meanwhile."""

MODULE_SLICE_S: Final = 0.001
"""Time for sessions with modules before others get their turn."""

MAX_ALARM_STATES: Final = 100_000
"""Alarms whose state a threshold module keeps in memory; it queries the store for others."""

assert MAX_ALARM_STATES >= MAX_SESSION_EVENTS, "those of one session are needed at once"

MAX_AUDITED_CONNECTIONS: Final = 20_000
"""Connections whose client names an audit module keeps: twice as many as a server accepts."""

INTERRUPTED_TIMEOUT_S: Final = 2.0
"""Time limit for an interrupted module to return. Then the gateway ends, because no session could
be processed any more."""

STOP_TIMEOUT_S: Final = 5.0
"""Time limit for modules to end sessions in progress when the engine stops, then to be notified of
their end, then to close. Three times this is less than a gateway's time to stop."""

MAX_UNCLOSED_SESSIONS: Final = 1_024
"""Ended sessions of which modules are not notified yet; above it, processing stops."""

MAX_CONTROL_LINE_BYTES: Final = 64 << 10
"""Size of a request of an operator to a running process: two paths (of 4 kB) with every byte
escaped."""

MAX_PID_BYTES: Final = 20
"""Size of the text of a process id."""

MAX_CONTROL_ANSWER_BYTES: Final = 16 << 20
"""Size of an answer: every error of a configuration."""

MAX_CONTROL_CONNECTIONS: Final = 8
"""Such requests at a time, answered one after the other."""

CONTROL_TIMEOUT_S: Final = 10.0
"""Time limit for such a request on the same machine, from connecting to the answer."""

CHECKPOINT_TIMEOUT_S: Final = 4 * 3600.0
"""Time limit for creating a checkpoint. Within a file system that takes well below a second;
copying to another at 100 MB/s, this is 1.4 TB."""

MAX_HAT_UNREFERENCED: Final = 1_000_000
"""Events of a hat-event database that its own index lacks: none, unless it is damaged. Their
positions are kept in memory, at about 0.3 kB each."""

IMPORT_COMMIT_BYTES: Final = 8 << 20
"""Payload bytes of imported events that are written at a time."""

MAX_LISTED: Final = 1_000
"""Events that could not be imported, or findings about a store, listed one by one."""

RETENTION_PERIOD_S: Final = 10.0
"""Period of looking for events to delete; an event may stay so much longer than ``duration``."""

RETENTION_TOLERANCE: Final = 1.1
"""Factor by which exceeding a rule's ``max_entries`` or ``size`` triggers an earlier look."""

RETENTION_MIN_PERIOD_S: Final = 1.0
"""Minimum time between two looks, however far a small limit is exceeded."""

RETENTION_BATCH_EVENTS: Final = 1_000
"""Events deleted in one write: about 2 ms, in which no other thread can run."""

RETENTION_BATCH_BYTES: Final = 4 << 20
"""Size of the blocks of sessions, from which on no more of them are part of one commit: they are
rewritten, and those of large sessions have 1.3 MB each."""

RETENTION_RANGE_ROWS: Final = 16
"""Minimum number of contiguous rows deleted as one range. Fewer are deleted one by one: until it is
written out, a range costs the first read after each deletion some 0.2 us."""

RETENTION_CPU_SHARE: Final = 0.06
"""Share of a processor for choosing events to delete while events are registered and the event loop
is busy. Registration is slowed by about twice as much; 20% are allowed."""

RETENTION_IDLE_SHARE: Final = 0.25
"""The same while the event loop is idle: deletion keeps up with 30,000 events/s."""

RETENTION_LOG_S: Final = 30.0
"""Period of log lines about a deletion in progress."""

assert INLINE_SCHEMA_BYTES <= LARGE_MESSAGE_BYTES
assert MAX_PAYLOAD_BYTES <= MAX_SESSION_BYTES

# --- tokens -------------------------------------------------------------------------------

SCRYPT_COST: Final = 1 << 14
"""N of scrypt. With the next two, what OWASP recommends for 16 MiB of memory: 0.2 s a check."""

SCRYPT_BLOCKS: Final = 8
"""r of scrypt."""

SCRYPT_ROUNDS: Final = 5
"""p of scrypt."""

SCRYPT_TIMEOUT_S: Final = 8.0
"""Time for a check to begin and end, while others take their turns; below the time limit for init,
so that there is an answer."""

MAX_TOKENS: Final = 2
"""Tokens of a client that are valid at a time: the old one and the new one."""

MAX_KNOWN_CHECKS: Final = 10_000
"""Checks with the right token that are remembered, with a wrong one, and addresses and names whose
last check failed; about 1.5 MB each."""

MAX_TOKEN_FILE_BYTES: Final = 4 << 10
"""Size of a file with a token; ours have 50 bytes."""

# --- files that a configuration names -----------------------------------------------------

MAX_PEM_FILE_BYTES: Final = 16 << 20
"""Size of a file with certificates, keys or revocation lists. The authorities that a system trusts
have 250 kB; 16 MiB list some 300,000 revoked certificates."""
