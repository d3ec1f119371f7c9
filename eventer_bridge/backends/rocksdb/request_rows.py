"""Rows of request keys (``backends.request_keys``), in a column family of their own.

::

    request   "k" · owner (16) · generation (4) · key in UTF-8   → digest (16) · session key (28)
              "o" · owner (16)    → generation (4) · since (12) · number of keys (8)

``owner`` is a digest of the client's name. Each client's keys are in generations: one begins when
the one before has enough keys, or is old enough, and only the last two are kept. So no key is
deleted one by one, nothing about keys is in memory but which generation is the current one and the
greatest key, and a key is found by two look-ups at most. A greater one than any before is new, and
not looked up: that makes keys cheap that sort as they were made (UUIDv7, for example). The
number of keys is noted now and then: after a crash, a generation may get
``limits.COUNTED_REQUEST_KEYS`` more.

Belongs to the event loop's thread, except what is named ``ext_``.
"""

import hashlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rocksdict import WriteBatch

from eventer_bridge import limits
from eventer_bridge.backends.request_keys import (
    DIGEST_BYTES,
    KeptRequest,
    KeyRetention,
    RequestKey,
)
from eventer_bridge.backends.retention import Clock
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import Event, Timestamp

FAMILY: Final = "request"

KEY_PREFIX: Final = b"k"
OWNER_PREFIX: Final = b"o"

_GENERATION_BYTES: Final = 4
_OWNER_BYTES: Final = 16
_OWNER_ROW_BYTES: Final = _GENERATION_BYTES + keys.TIMESTAMP_BYTES + keys.INT_BYTES
_ROW_BYTES: Final = DIGEST_BYTES + keys.SESSION_KEY_BYTES
_GREATEST_NAME: Final = chr(sys.maxunicode) * limits.MAX_REQUEST_KEY_CHARACTERS


class _Owner:
    """A client, and its current generation.

    Attributes:
        prefix: of its keys in this generation.
        before: the same of the one before; None: there is none.
        since: when it began.
        n_keys: keys of it.
        greatest: no key of both sorts behind it.
    """

    __slots__ = ("before", "generation", "greatest", "n_keys", "name", "prefix", "since")

    def __init__(self, name: bytes, row: bytes | None, now: Timestamp) -> None:
        self.name = name
        self.greatest = ""
        if row is None:
            self.since, self.n_keys = now, 0
            self._begin(0)
            return
        self._begin(int.from_bytes(row[:_GENERATION_BYTES], "big"))
        self.since = keys.decode_timestamp(row, _GENERATION_BYTES)
        self.n_keys = keys.decode_int(row[-keys.INT_BYTES :])

    def advance(self, now: Timestamp) -> None:
        """Begin another generation."""
        self.since, self.n_keys = now, 0
        self._begin(self.generation + 1)

    @property
    def row(self) -> bytes:
        """See the module."""
        generation = self.generation.to_bytes(_GENERATION_BYTES, "big")
        return generation + keys.encode_timestamp(self.since) + keys.encode_int(self.n_keys)

    def _begin(self, generation: int) -> None:
        self.generation = generation
        self.prefix = _prefix(self.name, generation)
        self.before = _prefix(self.name, generation - 1) if generation else None


class RequestRow(NamedTuple):
    """A row of a request, for ``verify_clients``.

    Attributes:
        owner: digest of the client's name.
        generation: of its keys.
        session_key: of its events.
    """

    owner: bytes
    generation: int
    session_key: bytes


