"""Rows of request keys (``backends.request_keys``), in a column family of their own.

::

    request   "k" · owner (16) · generation (4) · key in UTF-8   → digest (16) · session key (28)
              "o" · owner (16)    → generation (4) · since (12) · number of keys (8)
              "r" · owner (16) · generation (4) · last key in UTF-8
                  → key of the first session (28) · MessagePack [[key, …], digests]

``owner`` is a digest of the client's name. Each client's keys are in generations: one begins when
the one before has enough keys, or is old enough, and only the last two are kept. So no key is
deleted one by one, memory has only the current generation and the greatest keys of a client, and
four look-ups find a key. The number of keys is noted now and then: each time that the store is
opened, a generation may get ``limits.COUNTED_REQUEST_KEYS`` more.

Ascending keys (UUIDv7, for example) are cheap: a greater one than any before is new, and not looked
up. Requests that came together in this order share one row, a *run*; their sessions follow each
other. Runs do not overlap: only the first that ends at a key or behind it can have it.

Belongs to the event loop's thread, except what is named ``ext_``.
"""

import hashlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from rocksdict import WriteBatch

from eventer_bridge import limits
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.request_keys import (
    DIGEST_BYTES,
    KeptRequest,
    KeyRetention,
)
from eventer_bridge.backends.rocksdb import contents, keys
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import Timestamp
from eventer_bridge.packed import Batch

FAMILY: Final = "request"

KEY_PREFIX: Final = b"k"
OWNER_PREFIX: Final = b"o"
RUN_PREFIX: Final = b"r"

_GENERATION_BYTES: Final = 4
_OWNER_BYTES: Final = 16
_OWNER_ROW_BYTES: Final = _GENERATION_BYTES + keys.TIMESTAMP_BYTES + keys.INT_BYTES
_NAME_OFFSET: Final = len(KEY_PREFIX) + _OWNER_BYTES + _GENERATION_BYTES
_GREATEST_NAME: Final = chr(sys.maxunicode) * limits.MAX_REQUEST_KEY_CHARACTERS

_encode_run: Final = msgspec.msgpack.Encoder().encode
_decode_run: Final = msgspec.msgpack.Decoder(tuple[list[str], bytes]).decode


class _Owner:
    """A client, and its current generation (``since`` when, and with how many keys).

    ``suffixes`` are of the prefixes of its rows: in this generation, and in the one before, if any;
    ``greatest`` the greatest key of both, ``greatest_in_runs`` that is in a run. ``last`` is the
    request of ``greatest``, if it came in this generation and since the store was opened: the next
    request names it as the one before.
    """

    __slots__ = (
        "generation",
        "greatest",
        "greatest_in_runs",
        "last",
        "n_keys",
        "name",
        "since",
        "suffixes",
    )

    def __init__(self, name: bytes, row: bytes | None, now: Timestamp) -> None:
        self.name = name
        self.greatest = self.greatest_in_runs = ""
        self.last: KeptRequest | None = None
        if row is None:
            self.since, self.n_keys = now, 0
            self._begin(0)
            return
        self._begin(int.from_bytes(row[:_GENERATION_BYTES], "big"))
        self.since = keys.decode_timestamp(row, _GENERATION_BYTES)
        self.n_keys = keys.decode_int(row[-keys.INT_BYTES :])

    def advance(self, now: Timestamp) -> None:
        """Begin another generation."""
        self.since, self.n_keys, self.last = now, 0, None
        self._begin(self.generation + 1)

    @property
    def row(self) -> bytes:
        """See the module."""
        generation = self.generation.to_bytes(_GENERATION_BYTES, "big")
        return generation + keys.encode_timestamp(self.since) + keys.encode_int(self.n_keys)

    def _begin(self, generation: int) -> None:
        self.generation = generation
        kept = (generation, generation - 1) if generation else (generation,)
        self.suffixes = [_suffix(self.name, i) for i in kept]


class RequestRow(NamedTuple):
    """A row of requests of a client: its digest, a generation, and names and digests of requests.

    They are of one timestamp and server, and ``session`` is of the first; others follow it.
    """

    owner: bytes
    generation: int
    names: list[str]
    digests: bytes
    timestamp: Timestamp
    server: int
    session: int

    def find(self, name: str) -> KeptRequest | None:
        """The request with a key; None: it is not in this row."""
        if name not in self.names:
            return None
        i = self.names.index(name)
        digest = self.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
        return KeptRequest(digest, self.timestamp, self.server, self.session + i)


