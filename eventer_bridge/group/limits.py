"""Bounds of a group's log, with the unit in the name."""

from typing import Final

MAX_PASSWORD_BYTES: Final = 64 << 10
"""Of a password's file; PostgreSQL takes no longer one."""

TRIM_RECORDS: Final = 1_000
"""Records that one statement removes: with 100 kB each it takes about 50 ms, between which others
get their turn."""

READ_RECORDS: Final = 10_000
"""Records whose sizes are looked at for one answer, however few bytes they have."""

OTHER_HOSTS_S: Final = 0.25
"""How long hosts that have not answered yet are waited for when one did. One that was the primary
may believe that it still is."""
