"""Bounds of the Spark side, each with its unit in the name and its reason."""

from typing import Final

# --- batches ------------------------------------------------------------------------------

BATCH_ROWS: Final = 8_192
"""Maximum rows of an Arrow batch: larger ones hardly lower the cost of a row."""

BATCH_BYTES: Final = 8 << 20
"""Bytes of values after which a batch ends: bounds the memory of large payloads."""

NAMED_TYPES: Final = 100_000
"""Event types whose names a task caches before it clears the cache."""

# --- partitions ---------------------------------------------------------------------------

MAX_PARTITIONS: Final = 10_000
"""Partitions of one read. Each is a task, which costs about 10 ms, however small."""

MAX_RANGES: Final = 200_000
"""Ranges of keys of all partitions of a read that is split by time, at 10 us each. A read with
more, because it selects many types, is split by type."""

NETWORK_PARTITIONS: Final = 2
"""Default number of connections of a read over the network: a gateway answers queries on two
threads, and should have time left for other clients."""

# --- neighbours ---------------------------------------------------------------------------

NICENESS: Final = 15
"""Increment of the nice value of Java and its Python workers (0 to 19). On two cores, beside two
tasks that read its store all the time, a gateway registers at 50 % of its rate with 0, 82 % with
10, 89 % with 19; with 19, Spark would hardly run beside other processes."""

# --- snapshots ----------------------------------------------------------------------------

MAX_SNAPSHOTS: Final = 64
"""Snapshots of a driver that are kept in a store, those used last. Each keeps files that the
gateway has rewritten since, and so takes up to the size of the store."""

MAX_SNAPSHOT_AGE_S: Final = 24 * 3600.0
"""How long a snapshot of a driver on another machine is kept after its last use: whether that
driver still runs is unknown here."""

SNAPSHOT_TRIES: Final = 3
"""Attempts to take a snapshot of a store that other processes open or change meanwhile."""

PROBES: Final = 8
"""Stretches of sessions of a store for each slice of time: they find about equal slices."""

PROBE_BLOCKS: Final = 16
"""Blocks of sessions that are counted at the begin of each: 0.1 ms."""

MAX_JUMPS: Final = 2_000
"""Jumps of session ids in a store that are looked for: about one for each crash of its servers."""

# --- network ------------------------------------------------------------------------------

CONNECT_TIMEOUT_S: Final = 10.0
"""Timeout of connecting to a gateway, including TLS and init."""

ANSWER_TIMEOUT_S: Final = 120.0
"""Timeout of one page of an answer: far above the time that a page takes."""

# --- streams ------------------------------------------------------------------------------

POLL_PERIOD_S: Final = 0.2
"""Period at which a stream that has read everything looks for new events; each look costs a
gateway a few look-ups."""

RETRY_MIN_S: Final = 0.1
"""Wait before the second attempt to reach an unavailable gateway; it doubles."""

RETRY_MAX_S: Final = 10.0
"""Longest wait between two attempts."""

CONNECTION_EVENTS_WAIT_S: Final = 600.0
"""How long connection events wait for other events to be read with. A stream causes some itself
whenever Spark starts or ends a worker; without other events Spark ends them after a minute, so
that each batch would cause the next one."""

MAX_CONNECTION_EVENTS: Final = 100
"""Events of a server that are searched for other events; more of them are worth a batch."""

REPLAYED_SHARE: Final = 0.5
"""Share of selected events in a page below which the rest of a partition is replayed. A gateway
computes 15 % more than for pages if all events are selected, a third less if half of them are, and
a tenth of it if one in a hundred is."""

SLICE_SESSIONS: Final = 250
"""Sessions of a batch that are worth another task, with its own connection."""

NEAR_EVENTS: Final = 200
"""Events after the offset of a batch, and before its end, that are checked for deleted ones."""

NEAR_SESSIONS: Final = 100
"""Sessions before the end that have these events."""

BEFORE_EVENTS: Final = 200
"""Events before the offset that are checked."""

SEEN_EVENTS: Final = 10
"""Events before the end: none is missing there for a client that sees everything."""

MAX_CHECKED_TYPES: Final = 50
"""Types whose oldest event is queried: 0.1 ms each."""