class RequestRows:
    """See the module. Created anew when the store was opened again."""

    def __init__(self, store: Store, retention: KeyRetention, clock: PassedTime) -> None:
        self._store = store
        self._retention = retention
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._earlier_owners: dict[str, _Owner] = {}  # without a request since
        self._is_any_forgotten = False  # of the owners: they may have keys that are not written yet

    def find(self, owner: str, names: Sequence[str]) -> list[KeptRequest | None]:
        """Find one or more requests; four short reads each at most; may raise ``StorageError``."""
        of_client = self._owners.get(owner) or self._owner(owner)
        greatest, last = of_client.greatest, of_client.last
        least = min(names)
        if least > greatest:
            return [None] * len(names)
        if least == greatest and last is not None:
            found = [last if i == greatest else None for i in names]
        else:
            with self._store.in_use(), self._store.errors():
                found = [None if i > greatest else self._read(of_client, i) for i in names]
        is_expired, clock = self._retention.is_expired, self._clock
        return [i if i and not is_expired(i.timestamp, clock) else None for i in found]

    def _read(self, owner: _Owner, name: str) -> KeptRequest | None:
        family = self._store.family(FAMILY)
        encoded = name.encode()
        for suffix in owner.suffixes:
            key = KEY_PREFIX + suffix + encoded
            row: Any = family.get(key)
            if row is not None:
                return self._decoded(key, row).find(name)
        if name <= owner.greatest_in_runs:
            for suffix in owner.suffixes:
                rows = family.iter()
                rows.seek(RUN_PREFIX + suffix + encoded)
                rows.status()
                if not rows.valid() or not rows.key().startswith(RUN_PREFIX + suffix):
                    continue
                row = rows.value()
                # most keys are new, which needs no decoding
                if encoded in row and (kept := self._decoded(rows.key(), row).find(name)):
                    return kept
        return None

    def _decoded(self, key: bytes, row: bytes) -> RequestRow:
        try:
            return decode_requests(key, row)
        except ValueError:
            raise StoreDamagedError(
                f"{self._store.path}: the event store is damaged: a request key"
            ) from None

    def stage(self, batch: WriteBatch, batches: Sequence[Batch]) -> None:
        """Keep the keys of a client's requests, which were looked up before, with their events.

        It is the last batch of the commit, where it has several.
        """
        keyed = [(i.key, i.session) for i in batches if i.key is not None]
        if not keyed:
            return
        requests, sessions = [key for key, _ in keyed], [session for _, session in keyed]
        server, timestamp = batches[0].server, Timestamp(batches[0].s, batches[0].us)
        session, n_keys = sessions[0], len(requests)
        name = requests[0].owner
        owner = self._owners.get(name) or self._owner(name)
        handle = self._store.handle(FAMILY)
        self._count(batch, owner, n_keys)
        names = [request.key for request in requests]
        if (
            n_keys >= limits.MIN_REQUEST_RUN
            and names[0] > owner.greatest
            and names == sorted(names)
            and sessions[-1] == session + n_keys - 1
        ):
            last = n_keys - 1
            digests = b"".join([request.digest for request in requests])
            value = keys.session_key(timestamp, server, session)
            key = RUN_PREFIX + owner.suffixes[0] + names[last].encode()
            batch.put(key, value + _encode_run((names, digests)), handle)
            owner.greatest_in_runs = names[last]
        else:
            last = names.index(max(names))
            prefix = KEY_PREFIX + owner.suffixes[0]
            place = keys.encode_timestamp(timestamp) + keys.encode_int(server)
            for request, session in zip(requests, sessions, strict=True):
                value = request.digest + place + keys.encode_int(session)
                batch.put(prefix + request.key.encode(), value, handle)
        if names[last] >= owner.greatest:
            owner.greatest = names[last]
            owner.last = KeptRequest(requests[last].digest, timestamp, server, sessions[last])

    def _count(self, batch: WriteBatch, owner: _Owner, n_keys: int) -> None:
        """Count more keys of a client; begin another generation first, if it is time to."""
        handle = self._store.handle(FAMILY)
        retention, before = self._retention, owner.n_keys
        if before >= retention.max_entries or retention.is_expired(owner.since, self._clock):
            owner.advance(self._clock.now())
            before = 0
            first, before_this = _suffix(owner.name, 0), owner.suffixes[-1]
            for prefix in (KEY_PREFIX, RUN_PREFIX):
                batch.delete_range(prefix + first, prefix + before_this, handle)
        owner.n_keys = before + n_keys
        step = limits.COUNTED_REQUEST_KEYS
        if not before or before // step != owner.n_keys // step:
            batch.put(OWNER_PREFIX + owner.name, owner.row, handle)

    def _owner(self, name: str) -> _Owner:
        """A client that had no request lately."""
        owner = self._earlier_owners.pop(name, None)
        if len(self._owners) >= limits.MAX_KEY_OWNERS:
            # never that of a commit under way, unless so many others came since
            self._is_any_forgotten |= bool(self._earlier_owners)
            self._earlier_owners, self._owners = self._owners, {}
        if owner is None:
            encoded = name.encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(encoded, digest_size=_OWNER_BYTES).digest()
            with self._store.in_use(), self._store.errors():
                owner = self._read_owner(digest)
        self._owners[name] = owner
        return owner

    def _read_owner(self, digest: bytes) -> _Owner:
        row: Any = self._store.family(FAMILY).get(OWNER_PREFIX + digest)
        if row is not None and len(row) != _OWNER_ROW_BYTES:
            raise StoreDamagedError(
                f"{self._store.path}: the event store is damaged: keys of a client"
            )
        owner = _Owner(digest, row, self._clock.now())
        if self._is_any_forgotten:
            owner.greatest = owner.greatest_in_runs = _GREATEST_NAME  # everything is looked up
        elif row is not None:
            owner.greatest_in_runs = max(self._greatest(RUN_PREFIX + i) for i in owner.suffixes)
            others = (self._greatest(KEY_PREFIX + i) for i in owner.suffixes)
            owner.greatest = max(owner.greatest_in_runs, *others)
        return owner

    def _greatest(self, prefix: bytes) -> str:
        """The last key of a generation."""
        rows = self._store.family(FAMILY).iter()
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


