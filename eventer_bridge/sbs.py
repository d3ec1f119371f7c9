"""Integers of SBS, the encoding below chatter (003), without I/O.

Seven bits a byte, most significant first; 0x80 is set on the last byte, and 0x40 of the
first is the sign. They are of 64 bits here, as in the other implementations.
"""

from typing import Final

from eventer_bridge.errors import InvalidMessageError

_MAX_BYTES: Final = 10
_MIN: Final = -(1 << 63)
_MAX: Final = (1 << 63) - 1


def encode_integer(value: int) -> bytes:
    """Shortest encoding of an integer of 64 bits.

    Raises:
        OverflowError: it has more than 64 bits.
    """
    if 0 <= value < len(_ENCODED):
        return _ENCODED[value]
    return _encode(value)


def read_integer(data: bytes, position: int) -> tuple[int, int]:
    """Integer at a position.

    Returns:
        The integer, and the position behind it.

    Raises:
        IndexError: the data ends in the middle of it.
        InvalidMessageError: it has more than 64 bits.
    """
    byte = data[position]
    position += 1
    value = (byte & 0x3F) - (byte & 0x40)
    if byte & 0x80:
        return value, position
    end = position + _MAX_BYTES - 1
    while position < end:
        byte = data[position]
        position += 1
        if byte & 0x80:
            value = value << 7 | byte & 0x7F
            if not _MIN <= value <= _MAX:
                raise InvalidMessageError(f"an integer of more than 64 bits: {value}")
            return value, position
        value = value << 7 | byte
    raise InvalidMessageError(f"an integer of more than {_MAX_BYTES} bytes")


def _encode(value: int) -> bytes:
    if not _MIN <= value <= _MAX:
        raise OverflowError(f"an integer of more than 64 bits: {value}")
    reverse = [value & 0x7F | 0x80]
    while not -64 <= value < 64:
        value >>= 7
        reverse.append(value & 0x7F)
    reverse.reverse()
    return bytes(reverse)


# identifiers and lengths of most messages
_ENCODED: Final = [_encode(value) for value in range(1 << 13)]
