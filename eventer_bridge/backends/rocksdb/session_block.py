"""Blocks of sessions: those that were registered together share a row in ``session``.

They are of one server and have one timestamp, and their ids ascend; so do blocks of a server, which
never overlap. A large session is a block of its own. What a block holds was committed together, so
that all of it is seen, or nothing. Pure functions of bytes (see ``keys``), for any thread.
"""

import bisect
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId

ORIGIN_BYTES: Final = keys.TIMESTAMP_BYTES + keys.INT_BYTES
"""What the sessions of a block have in common: timestamp and server."""

LOCAL_ID_BYTES: Final = 2 * keys.INT_BYTES
"""Session and instance: the id of an event without the server."""

ENTRY_BYTES: Final = LOCAL_ID_BYTES + keys.TYPE_BYTES


class SessionBlock(NamedTuple):
    """A row of ``session``.

    Attributes:
        key: timestamp, server, and the session that was the first of them.
        entries: session, instance and type of each event; empty where the row is missing.
    """

    key: bytes
    entries: bytes

    @property
    def origin(self) -> bytes:
        """What the positions of its events begin with: timestamp and server."""
        return self.key[:ORIGIN_BYTES]

    @property
    def server_key(self) -> bytes:
        """Its key in ``server``."""
        return self.key[keys.TIMESTAMP_BYTES :]

    @property
    def first_session(self) -> bytes:
        """Its first session that is left; that of its key, where the row is missing."""
        return self.entries[: keys.INT_BYTES] or self.key[ORIGIN_BYTES:]

    @property
    def last_session(self) -> bytes:
        """Its last session that is left; that of its key, where the row is missing."""
        return self._last_entry[: keys.INT_BYTES] or self.key[ORIGIN_BYTES:]

    @property
    def last_instance(self) -> bytes:
        """Instance of its last event; empty where the row is missing."""
        return self._last_entry[keys.INT_BYTES : LOCAL_ID_BYTES]

    @property
    def n_events(self) -> int:
        """Number of its events."""
        return len(self.entries) // ENTRY_BYTES

    def spans(self, session_key: bytes) -> bool:
        """Whether a session is within it: if it is stored, it is here."""
        return self.key <= session_key <= self.origin + self.last_session

    def has_session(self, session: bytes) -> bool:
        """Whether it has events of a session (8)."""
        return self._entry(session).startswith(session)

    def find(self, local_id: bytes) -> TypeId | None:
        """Type of one of its events.

        Args:
            local_id: session and instance of the event, encoded.
        """
        entry = self._entry(local_id)
        return entry[LOCAL_ID_BYTES:] if entry.startswith(local_id) else None

    def event_keys(self) -> Iterator[bytes]:
        """Keys in ``event`` of its events, in order."""
        origin, entries = self.origin, self.entries
        for begin in range(0, len(entries) - ENTRY_BYTES + 1, ENTRY_BYTES):
            end = begin + LOCAL_ID_BYTES
            yield entries[end : begin + ENTRY_BYTES] + origin + entries[begin:end]

    def between(self, start: bytes, stop: bytes) -> range:
        """Where its entries begin of positions from ``start`` up to, but without ``stop``."""
        origin, entries = self.origin, self.entries

        def position(begin: int) -> bytes:
            return origin + entries[begin : begin + LOCAL_ID_BYTES]

        begins = range(0, len(entries), ENTRY_BYTES)
        first = bisect.bisect_left(begins, start, key=position)
        return begins[first : bisect.bisect_left(begins, stop, first, key=position)]

    def without(self, local_ids: Collection[bytes]) -> "SessionBlock":
        """The block without some of its events.

        Args:
            local_ids: session and instance of each, encoded.
        """
        entries = self.entries
        if self.n_events == len(local_ids):
            return SessionBlock(self.key, b"")
        left: list[bytes] = []
        end = 0
        for local_id in sorted(local_ids):
            begin = self._begin(local_id)
            left.append(entries[end:begin])
            end = begin + ENTRY_BYTES * entries.startswith(local_id, begin)
        left.append(entries[end:])
        return SessionBlock(self.key, b"".join(left))

    @property
    def _last_entry(self) -> bytes:
        return self.entries[max(self.n_events - 1, 0) * ENTRY_BYTES :][:ENTRY_BYTES]

    def _entry(self, start: bytes) -> bytes:
        """The first entry that is not before ``start``; empty where there is none."""
        begin = self._begin(start)
        return self.entries[begin : begin + ENTRY_BYTES]

    def _begin(self, start: bytes) -> int:
        """Where that entry begins; the end where there is none."""
        entries = self.entries
        begins = range(0, len(entries), ENTRY_BYTES)
        index = bisect.bisect_left(begins, start, key=lambda i: entries[i : i + len(start)])
        return index * ENTRY_BYTES
