"""What is written to the store together.

Belongs to the event loop's thread, as everything that commits.
"""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rocksdict import WriteBatch

from eventer_bridge import limits
from eventer_bridge.backends.retention import Share
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.packed import BatchRows


def _write_batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


@dataclasses.dataclass(slots=True, eq=False)
class Commit:
    """What is written together: all of it reaches the disk, or nothing.

    Staged (``Store.stage``), written (``Store.write``) and synced (``Store.ext_sync``), the last
    two for each of its parts.

    Attributes:
        n_events: number of its events; given where they are staged in steps.
        batch: the rows, or the last part of them; takes them as a ``WriteBatch`` does.
        make_batch: makes another one, for the next part.
        rows: rows in ``event``, which the batch gets, sorted, when it is written, if there are any.
        entries: of the block of a batch that is staged in parts, so far.
        sources: keys of the rows in ``source`` of those that have one.
        n_bytes: size of all rows of events so far.
        before: the parts of a large session that are written before, one after the other.
        is_written: whether the last part was handed to the database, too: it may be on the
            disk then, even if that failed.
        latest: the greatest row of each type, from when they are put in the batch.
        tally: events and bytes of those retention rules that are counted.
        is_closed: whether no more events may join it.
    """

    n_events: int = 0
    batch: Any = dataclasses.field(default_factory=partial(WriteBatch, raw_mode=True))
    make_batch: Callable[[], Any] = _write_batch
    rows: BatchRows | None = None
    entries: list[bytes] = dataclasses.field(default_factory=list)
    sources: list[bytes] = dataclasses.field(default_factory=list)
    n_bytes: int = 0
    before: deque[Any] = dataclasses.field(default_factory=deque)
    is_written: bool = False
    is_closed: bool = False
    latest: dict[TypeId, Row] = dataclasses.field(default_factory=dict)
    sessions: set[bytes] = dataclasses.field(default_factory=set)
    tally: dict[Share, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @property
    def oldest(self) -> bytes:
        """The smallest of the session keys; behind all of them where there is none."""
        return min(self.sessions, default=keys.KEY_MAX)

    def has_room(self, n_events: int) -> bool:
        """Whether so many events may join those that gathered in it."""
        return not self.is_closed and (
            not self.n_events
            or (
                self.n_events + n_events <= limits.MAX_GROUP_EVENTS
                and self.n_bytes < limits.MAX_GROUP_BYTES
            )
        )

    def cut(self) -> None:
        """Begin another part, if this one is large enough."""
        batch = self.batch
        if (
            batch.len() >= limits.COMMIT_PART_ROWS
            or batch.size_in_bytes() >= limits.COMMIT_PART_BYTES
        ):
            self.before.append(batch)
            self.batch = self.make_batch()


@dataclasses.dataclass(slots=True, eq=False)
class Group:
    """One commit, and the future of all who wait for it, done when it is durable.

    ``is_large``: it is of a large session, which nobody joins. ``is_open``: more is to come, so
    that it cannot be written.
    """

    commit: Commit
    future: asyncio.Future[None]
    is_large: bool = False
    is_open: bool = False
