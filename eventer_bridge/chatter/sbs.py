"""SBS, the binary encoding of chatter and Eventer messages: its built-in types.

An Integer is groups of seven bits, the most significant first; bit 0x80 marks the last
byte, bit 0x40 of the first is the sign. String and Bytes are a length in bytes followed by
these bytes; an Array is a count followed by the elements; a Choice is an index followed by the
chosen value; an Optional is a Choice of nothing and a value; a Record is its entries.

Read functions take the whole message and a position, and return the value and the position
after it. They raise ``InvalidMessageError`` for malformed data, and ``IndexError`` where the
message ends too early.

The reference is the package hat-sbs, but its decoder is for trusted data: it truncates
integers to 64 bits, reserves memory for any count, and ignores trailing bytes. Both read valid
data alike, even integers with redundant zeros (a differential test shows it).

Sans I/O; any thread.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.model import INT64_MAX, INT64_MIN
from eventer_bridge.net import limits as net_limits

T = TypeVar("T")

Writer: TypeAlias = Callable[[T], bytes]
"""Encodes a value of one type."""

Reader: TypeAlias = Callable[[bytes, int], tuple[T, int]]
"""Reads a value of one type; see the module."""

FIRST: Final = 0x80
"""The Integer 0: the first Choice, or an empty Optional."""

SECOND: Final = 0x81
"""The Integer 1: the second Choice, or an Optional followed by its value."""

_MAX_INTEGER_BYTES: Final = 10
"""Enough for 64 bits. Only redundant leading zeros (or signs) could make more, even megabytes."""

FALSE: Final = b"\x00"
TRUE: Final = b"\x01"


# --- writing ------------------------------------------------------------------------------


def encode_integer(value: int) -> bytes:
    """An Integer of any size."""
    if value < 0:
        return _encode_any_integer(value)
    if value < len(SMALL_INTEGERS):
        return SMALL_INTEGERS[value]
    # ids come one after the other: all groups but the last one are mostly those of the one before
    groups = _groups.get(value >> 7) or _encode_groups(value >> 7)
    return groups + _LAST_GROUPS[value & 0x7F]


def _encode_groups(value: int) -> bytes:
    """An Integer to which one more group is to be added."""
    *groups, last = _encode_any_integer(value)
    encoded = bytes((*groups, last & 0x7F))
    if len(_groups) >= net_limits.MAX_CACHED_INTEGERS:
        _groups.clear()
    _groups[value] = encoded
    return encoded


def _encode_any_integer(value: int) -> bytes:
    groups = [value & 0x7F | 0x80]
    while not -0x40 <= value < 0x40:
        value >>= 7
        groups.append(value & 0x7F)
    groups.reverse()
    return bytes(groups)


SMALL_INTEGERS: Final = tuple(_encode_any_integer(i) for i in range(2_048))
"""Encoded Integers from 0 on: most counts, lengths and instance ids."""

_LAST_GROUPS: Final = tuple(bytes((i | 0x80,)) for i in range(0x80))

_groups: Final[dict[int, bytes]] = {}
"""Integers by :func:`_encode_groups`."""


def encode_length(value: int) -> bytes:
    """As :func:`encode_integer`, of numbers that are never negative and seldom large."""
    return SMALL_INTEGERS[value] if value < len(SMALL_INTEGERS) else encode_integer(value)


def encode_string(text: str) -> bytes:
    """A String; ``UnicodeEncodeError``: it has no UTF-8 form (a lone surrogate)."""
    encoded = text.encode()
    return encode_length(len(encoded)) + encoded


def encode_int64(value: int) -> bytes:
    """An Integer; ``OverflowError``: it does not fit signed 64 bits, the most that peers read."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError("int too big to convert")
    return encode_integer(value)


def encode_boolean(value: bool) -> bytes:
    """A Boolean."""
    return TRUE if value else FALSE


def encode_one_of(values: Sequence[T], value: T) -> bytes:
    """A Choice among values without data."""
    return encode_integer(values.index(value))