class RequestRows:
    """See the module. Made anew when the store was opened again.

    Args:
        store: the store.
        retention: how long keys are kept.
        clock: what their age is measured with.
    """

    def __init__(self, store: Store, retention: KeyRetention, clock: Clock) -> None:
        self._store = store
        self._retention = retention
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._is_any_forgotten = False  # of the owners: they may have keys that are not written yet

    def find(self, owner: str, names: Sequence[str]) -> list[KeptRequest | None]:
        """What is known of requests (of one at least); two short reads each at most.

        Raises:
            StoreDamagedError: a row cannot be decoded.
            Exception: RocksDB's, for ``database.explain``.
        """
        of_client = self._owners.get(owner) or self._owner(owner)
        prefix, before, greatest = of_client.prefix, of_client.before, of_client.greatest
        if min(names) > greatest:
            return [None] * len(names)
        get = self._store.later(FAMILY)[0].get
        found: list[KeptRequest | None] = []
        for name in names:
            if name > greatest:
                found.append(None)
                continue
            row: Any = get(prefix + name.encode())
            if row is None and before is not None:
                row = get(before + name.encode())
            found.append(None if row is None else self._kept(row))
        return found

    def _kept(self, row: bytes) -> KeptRequest | None:
        if len(row) != _ROW_BYTES:
            raise StoreDamagedError(
                f"{self._store.path}: the event store is damaged: a request key"
            )
        timestamp = keys.decode_timestamp(row, DIGEST_BYTES)
        if self._retention.is_expired(timestamp, self._clock()):
            return None
        server = DIGEST_BYTES + keys.TIMESTAMP_BYTES
        session = server + keys.INT_BYTES
        return KeptRequest(
            row[:DIGEST_BYTES],
            timestamp,
            keys.decode_int(row[server:session]),
            keys.decode_int(row[session:]),
        )

    def stage(
        self,
        batch: WriteBatch,
        requests: Sequence[RequestKey | None],
        sessions: Sequence[Sequence[Event]],
    ) -> None:
        """Keep requests of a client, in the commit of their events.

        Args:
            batch: of the commit; the last one, where it has several.
            requests: which were looked up before.
            sessions: their events, of one moment.
        """
        first = sessions[0][0]
        named = [(i, j[0].id) for i, j in zip(requests, sessions, strict=True) if i is not None]
        name = named[0][0].owner
        owner = self._owners.get(name) or self._owner(name)
        handle = self._store.later(FAMILY)[1]
        self._count(batch, owner, first.timestamp, len(named))
        put, prefix, encode_int = batch.put, owner.prefix, keys.encode_int
        place = keys.encode_timestamp(first.timestamp) + encode_int(first.id.server)
        for request, event_id in named:
            value = request.digest + place + encode_int(event_id.session)
            put(prefix + request.key.encode(), value, handle)
        owner.greatest = max(owner.greatest, *(request.key for request, _ in named))

    def _count(self, batch: WriteBatch, owner: _Owner, now: Timestamp, n_keys: int) -> None:
        """Count more keys of a client; begin another generation first, if it is time to."""
        handle = self._store.later(FAMILY)[1]
        retention, before = self._retention, owner.n_keys
        if before >= retention.max_entries or retention.is_expired(owner.since, now):
            owner.advance(now)
            before = 0
            if owner.before is not None:
                batch.delete_range(_prefix(owner.name, 0), owner.before, handle)
        owner.n_keys = before + n_keys
        step = limits.COUNTED_REQUEST_KEYS
        if not before or before // step != owner.n_keys // step:
            batch.put(OWNER_PREFIX + owner.name, owner.row, handle)

    def _owner(self, name: str) -> _Owner:
        if len(self._owners) >= limits.MAX_KEY_OWNERS:
            self._owners.clear()
            self._is_any_forgotten = True
        hashed = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_OWNER_BYTES)
        row: Any = self._store.later(FAMILY)[0].get(OWNER_PREFIX + hashed.digest())
        if row is not None and len(row) != _OWNER_ROW_BYTES:
            raise StoreDamagedError(
                f"{self._store.path}: the event store is damaged: keys of a client"
            )
        owner = self._owners[name] = _Owner(hashed.digest(), row, self._clock())
        if self._is_any_forgotten:
            owner.greatest = _GREATEST_NAME  # everything is looked up
        elif row is not None:
            prefixes = [owner.prefix] if owner.before is None else [owner.prefix, owner.before]
            owner.greatest = max(map(self._greatest, prefixes))
        return owner

    def _greatest(self, prefix: bytes) -> str:
        """The last key of a generation."""
        rows = self._store.later(FAMILY)[0].iter()
        rows.seek_for_prev(prefix + keys.KEY_MAX)
        rows.status()
        is_found = rows.valid() and rows.key().startswith(prefix)
        return rows.key()[len(prefix) :].decode() if is_found else ""


def decode_owner(key: bytes, value: bytes) -> tuple[bytes, int]:
    """Digest of a client's name, and its generation; raises ValueError."""
    owner = key[len(OWNER_PREFIX) :]
    if len(owner) != _OWNER_BYTES:
        raise ValueError("not a key of this index")
    if len(value) != _OWNER_ROW_BYTES or not keys.is_timestamp(value, _GENERATION_BYTES):
        raise ValueError("not a row of a client")
    return owner, int.from_bytes(value[:_GENERATION_BYTES], "big")


def decode_request(key: bytes, value: bytes) -> RequestRow:
    """A row of a request; raises ValueError."""
    generation = len(KEY_PREFIX) + _OWNER_BYTES
    name = generation + _GENERATION_BYTES
    if not key.startswith(KEY_PREFIX) or len(key) <= name:
        raise ValueError("not a key of this index")
    if len(value) != _ROW_BYTES or not keys.is_timestamp(value, DIGEST_BYTES):
        raise ValueError("not a row of a request")
    return RequestRow(
        key[len(KEY_PREFIX) : generation],
        int.from_bytes(key[generation:name], "big"),
        value[DIGEST_BYTES:],
    )


def ext_forget_later(store: Store, batch: WriteBatch, until: Timestamp) -> None:
    """Forget requests of a later time, whose events are deleted (``rewinding``)."""
    family, handle = store.later(FAMILY)
    rows = family.iter()
    rows.seek(KEY_PREFIX)
    while rows.valid() and rows.key().startswith(KEY_PREFIX):
        if keys.decode_timestamp(rows.value(), DIGEST_BYTES) > until:
            batch.delete(rows.key(), handle)
        rows.next()
    rows.status()  # raises if it is not the end, but a failure


def _prefix(owner: bytes, generation: int) -> bytes:
    return KEY_PREFIX + owner + generation.to_bytes(_GENERATION_BYTES, "big")
