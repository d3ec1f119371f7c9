"""Request keys: how a registration is stored once, however often it is sent.

A client gives a registration a key of its own. The backend keeps it in the same commit as the
events, with a digest of their content and where they are. The same key again is answered from that
and from the request itself: same content, so same events, of which only id and timestamp are to be
known.

Pure; any thread.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import xxhash

from eventer_bridge import limits
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.model import RegisterEvent, Timestamp
from eventer_bridge.packed import Batch, content
from eventer_bridge.slices import Steps, event_parts

DIGEST_BYTES: Final = 16

_encode: Final = msgspec.json.Encoder().encode
_digest: Final = xxhash.xxh3_128_digest


class RequestKey(msgspec.Struct, frozen=True, gc=False):
    """What a client (``owner``) calls a registration, and a digest of its content.

    The request ``after``, if any, must be stored first.
    """

    owner: str
    key: str
    digest: bytes
    after: str | None = None


class KeptRequest(NamedTuple):
    """A registration that is stored: a digest of its content, and where its events are."""

    digest: bytes
    timestamp: Timestamp
    server: int
    session: int


class KeyRetention(msgspec.Struct, frozen=True):
    """How long request keys are kept.

    Of a client, at least the newest ``max_entries`` that are not older than ``duration_s`` are, at
    most twice as many.
    """

    duration_s: float = msgspec.field(default=limits.REQUEST_KEYS_S, name="duration")
    max_entries: int = limits.REQUEST_KEYS

    def is_expired(self, timestamp: Timestamp, clock: PassedTime) -> bool:
        """Whether a request of that time is no longer known."""
        moment = clock.before(self.duration_s)
        return moment is not None and timestamp < moment


def digests(batches: Iterable[Batch]) -> Iterable[bytes]:
    """Digest of the content of each batch, the same in all versions.

    JSON payloads are digested as they were written. Their values would take some 1 to 8 us for each
    event, of 0.4 to 0.6; and retention may have deleted those that a repeated one could be
    compared with.

    Who can choose both contents can make two of one digest: only the client itself could, for whom
    the second one would not be stored.
    """
    return [_digest(content(i) if i.is_encodable else _encode(i[:])) for i in batches]


def digest_in_steps(events: Sequence[RegisterEvent]) -> Steps[bytes]:
    """As :func:`digests`, of a large request."""
    hashed = xxhash.xxh3_128()
    separator = b"["
    for some in event_parts(events):
        hashed.update(separator + _encode(some)[1:-1])
        separator = b","
        yield
    hashed.update(b"]")
    return hashed.digest()
