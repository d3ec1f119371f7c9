"""Bounds and periods of a group and its log, with the unit in the name."""

from typing import Final

BEATS: Final = 5
"""Beats of the active member within the time after which another one takes over."""

POLL_S: Final = 0.05
"""How often a follower asks for records; it asks again at once while there are any."""

QUIET_S: Final = 0.02
"""After a record without another one, followers are told that it is acknowledged."""

RETRY_S: Final = 0.2
"""How soon a log that failed is asked again."""

TELL_PERIOD_S: Final = 1.0
"""How often a member syncs its store, and tells the log up to where."""

TRIM_PERIOD_S: Final = 10.0

ALONE_KEEP_S: Final = 600.0
"""How long the log is kept where there is one member: a second one that comes later can begin with
an empty store."""

READ_BYTES: Final = 4 << 20
"""Records are read in pieces of so many bytes, or one."""

STEP_DOWN_S: Final = 2.0
"""How long a member that steps down lets others claim first, besides the time of a take-over."""

MAX_PASSWORD_BYTES: Final = 64 << 10
"""Of a password's file; PostgreSQL takes no longer one."""

TRIM_RECORDS: Final = 200
"""Records that one statement removes, between which others get their turn: 20 ms for 20 kB each."""

SLOW_COMMIT_S: Final = 0.1
"""A commit that took longer may have been replicated, or not be waited for any more."""

READ_RECORDS: Final = 1_000
"""Records whose sizes are looked at for one answer: 2 ms, even if only the first one is read."""

OTHER_HOSTS_S: Final = 0.25
"""How long hosts that have not answered yet are waited for when one did. One that was the primary
may believe that it still is."""