def encode_optional(encode: Writer[T], value: T | None) -> bytes:
    """An Optional of a type."""
    return bytes((FIRST,)) if value is None else bytes((SECOND,)) + encode(value)


def encode_array(encode: Writer[T], values: Sequence[T]) -> bytes:
    """An Array of a type."""
    return b"".join((encode_length(len(values)), *map(encode, values)))


# --- reading ------------------------------------------------------------------------------


def read_integer(data: bytes, pos: int) -> tuple[int, int]:
    """An Integer, which must fit signed 64 bits and have no more bytes than these need."""
    begin = pos
    byte = data[pos]
    value = (byte & 0x3F) - (byte & 0x40)
    if byte >= 0x80:  # most of them
        return value, pos + 1
    # inlined for speed: of two and three bytes
    second = data[pos + 1]
    if second >= 0x80:
        return value << 7 | second & 0x7F, pos + 2
    third = data[pos + 2]
    if third >= 0x80:
        return value << 14 | second << 7 | third & 0x7F, pos + 3
    while byte < 0x80:
        pos += 1
        if pos - begin == _MAX_INTEGER_BYTES:
            raise InvalidMessageError(
                f"integer at byte {begin} has more than {_MAX_INTEGER_BYTES} bytes"
            )
        byte = data[pos]
        value = value << 7 | byte & 0x7F
    if not INT64_MIN <= value <= INT64_MAX:
        raise InvalidMessageError(f"integer at byte {begin} does not fit 64 bits")
    return value, pos + 1


def read_boolean(data: bytes, pos: int) -> tuple[bool, int]:
    """A Boolean: any byte but zero is true."""
    return data[pos] != 0, pos + 1


def read_bytes(data: bytes, pos: int) -> tuple[bytes, int]:
    """Bytes, copied."""
    length = data[pos] - 0x80
    if 0 <= length < 0x40:  # inlined for speed: a length of one byte
        begin = pos + 1
        end = begin + length
        if end <= len(data):
            return data[begin:end], end
    length, begin = read_count(data, pos, 1)
    end = begin + length
    return data[begin:end], end


def read_string(data: bytes, pos: int) -> tuple[str, int]:
    """A String, which must be UTF-8."""
    if not 0x80 <= data[pos] < 0xC0:  # long: spares a copy
        size, begin = read_count(data, pos, 1)
        end = begin + size
        return decode_utf8(memoryview(data)[begin:end], end), end
    encoded, end = read_bytes(data, pos)
    if encoded.isascii():
        return encoded.decode("ascii"), end
    return decode_utf8(encoded, end), end


def decode_utf8(encoded: bytes | memoryview, end: int) -> str:
    """Text of a String that ends at a position of a message, or ``InvalidMessageError``."""
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError as e:
        at = end - len(encoded) + e.start
        raise InvalidMessageError(f"not UTF-8: {e.reason} at byte {at}") from None


def read_choice(data: bytes, pos: int, count: int) -> tuple[int, int]:
    """Index of a Choice among ``count``."""
    begin = pos
    index, pos = read_integer(data, pos)
    if not 0 <= index < count:
        raise InvalidMessageError(f"choice {index} at byte {begin}, expected 0 to {count - 1}")
    return index, pos


def read_one_of(values: Sequence[T], data: bytes, pos: int) -> tuple[T, int]:
    """A Choice among names without data, as the value it stands for."""
    index, pos = read_choice(data, pos, len(values))
    return values[index], pos


def read_optional(read: Reader[T], data: bytes, pos: int) -> tuple[T | None, int]:
    """An Optional."""
    has_value, pos = read_choice(data, pos, 2)
    return read(data, pos) if has_value else (None, pos)


def read_count(data: bytes, pos: int, min_element_bytes: int) -> tuple[int, int]:
    """Length, or count of an Array, before its elements; an impossible one is refused at once."""
    begin = pos
    size, pos = read_integer(data, pos)
    if not 0 <= size * min_element_bytes <= len(data) - pos:
        raise InvalidMessageError(
            f"length or count {size} at byte {begin}, with {len(data) - pos} bytes after it"
        )
    return size, pos
