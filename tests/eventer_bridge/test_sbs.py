"""SBS integers, against those that were read off real peers and against hat-sbs."""

from typing import Final

import pytest
from hat.sbs import PySerializer, Repository
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.sbs import encode_integer, read_integer

REPOSITORY: Final = Repository("module M\n\nI = Integer")
INT64: Final = st.integers(-(1 << 63), (1 << 63) - 1)

GOLDEN: Final = {
    0: "80",
    63: "bf",
    64: "00c0",
    -1: "ff",
    -64: "c0",
    -65: "7fbf",
    128: "0180",
    8191: "3fff",
    8192: "004080",
    (1 << 63) - 1: "007f7f7f7f7f7f7f7fff",
    -(1 << 63): "7f000000000000000080",
}


@pytest.mark.parametrize(("value", "encoded"), GOLDEN.items())
def test_golden(value: int, encoded: str) -> None:
    assert encode_integer(value).hex() == encoded
    assert read_integer(bytes.fromhex(f"ffff{encoded}00"), 2) == (value, 2 + len(encoded) // 2)


@given(INT64 | st.integers(-70_000, 70_000))
def test_as_hat_sbs(value: int) -> None:
    encoded = encode_integer(value)
    assert encoded == REPOSITORY.encode("M.I", value)
    assert encoded == REPOSITORY.encode("M.I", value, serializer=PySerializer)
    assert read_integer(encoded, 0) == (value, len(encoded))


@given(st.binary(max_size=9), st.integers(0x80, 0xFF))
def test_longer_than_needed(head: bytes, last: int) -> None:
    data = bytes(byte & 0x7F for byte in head) + bytes([last])
    expected = REPOSITORY.decode("M.I", data, serializer=PySerializer)
    if -(1 << 63) <= expected < 1 << 63:
        assert read_integer(data, 0) == (expected, len(data))
    else:
        with pytest.raises(InvalidMessageError, match="more than 64 bits"):
            read_integer(data, 0)


def test_what_is_no_integer() -> None:
    for cut in ("", "00", "007f"):
        with pytest.raises(IndexError):
            read_integer(bytes.fromhex(cut), 0)
    with pytest.raises(InvalidMessageError, match="more than 10 bytes"):
        read_integer(bytes(1000), 0)
    for value in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError, match="more than 64 bits"):
            encode_integer(value)
