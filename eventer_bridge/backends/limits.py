"""Bounds of reading and writing a store: how long a step takes before others get their turn.

Those that users notice are in ``eventer_bridge.limits``.
"""

from typing import Final

STEP_S: Final = 50e-6
"""How long rows are read, in the order of the store, before a pause."""

STEP_ROWS: Final = 16
"""Rows that are filtered, or looked up, before a pause: some 50 us."""

STEP_BYTES: Final = 64 << 10
"""Values of so many bytes end a step before, as a large one takes long to read."""

AHEAD_ROWS: Final = 1_024
"""Rows that are read ahead in the order of the store; sorting so many keys takes some 0.2 ms."""

AHEAD_BYTES: Final = 256 << 10
"""Values of so many bytes end that before."""

RUN_ROWS: Final = 4
"""Rows of a type, from which on one seek and as many steps cost less than a look-up each."""

MAX_PASSED_ROWS: Final = 16
"""Deleted rows that a look-up of a block passes over. Where blocks are deleted one by one, there
may be a hundred thousand, for as long as RocksDB keeps them: 0.1 s, in which no other thread runs.
Between a session and the beginning of its block there are none, as blocks do not overlap."""

MAX_BLOCK_KEYS: Final = 256
"""Keys that one range of a merge reads ahead, so that all share one iterator."""

PAUSE_EVENTS: Final = 64
"""Entries of a block that are walked before it pauses."""

FEW_MERGED_TYPES: Final = 16
"""Up to so many types are always merged."""

MERGED_TYPES: Final = 4096
"""Types that are merged at a time, at about 1 kB for each range."""

FEW_TYPES: Final = 64
"""Types that are looked up on the event loop; more would hold up others."""

STEP_SEEKS: Final = 16
"""Types that are sought before it pauses: some 0.1 ms."""

NEAR_EVENTS: Final = 4
"""Neighbours that are looked at before it bisects."""

MAX_PASSED_EVENTS: Final = 16
"""Events of a type that are not in order, more than are in order behind them, before it ends."""

MAX_ORDERED_BYTES: Final = 4096
"""Events with larger values are not in order: it takes long to look at their source timestamps."""

NOTED_ROWS: Final = 256
"""Rows that are noted in one step: 0.2 ms."""

FORGOTTEN_PART: Final = 32
"""When there are too many types, one in so many is forgotten at a time."""

CHECKPOINT_ROWS: Final = 4_000
"""Rows that a checkpoint may have to write to files: some 5 ms."""

MAX_FLUSHES: Final = 4
"""Before a checkpoint; more would not help where writing is faster."""

COUNTED_ROWS: Final = 1_000
"""Rows that are counted between two rests: about 0.5 ms."""

BUSY_S: Final = 0.001
"""After yielding, a thread gets the GIL back at once if the event loop is idle, and after some
milliseconds if it is busy."""

UNDONE_ROWS: Final = 4_096
"""Rows that are deleted in one write."""

VERIFIED_ROWS: Final = 128
"""Rows that are looked up together, which is faster than one by one. Rows of the largest sessions
have 1.3 MB each."""

VERIFIED_EVENTS: Final = 8
"""Events that are looked up together, which is only in a damaged store; they can be large."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a file that are read at a time."""

SENT_ROWS: Final = 1_000
"""Rows of hat-event's database in a message of the process that reads it, at most."""

SENT_BYTES: Final = 1 << 20
"""Size of its rows with which a message ends."""
