"""Records: commits as bytes, which the members of a group write to their stores (``group``).

A commit of a member gathers its rows in a :class:`RowBatch`, for each of its parts. They are sent
as a record, and written as the record says, by all members alike: so their stores are equal, row
for row. A part of a record is::

    format (1) · checksum (8) · size of what follows, uncompressed (4)
    · compressed MessagePack of [[operation, key, value], …]

An operation is three times the number of the column family (``default``, and
``contents.FAMILIES``), plus 0: put, 1: delete, 2: delete the range from key up to, but without
value. The checksum is of what follows it, and of the part's :class:`PartPlace`: with it, of the
record before. So a part in another place is noticed, and a record that follows another one than a
store has.

Pure; any thread. Compressing releases the interpreter's lock.
"""

import zlib
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec
import xxhash
from rocksdict import ColumnFamily, WriteBatch

from eventer_bridge.backends.rocksdb.contents import FAMILIES

Operation: TypeAlias = tuple[int, bytes, bytes]
"""See the module."""

PUT, DELETE, DELETE_RANGE = range(3)
_N_KINDS: Final = 3

ALL_FAMILIES: Final = ("default", *FAMILIES)

PUT_IN: Final = {name: _N_KINDS * i + PUT for i, name in enumerate(ALL_FAMILIES)}
"""The operation that puts a row in a column family."""

_CODES: Final = {*range(_N_KINDS * len(ALL_FAMILIES))}

_FORMAT: Final = b"\x01"
_HEAD: Final = Struct("<1sQI")
_PLACE: Final = Struct("<QQQIII")
_LEVEL: Final = 1  # 2 to 3 times less for 10 us per kB; more would not be less by much

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Operation]).decode


class PartPlace(NamedTuple):
    """Where a part of a record belongs; ``before`` is the digest of the record before."""

    before: int
    position: int
    epoch: int
    part: int
    n_parts: int


class RowBatch:
    """As a ``WriteBatch``, with rows that can be read. ``families`` are handles, in order."""

    def __init__(self, families: Sequence[ColumnFamily]) -> None:
        self._codes = {id(family): _N_KINDS * i for i, family in enumerate(families)}
        self._default = 0
        self.operations: list[Operation] = []
        self._n_bytes = 0

    def put(self, key: bytes, value: bytes, family: ColumnFamily | None = None) -> None:
        """See ``WriteBatch``."""
        code = self._default if family is None else self._codes[id(family)]  # often called
        self.operations.append((code, key, value))
        self._n_bytes += len(key) + len(value)

    def delete(self, key: bytes, family: ColumnFamily | None = None) -> None:
        """See ``WriteBatch``."""
        self.operations.append((self._code(family) + DELETE, key, b""))
        self._n_bytes += len(key)

    def delete_range(self, begin: bytes, end: bytes, family: ColumnFamily | None = None) -> None:
        """See ``WriteBatch``."""
        self.operations.append((self._code(family) + DELETE_RANGE, begin, end))
        self._n_bytes += len(begin) + len(end)

    def set_default_column_family(self, family: ColumnFamily | None) -> None:
        """See ``WriteBatch``."""
        self._default = 0 if family is None else self._codes[id(family)]

    def len(self) -> int:
        """See ``WriteBatch``."""
        return len(self.operations)

    def size_in_bytes(self) -> int:
        """Roughly as of a ``WriteBatch``."""
        return self._n_bytes

    def _code(self, family: ColumnFamily | None) -> int:
        return self._default if family is None else self._codes[id(family)]


def encode_part(operations: Sequence[Operation], place: PartPlace) -> bytes:
    """A part of a record."""
    plain = _encode(operations)
    data = zlib.compress(plain, _LEVEL)
    return _HEAD.pack(_FORMAT, _checksum(data, place, len(plain)), len(plain)) + data


def plain_bytes(part: bytes) -> int:
    """How large a part is when it is decompressed."""
    return 0 if len(part) < _HEAD.size else int(_HEAD.unpack_from(part)[2])


def digest_of(parts: Sequence[bytes]) -> int:
    """The digest of a record; 0 is that before the first one."""
    return xxhash.xxh3_64_intdigest(b"".join([part[: _HEAD.size] for part in parts]))


def decode_part(part: bytes, place: PartPlace) -> list[Operation]:
    """The opposite of :func:`encode_part`; ``ValueError``: it is damaged, the text says how."""
    if len(part) < _HEAD.size or part[:1] != _FORMAT:
        raise ValueError("it has another format")
    _, checksum, n_bytes = _HEAD.unpack_from(part)
    data = memoryview(part)[_HEAD.size :]
    if checksum != _checksum(data, place, n_bytes):
        raise ValueError("its checksum is another one, or that of the record before")
    try:
        operations = _decode(zlib.decompressobj().decompress(data, n_bytes))
    except (zlib.error, msgspec.DecodeError) as e:
        raise ValueError(str(e)) from None
    if not {code for code, _, _ in operations} <= _CODES:
        raise ValueError("it names a family that there is not")
    return operations


def write_batch(operations: Sequence[Operation], families: Sequence[ColumnFamily]) -> WriteBatch:
    """What is written to the store."""
    batch = WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    for code, its in groupby(operations, itemgetter(0)):
        number, kind = divmod(code, _N_KINDS)
        batch.set_default_column_family(families[number])  # spares passing it with each row
        if kind == PUT:
            for _, key, value in its:
                put(key, value)
        elif kind == DELETE:
            for _, key, _ in its:
                delete(key)
        else:
            for _, key, value in its:
                batch.delete_range(key, value, families[number])
    batch.set_default_column_family(None)
    return batch


def _checksum(data: bytes | memoryview, place: PartPlace, n_bytes: int) -> int:
    digest = xxhash.xxh3_64(_PLACE.pack(*place, n_bytes))
    digest.update(data)
    return digest.intdigest()