# --- commands -----------------------------------------------------------------------------

CANCEL_PERIOD_S: Final = 0.2
"""Period at which a command that got a signal cancels the jobs of Spark."""

# --- lake ---------------------------------------------------------------------------------

ROW_GROUP_ROWS: Final = 250_000
"""Events of a row group, which one task of Spark reads: enough work for a task, and small enough
for Spark to skip by time."""

SMALL_GROUP_ROWS: Final = 10_000
"""Events of a row group in files that are sorted by type: small enough to skip by type."""

FILE_ROWS: Final = 1_000_000
"""Maximum events of a Parquet file: four row groups. A writing task buffers so many, about 200 MB
of ordinary ones, and as much again while it sorts them."""

FILE_BYTES: Final = 256 << 20
"""Maximum bytes of Arrow data of a Parquet file: bounds the memory of large payloads."""

MERGED_BYTES: Final = 64 << 20
"""Maximum size of the files that a compaction merges into one: in memory they are several times
larger."""

PART_ROWS: Final = FILE_ROWS // 2
"""Events of a store that one process writes at a time: enough for two full row groups, and few
enough that all processes end at about the same time."""

ROLLED_ROWS: Final = 500_000
"""Events and rollups, about, that an update of rollups holds at a time: 0.5 GB, with the file that
is read. Only a type with more events in a minute takes more."""

COMMIT_TRIES: Final = 20
"""Attempts to commit beside other writers; of several that commit at once, one succeeds."""

GRACE_HOURS: Final = 24
"""How long a file that belongs to no table is kept: longer than any report reads, and than any
batch of an ingestion takes."""

MAINTENANCE_S: Final = 3600.0
"""Period at which a continuous ingestion compacts its lake."""

UPDATE_S: Final = 60.0
"""Period at which it updates the derived tables: ``latest`` is written anew each time."""

# --- conditions ---------------------------------------------------------------------------

EXPRESSION_CHARACTERS: Final = 20_000
"""Length of regular expressions that patterns of types are joined to: of twice as many, DuckDB
takes ten times as long."""

# --- Java ---------------------------------------------------------------------------------

MIN_JAVA_VERSION: Final = 17
"""Minimum version for Spark 4."""

JAVA_TIMEOUT_S: Final = 30.0
"""Timeout of ``java -version``; well above its time on a loaded machine."""

WARM_UP_TIMEOUT_S: Final = 900.0
"""Timeout of creating a class cache: it takes 40 s on an idle machine, three minutes on a busy
one."""

# --- reports ------------------------------------------------------------------------------

DUCKDB_MEMORY_BYTES: Final = 1 << 30
"""Memory of DuckDB, as much as Spark's driver has by default; what needs more goes to files."""

FETCHED_ROWS: Final = 2_048
"""Rows that DuckDB hands over at a time: as many as it computes with."""

DUCKDB_EVENTS: Final = 100_000_000
"""Events of a store or a lake from which on reports are made by Spark, unless DuckDB is named."""

REPORT_BUCKETS: Final = 100
"""Maximum buckets of time of a report: as many as a chart can show on a phone."""

REPORT_PREFIXES: Final = 10
"""Largest type prefixes in the report activity: as many as there are colours; all others are one
row per bucket. So it has at most 1,100 rows."""

REPORT_VALUE_TYPES: Final = 20
"""Types in the report values, those with most numbers: at most 2,000 rows."""

REPORT_ROWS: Final = 1_000
"""Maximum rows of the other reports; each says which they are."""

REPORT_TOP_TYPES: Final = 200
"""Types in the report top."""

REPORT_PAYLOAD_CHARACTERS: Final = 200
"""Characters of a payload that are shown."""

MIN_INTERVALS: Final = 5
"""Minimum number of intervals for a meaningful median."""

PAGE_ROWS: Final = 50
"""Rows of a table on the page; the files have all of them."""

LABEL_CHARACTERS: Final = 24
"""Length of a label in a chart; a longer one is shortened in the middle."""

NAME_CHARACTERS: Final = 120
"""Length of a type or a client name on the page; the files have all of it."""