def decode_requests(key: bytes, value: bytes) -> RequestRow:
    """A row of requests; raises ValueError."""
    if len(key) <= _NAME_OFFSET or key[:1] not in {KEY_PREFIX, RUN_PREFIX}:
        raise ValueError("not a key of this index")
    last = key[_NAME_OFFSET:].decode()
    if key.startswith(RUN_PREFIX):
        place, run = value[: keys.SESSION_KEY_BYTES], value[keys.SESSION_KEY_BYTES :]
        names, digests = _decode_run(run)
    else:
        digests, place = value[:DIGEST_BYTES], value[DIGEST_BYTES:]
        names = [last]
    if (
        len(place) != keys.SESSION_KEY_BYTES
        or not keys.is_timestamp(place)
        or names[-1:] != [last]
        or len(names) * DIGEST_BYTES != len(digests)
    ):
        raise ValueError("not a row of requests")
    server, session = map(
        keys.decode_int, (place[keys.TIMESTAMP_BYTES : -keys.INT_BYTES], place[-keys.INT_BYTES :])
    )
    if session + len(names) > keys.SIGN_BIT:
        raise ValueError("not a row of requests")
    return RequestRow(
        key[len(KEY_PREFIX) : _NAME_OFFSET - _GENERATION_BYTES],
        int.from_bytes(key[_NAME_OFFSET - _GENERATION_BYTES : _NAME_OFFSET], "big"),
        names,
        digests,
        keys.decode_timestamp(place),
        server,
        session,
    )


def ext_forget_later(store: Store, batch: WriteBatch, until: Timestamp) -> None:
    """Forget requests of a later time, whose events are deleted (``restoring``)."""
    family, handle = store.family(FAMILY), store.handle(FAMILY)
    for prefix, offset in ((KEY_PREFIX, DIGEST_BYTES), (RUN_PREFIX, 0)):
        for key, value in contents.rows(family, prefix):
            if keys.decode_timestamp(value, offset) > until:
                batch.delete(key, handle)


def _suffix(owner: bytes, generation: int) -> bytes:
    return owner + generation.to_bytes(_GENERATION_BYTES, "big")
