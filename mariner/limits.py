"""Every bound of the Mariner side, with its unit in the name and its reason."""

from typing import Final

from eventer_bridge import limits

# --- wire ---------------------------------------------------------------------------------

MAX_INIT_RES_BYTES: Final = 512 << 10
"""Size of an ``init_res``: with the histories of 1,024 servers, whose names are escaped."""

READ_FRAME_BYTES: Final = 512 << 10
"""Size up to which a registration is read at once, if it is a usual one: 0.5 ms."""

LARGE_FRAME_BYTES: Final = 128 << 10
"""Size above which a message is decoded and handled in slices: a registration of 1,000 events or
more. Decoding a smaller one takes 2 ms at most."""

STEP_BYTES: Final = 32 << 10
"""Bytes of a large message decoded between two looks at the clock."""

MAX_EVENT_COMMAS: Final = 1_000_000
"""Commas in one event of a large message, outside of strings, so that no event takes longer than
20 ms to decode. 16 MiB of numbers of 15 digits fit."""

MAX_EVENT_MARKS: Final = 500_000
"""Brackets and quotes in one event of a large message; they are counted at 0.4 us each."""

MAX_EXPLAINED_BYTES: Final = 32 << 10
"""Maximum size of a refused message that is decoded without types and checked by the schema, so
that the reason names the position and the value: 5 ms at most. For larger ones, typed decoding
names the position only."""

MAX_LENIENT_BYTES: Final = 128 << 10
"""Maximum size of a message, or an event of a large one, that typed decoding refused and that is
normalised for it, in up to 30 ms."""

MAX_EXPONENT_DIGITS: Final = 9
"""Of a number: no message has as many digits as a longer exponent moves the point."""

MAX_REASON_BYTES: Final = 200
"""Length of a reason from typed decoding, and of the parts of a message in it."""

# --- server -------------------------------------------------------------------------------

SERVER_PING_DELAY_S: Final = 60.0
"""Silence, in both directions, after which a connection is pinged. Twice the clients' own delay
(30 s), because hat-mariner's client treats a ping_req as an error: it always pings first, and
never sees one."""

STOP_TIMEOUT_S: Final = 20.0
"""Time for sessions in progress to end (modules, commit) when the gateway stops."""

MAX_STOP_S: Final = 25.0
"""From SIGTERM to the end of the process, whatever hangs. After 30 s systemd (TimeoutStopSec of
deploy/mariner.service) and Kubernetes (terminationGracePeriodSeconds) would kill it, without
a reason in the log."""

assert STOP_TIMEOUT_S < MAX_STOP_S

RELOAD_TIMEOUT_S: Final = 60.0
"""Time for a gateway to answer ``mariner reload``; checking 10,000 clients takes seconds."""

WATCH_PERIOD_S: Final = 2.0
"""Between two looks at the files of the configuration (``serve --watch``), each of which reads
them: Kubernetes itself takes up to a minute."""

CURSORS_TIMEOUT_S: Final = 60.0
"""Time for a gateway to answer ``mariner cursors``; how far 1,000 are behind takes seconds."""

STEP_DOWN_S: Final = 60.0
"""From ``mariner group step-down`` until a member is active: what is under way is ended, as when a
gateway stops; then another member may claim for ``takeover_s`` and 2 s, before this one does."""

GROUP_TIMEOUT_S: Final = 10.0
"""For the log of a group to answer a command; its servers may be at the other end of a country."""

STATUS_TIMEOUT_S: Final = 20.0
"""Time for a gateway to answer ``mariner status``, which may wait for its disk."""

OLDEST_TIMEOUT_S: Final = 1.0
"""Time to find the oldest event for it, behind the queries of clients."""

MAX_STATUS_CLIENTS: Final = 1_000
"""Clients in its answer, at some 0.5 kB each; those that are furthest behind come first."""

MAX_SLOWEST: Final = 10
"""Connections that are furthest behind, in its answer."""

MAX_STATUS_CONNECTIONS: Final = 1_000
"""Connections of ``mariner status --connections``, at some 1 kB each."""

MAX_SHOWN_QUERY_TYPES: Final = 3
"""Query types of such a connection; the others are counted."""

MAX_SHOWN_QUERY_TYPE_CHARACTERS: Final = 100
"""Of each of them."""

MAX_STATUS_ERRORS: Final = 10
"""Errors in its answer, the last ones."""

MAX_READS_OF_FILES: Final = 5
"""Times that files are read anew when they were replaced while they were read."""

# --- configuration files ------------------------------------------------------------------

MAX_CONFIGURATION_BYTES: Final = 8 << 20
"""Size of a file. One of 10,000 clients has 3 MB."""

MAX_CONFIGURATION_VALUES: Final = 500_000
"""Values in it, with what aliases repeat. 10,000 clients have 170,000; decoding that many takes
seconds and 150 MB."""

MAX_CONFIGURATION_DEPTH: Final = 100
"""Arrays and objects in each other. PyYAML overflows the stack at some 20,000, and what looks at
the values afterwards takes up to 8 of Python's 1,000 frames for each."""

