"""Every bound of the Spark side, with its unit in the name and its reason."""

from typing import Final

# --- batches ------------------------------------------------------------------------------

BATCH_ROWS: Final = 8_192
"""Rows of an Arrow batch, at most: decoding costs hardly less a row above it."""

BATCH_BYTES: Final = 8 << 20
"""Bytes of keys and values after which a batch ends: large payloads do not add up."""

NAMED_TYPES: Final = 100_000
"""Event types whose names a task remembers before it begins anew."""

# --- partitions ---------------------------------------------------------------------------

MAX_PARTITIONS: Final = 10_000
"""Partitions of one read. Each is a task, which costs some 10 ms however small it is."""

MAX_RANGES: Final = 200_000
"""Ranges of keys that all partitions of a read have together when they are cut by time, at
10 us each. Above it, which takes many types, they are cut by type."""

NETWORK_PARTITIONS: Final = 2
"""Connections that a read over the network makes, unless told: a gateway answers queries on
two threads, and should have time left for others."""

# --- neighbours ---------------------------------------------------------------------------

NICENESS: Final = 15
"""By how much Java and its Python workers are nicer than who starts them (0 to 19). On two
cores, beside two tasks that read its store all the time, a gateway registers at 50 % of its
rate with 0, 82 % with 10, 89 % with 19; with 19, Spark would hardly get on beside others."""

# --- snapshots ----------------------------------------------------------------------------

MAX_SNAPSHOTS: Final = 64
"""Snapshots that one driver keeps in a store, the newest. Each keeps files that the gateway
has rewritten since, and so costs up to the size of the store in the end."""

MAX_SNAPSHOT_AGE_S: Final = 24 * 3600.0
"""How long a snapshot of a driver on another machine is kept after its last use: nobody
here can tell whether that driver still lives."""

SNAPSHOT_TRIES: Final = 3
"""Times that a snapshot is tried of a store that something begins to use meanwhile."""

# --- network ------------------------------------------------------------------------------

CONNECT_TIMEOUT_S: Final = 10.0
"""To connect to a gateway, TLS and init included."""

ANSWER_TIMEOUT_S: Final = 120.0
"""What a gateway gets to answer one page: far above what a page takes, below for ever."""

# --- streams ------------------------------------------------------------------------------

POLL_PERIOD_S: Final = 0.2
"""How often a stream that has read everything asks for more; each time costs a gateway a few
look-ups."""

RETRY_MIN_S: Final = 0.1
"""Wait before the second attempt to reach a gateway that is away; it doubles."""

RETRY_MAX_S: Final = 10.0
"""Longest wait between two attempts to reach it."""

ANNOUNCEMENTS_WAIT_S: Final = 600.0
"""How long announcements of connections wait for other events to be read with. A stream makes
some itself whenever Spark starts or ends a worker; without other events it ends them after a
minute, so that each batch would bring about the next one."""

MAX_NOISE_EVENTS: Final = 100
"""Events of a server that are looked at to find something else among them; with more, a batch
pays."""

SLICE_SESSIONS: Final = 250
"""Sessions of a batch that are worth a task more, with a connection of its own."""

# --- lake ---------------------------------------------------------------------------------

ROW_GROUP_ROWS: Final = 250_000
"""Events of a row group, which one task of Spark reads: enough work for it, and small enough
to be left out by its times."""

SEGMENT_ROWS: Final = 1_000_000
"""Events of a Parquet file, at most: four row groups. A task that writes keeps so many in
memory, some 200 MB of ordinary ones, and as much again while it sorts them."""

SEGMENT_BYTES: Final = 256 << 20
"""Bytes of Arrow data of a Parquet file, at most: what large payloads may take of memory."""

LARGE_ROWS: Final = SEGMENT_ROWS // 2
"""Events from which on a file is not rewritten by a compaction: two such do not fit into one."""

LARGE_BYTES: Final = SEGMENT_BYTES // 2
"""Bytes of Arrow data from which on it is not rewritten either, for the same reason. The size of
a file tells nothing: equal payloads are thousands of times smaller in it."""

MANIFEST_BYTES: Final = 256 << 20
"""Of a manifest, at most: that of a million files."""

LAKE_QUERIES: Final = 100
"""Stream queries whose last batch a manifest remembers: many more than run at once."""

LOCK_WAIT_S: Final = 60.0
"""To wait for the lock of a lake, which is held for milliseconds, in an object store for
some tenths of a second."""

LOCK_RETRY_S: Final = 0.05
"""Between two tries to get it."""

LOCK_LEASE_S: Final = 60.0
"""After which a lock in an object store is taken to be of a process that was killed: far above
what it takes to replace a manifest."""

PROGRESS_S: Final = 1
"""Between two looks at how far an ingestion is."""

GRACE_S: Final = 24 * 3600.0
"""How long a file that was replaced is kept: longer than any report reads."""

# --- Java ---------------------------------------------------------------------------------

MIN_JAVA_VERSION: Final = 17
"""What Spark 4 needs."""

JAVA_TIMEOUT_S: Final = 30.0
"""For a Java to tell its version; well above what a loaded machine takes."""

WARM_UP_TIMEOUT_S: Final = 300.0
"""To make the class cache of a Java: 30 s where nothing else runs."""

# --- reports ------------------------------------------------------------------------------

REPORT_BUCKETS: Final = 100
"""Buckets of time of a report, at most: what a chart can show on a phone."""

REPORT_PREFIXES: Final = 10
"""Type prefixes that activity tells apart, the largest: as many as there are colours; the
others are one row a bucket. So it has 1,100 rows at most."""

REPORT_VALUE_TYPES: Final = 20
"""Types whose values are summed up by bucket, those with most of them: 2,000 rows at most."""

REPORT_ROWS: Final = 1_000
"""Rows of the other reports, at most; each says which they are."""

REPORT_TOP_TYPES: Final = 200
"""Types of the report of the largest ones."""

REPORT_PAYLOAD_CHARACTERS: Final = 200
"""Of a payload, as much is shown."""

NUMBER_CHARACTERS: Final = 10_000
"""Of a number in a payload, for it to be read. What is registered has at most 3,004 (three times
``MAX_NUMBER_DIGITS`` of the core); ten times as many digits take Java a hundred times as long."""

MIN_INTERVALS: Final = 5
"""Intervals that a type must have before the median of them says what to expect."""

PERCENTILE_ACCURACY: Final = 10_000
"""Spark's default: a percentile's rank is off by a 10,000th of the rows at most, and not at
all below as many rows; it bounds what a task remembers."""

PAGE_ROWS: Final = 50
"""Rows of a table that the page shows; the files have all of them."""

LABEL_CHARACTERS: Final = 24
"""Of a label in a chart; a longer one is shortened in its middle."""

NAME_CHARACTERS: Final = 120
"""Of a type or a client in sentences and tables of the page; the files have all of it."""
