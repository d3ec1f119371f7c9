"""Every bound of the Mariner side, with its unit in the name and its reason."""

from typing import Final

# --- wire ---------------------------------------------------------------------------------

LARGE_FRAME_BYTES: Final = 128 << 10
"""A message above which it is decoded in slices, and then dealt with in slices: a registration of
1,000 events or more. It takes 2 ms at the most to decode a smaller one."""

STEP_BYTES: Final = 32 << 10
"""Bytes of a large message that are decoded between two looks at the clock."""

MAX_OTHER_FRAME_BYTES: Final = 1 << 20
"""A message to a server that is not a ``register_req``: a query for 1,000 long types."""

MAX_EVENT_COMMAS: Final = 1_000_000
"""In one event of a large message, outside of texts, so that no single event takes longer than
20 ms to decode. 16 MiB of numbers of 15 digits keep it."""

MAX_EVENT_MARKS: Final = 500_000
"""Brackets and quotes in one event of a large message; they are counted at 0.4 us each."""

MAX_EXPLAINED_BYTES: Final = 32 << 10
"""A refused message that is decoded without types and shown to the schema, so that the reason
names the place and what was found there: 5 ms at the most. Of larger ones typed decoding tells
the place only."""

MAX_LENIENT_BYTES: Final = 128 << 10
"""What typed decoding refused and is written anew for it, at up to 30 ms: a message, or an event
of a large one."""

MAX_REASON_BYTES: Final = 200
"""Of a reason that typed decoding gives, and of the parts of a message that go with it."""

# --- server -------------------------------------------------------------------------------

SERVER_PING_DELAY_S: Final = 60.0
"""A connection on which nothing was received or sent for so long is pinged. Twice what
clients wait before they ping (30 s), because hat-mariner's client takes a ping_req for an
error: it always pings first, and never sees one."""

STOP_TIMEOUT_S: Final = 20.0
"""What sessions that are under way get to end (modules, commit) when the gateway stops."""

MAX_STOP_S: Final = 25.0
"""From SIGTERM to the end of the process, whatever hangs. After 30 s systemd (TimeoutStopSec of
deploy/mariner.service) and Kubernetes (terminationGracePeriodSeconds) would kill it, and nobody
would be told why."""

assert STOP_TIMEOUT_S < MAX_STOP_S

# --- memory ---------------------------------------------------------------------------------

OWN_BLOCK_BYTES: Final = 2 << 20
"""Blocks of memory of this size and more are given back to the system as soon as they are freed.
Smaller ones, as the rows of a group commit, are made anew all the time: to get them from the system
takes as long as to fill them."""

MAX_FREE_BYTES: Final = 1 << 20
"""Free memory that is kept for smaller ones, of each arena."""

MAX_ARENAS: Final = 2
"""Parts of memory that threads take turns in. Only one thread runs Python at a time."""

YOUNG_COLLECTIONS: Final = 50
"""Collections of young garbage, one for every 7,000 new objects, before a full one. Only garbage
with cycles waits for that; no buffer of a peer may be in a cycle."""

# --- HTTP ---------------------------------------------------------------------------------

HTTP_TIMEOUT_S: Final = 10.0
"""From ``accept`` to the end of the answer; metrics take some ms."""

MAX_HTTP_LINE_BYTES: Final = 2 << 10
"""The line of a request, or of a header; what is sent by Prometheus, kubelet and curl is below
0.3 kB."""

MAX_HTTP_HEADERS: Final = 32
"""Headers of a request; they send below ten. With the bytes of a line, 64 kB at most."""
assert MAX_EXPLAINED_BYTES <= MAX_LENIENT_BYTES
assert LARGE_FRAME_BYTES <= MAX_LENIENT_BYTES < MAX_OTHER_FRAME_BYTES

# --- metrics ------------------------------------------------------------------------------

MAX_METRIC_SCOPES: Final = 100
"""RSB scopes that have a latency of their own in the metrics, the first that are heard of:
anybody on the bus can make up any number of them. All others share one."""

# --- logs ---------------------------------------------------------------------------------

MAX_LOG_ITEMS: Final = 20
"""Of every list of a line of the log, of the lines of a traceback, and of the sources that one
line tells to have been left out."""

LOG_ADDRESS_BURST_LINES: Final = 20
"""Lines about peers of one address that are written at once."""

LOG_ADDRESS_LINES_PER_S: Final = 0.2
"""And what is written beyond that: what an operator can read of one who floods it."""

LOG_BURST_LINES: Final = 200
"""The same for all addresses together, and for each place in the code that tells of no peer."""

LOG_LINES_PER_S: Final = 2.0
"""And beyond that: some 50 MB a day, as long as an attack lasts."""

MAX_LOG_SOURCES: Final = 4_096
"""Addresses and places whose lines are counted, at about 0.3 kB each; the longest unused is
forgotten."""

MAX_LOG_QUEUE_LINES: Final = 1_000
"""Lines that wait to be written; the next ones are dropped. About 1 MB, and 10 MB at most."""

LOG_SUMMARY_PERIOD_S: Final = 10.0
"""Seconds between two lines about what was left out of the log."""

LOG_CLOSE_TIMEOUT_S: Final = 2.0
"""What the last lines get to be written when the process ends. With it, even the end of a stuck
process is below the 30 s of ``MAX_STOP_S``."""