MAX_CONFIGURATION_ERRORS: Final = 100
"""Errors of a file that are told: nobody reads more."""

MAX_VALUE_CHARACTERS: Final = 60
"""Length of a value in the text of an error."""

MAX_NUMBER_CHARACTERS: Final = 100
"""Length of a number or moment. An integer of YAML with colons takes hours for 1 MB of text."""

MAX_TOML_DOTS: Final = 1_000
"""In a line of TOML: one key of 4 million parts would take hours."""

MAX_YAML_DIRECTIVES: Final = 100
"""Lines of YAML that begin with ``%``: 20,000 take 1 s, in which nothing else runs."""

MIN_DAYS_LEFT: Final = 30
"""Days before a certificate expires, from which on ``mariner check`` warns: a month to renew it."""

# --- client -------------------------------------------------------------------------------

MAX_UNANSWERED: Final = limits.MAX_REGISTRATIONS_IN_FLIGHT
"""Registrations of a ``ReconnectingClient`` that wait for a connection or an answer; others wait to
be taken on."""

UNKNOWN_HOST_S: Final = 30.0
"""How long a ``ReconnectingClient`` that was never connected waits for the name of a host to be
resolved: a machine that starts has its network by then, and a mistyped name is soon told."""

OTHER_SERVERS_WAIT_S: Final = 1.0
"""How long a ``ReconnectingClient`` waits at most, none of whose servers is OPERATIONAL: those of a
group take over within seconds."""

MAX_NOTIFICATIONS_BYTES: Final = 16 << 20
"""Notifications that wait for the user. Above it the client stops reading; one more message may
arrive. A second of a fast gateway's notifications, and little for a program."""

EVENT_BYTES: Final = 512
"""Size of an event besides its payload: about that of its objects in memory. A batch counts as much
besides its events, so that a server cannot fill the memory with empty ones, or with marks."""

STALL_TIMEOUT_S: Final = 10.0
"""How long a request may wait for an answer that cannot be read because notifications are not
consumed (up to twice as long: this is also the period of the check)."""

BUFFER_BYTES: Final = 1 << 30
"""Size of a buffer by default: five million small events, half a day without a network at 100
events/s."""

BUFFER_ROW_BYTES: Final = 128
"""Size of a registration in a buffer besides its events: its key, times, and their place in the
file."""

BUFFER_LOCK_TIMEOUT_S: Final = 30.0
"""Time to wait for another process that writes to the same buffer."""

MAX_BUFFER_GATHERED_BYTES: Final = 16 << 20
"""Registrations that wait for one sync; those who register more wait."""

MAX_UNDER_WAY: Final = 512
MAX_UNDER_WAY_BYTES: Final = 8 << 20
"""Registrations of a buffer in memory on their way to a server: more than it commits at once."""

BUFFER_POLL_S: Final = 0.2
"""Time until registrations that another process queued are seen."""

BUFFER_RETRY_S: Final = 1.0
"""After the disk failed, before what was forwarded is taken out again."""

REQUEST_HEAD_BYTES: Final = 1_024
"""Of a request besides its events."""

# --- memory ---------------------------------------------------------------------------------

OWN_BLOCK_BYTES: Final = 2 << 20
"""Blocks of memory of this size and more are returned to the system as soon as they are freed.
Smaller ones, as the rows of a group commit, are allocated all the time: getting them from the
system takes as long as filling them."""

MAX_FREE_BYTES: Final = 1 << 20
"""Free memory kept for smaller ones, per arena."""

MAX_ARENAS: Final = 2
"""Memory arenas shared by threads. Only one thread runs Python at a time."""

COLLECTIONS: Final = (700, 10, 1)
"""When garbage with cycles is collected (``gc.set_threshold``): for every 17,000 new objects, a
full collection visits those that came since the one before, in some 2 ms. Python 3.13 has 2,000 in
place of 700, with which it would take 6 ms."""

MIN_GROWTH_BLOCKS: Final = 1_000_000
"""Minimum growth, in allocated blocks, before a full collection visits everything, which takes 0.1
to 0.4 s: as many as 15,000 connections have, some 100 MB. Garbage with cycles may wait that long,
and a large block counts as one, so no buffer of a peer may be in a cycle."""

# --- HTTP ---------------------------------------------------------------------------------

HTTP_TIMEOUT_S: Final = 10.0
"""From ``accept`` to the end of the answer; metrics take some ms."""

METRICS_READERS: Final = 4
"""Answers with metrics that are not read to their end, below which they are made anew for each."""

METRICS_PAUSES: Final = 10
"""How many times as long as it took to make the metrics they are given to others, too, if there are
so many: a tenth of the loop's time at most, and one copy for all who do not read it."""

MAX_HTTP_LINE_BYTES: Final = 2 << 10
"""Length of a request line or a header; those of Prometheus, kubelet and curl are below 0.3 kB."""

MAX_HTTP_HEADERS: Final = 32
"""Headers of a request; these clients send below ten. With the length of a line, 64 kB at most."""
assert MAX_EXPLAINED_BYTES <= MAX_LENIENT_BYTES
assert LARGE_FRAME_BYTES <= MAX_LENIENT_BYTES < limits.MAX_OTHER_MESSAGE_BYTES

# --- metrics ------------------------------------------------------------------------------

TRACES_STOP_TIMEOUT_S: Final = 5.0
"""Time to send the last spans when the gateway stops; and for a batch of them."""

LOOP_LAG_PERIOD_S: Final = 0.25
"""Between two measurements of the event loop's lag: 60 for each scrape of 15 s, at 20 us each."""

# --- logs ---------------------------------------------------------------------------------

MAX_LOG_ITEMS: Final = 20
"""Items of a list in a log line, lines of a traceback, and sources in a line about suppressed
lines."""

LOG_ADDRESS_BURST_LINES: Final = 20
"""Burst of log lines about peers of one address."""

LOG_ADDRESS_LINES_PER_S: Final = 0.2
"""Rate beyond the burst: as much as an operator can read about a peer that floods the log."""

LOG_BURST_LINES: Final = 200
"""Burst for all addresses together, and for each call site whose lines name no peer."""

LOG_LINES_PER_S: Final = 2.0
"""Rate beyond that burst: some 50 MB a day, as long as an attack lasts."""

MAX_LOG_SOURCES: Final = 4_096
"""Addresses and call sites whose lines are counted, at about 0.3 kB each; the least recently used
is dropped."""

AUDIT_PERIOD_S: Final = 60.0
"""Period in which equal lines of the audit trail are counted instead of written."""

MAX_AUDITED_LINES: Final = 2_000
"""Different lines about clients and operators in a period: all clients of a site that connect
anew. Each is written twice at most, 1 MB a minute of a client that makes up names."""

MAX_AUDITED_STRANGERS: Final = 200
"""The same about those who were not let in: 0.1 MB a minute, from how many addresses they come."""

MAX_AUDITED_OF_ADDRESS: Final = 20
"""The same about those of one address, who cannot hide what others do."""

AUDITED_REGISTRATIONS_S: Final = 60.0
"""Period of lines about how many events a client registered."""

AUDITED_ITEMS: Final = MAX_LOG_ITEMS
"""Changes of a reload, or clients that registered, in one line; more take several."""

MAX_LOG_QUEUE_LINES: Final = 1_000
"""Lines waiting to be written; further ones are dropped. About 1 MB, and 10 MB at most."""

LOG_SUMMARY_PERIOD_S: Final = 10.0
"""Seconds between two lines about suppressed lines."""

LOG_CLOSE_TIMEOUT_S: Final = 2.0
"""Time to write the last lines when the process ends. With it, even a stuck process ends within
the 30 s of ``MAX_STOP_S``."""

LOG_WAKE_S: Final = 0.5
"""Longest sleep of the log's thread, which tells now and then what was not logged."""

# --- backups ------------------------------------------------------------------------------

MAX_MANIFEST_BYTES: Final = 16 << 20
"""Size of the manifest of a backup: that of 100,000 files, of 64 MB each."""

BACKUP_CHUNK_BYTES: Final = 4 << 20
"""Of a file of an object store, read at a time."""

BACKUP_RETRIES: Final = 5
BACKUP_RETRY_S: Final = 30
"""How often a request to an object store is repeated, and for how long."""

LEFT_OVER_DAYS: Final = 1
"""Age from which on what an interrupted backup left behind is removed."""

# --- command line -------------------------------------------------------------------------

READ_CHUNK_BYTES: Final = 64 << 10
"""Of standard input, read at a time."""

FIRST_RATES_S: Final = 1.0
"""Between the two answers that the first rates of ``mariner status`` come from."""

NOTEWORTHY_SHARE: Final = 0.5
"""Use of a bound from which on ``mariner status`` shows it; or it was met before."""

MAX_REQUESTS: Final = 64
"""Pending requests of ``mariner register``; a durable server commits concurrent ones together."""

MAX_QUEUEING: Final = 1_024
"""Registrations of ``mariner register --buffer`` that wait for one sync."""

MAX_PRINTING_EVENTS: Final = 1_000
"""Events of ``mariner rsb listen`` that wait to be printed; with more, reading pauses."""

MAX_TABLE_ROWS: Final = 1_000
"""Events of one table: all are in memory, to find the widths of the columns."""

MAX_TERMINAL_EVENTS: Final = 100
"""Events that ``mariner query`` prints in a terminal, where nobody reads a million."""

SEARCH_S: Final = 0.5
"""Time that a query of ``mariner query --payload`` is to take, see ``mariner.cli.search``."""

SLOW_SEARCH: Final = 3
"""Or as many times as a query of a single event takes, if that is longer."""

FIRST_SEARCH_SPAN_US: Final = 1_000
"""Span of the first such query: few events, however fast they came. The next ones are longer."""
