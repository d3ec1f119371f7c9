import pytest
from hat import sbs as hat_sbs
from hypothesis import example, given
from hypothesis import strategies as st

from eventer_bridge.chatter import sbs
from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.model import INT64_MAX, INT64_MIN

HAT = hat_sbs.Repository("module M I = Integer S = String")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "80"),
        (63, "bf"),
        (64, "00c0"),
        (-1, "ff"),
        (-64, "c0"),
        (-65, "7fbf"),
        (128, "0180"),
        (INT64_MAX, "007f7f7f7f7f7f7f7fff"),
        (INT64_MIN, "7f000000000000000080"),
    ],
)
def test_integers_as_peers_send_them(value: int, encoded: str) -> None:
    assert sbs.encode_integer(value).hex() == encoded
    assert sbs.read_integer(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(INT64_MIN, INT64_MAX) | st.integers(-(1 << 15), 1 << 15))
@example(2_047)
@example(2_048)
def test_integers_are_those_of_hat_sbs(value: int) -> None:
    encoded = bytes(HAT.encode("M.I", value))
    assert sbs.encode_integer(value) == encoded
    assert sbs.read_integer(b"x" + encoded + b"x", 1) == (value, 1 + len(encoded))
    if value >= 0:
        assert sbs.encode_length(value) == encoded


@pytest.mark.parametrize("n_bits", range(64))
def test_where_integers_get_longer_is_where_those_of_hat_sbs_do(n_bits: int) -> None:
    for value in {i + j for i in (1 << n_bits, -1 << n_bits) for j in (-1, 0, 1)}:
        if INT64_MIN <= value <= INT64_MAX:
            encoded = bytes(HAT.encode("M.I", value))
            assert sbs.encode_integer(value) == encoded
            assert sbs.read_integer(encoded, 0) == (value, len(encoded))


def test_integers_one_after_the_other_and_more_of_them_than_are_remembered() -> None:
    for begin in range(0, 1 << 22, 1 << 14):
        for value in (*range(begin, begin + 260), begin << 20, (begin << 20) + 1):
            assert sbs.encode_integer(value) == bytes(HAT.encode("M.I", value))
    assert len(sbs._groups) <= 256


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_strings_are_those_of_hat_sbs(value: str) -> None:
    encoded = bytes(HAT.encode("M.S", value))
    assert sbs.encode_string(value) == encoded
    assert sbs.read_string(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize("encoded", ["0085", "00000000000000000085"])
def test_needless_zeros(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert sbs.read_integer(data, 0) == (5, len(data))
    assert HAT.decode("M.I", data) == 5


@pytest.mark.parametrize(
    ("encoded", "what"),
    [
        ("01000000000000000080", "does not fit 64 bits"),
        ("7e7f7f7f7f7f7f7f7fff", "does not fit 64 bits"),
        ("0000000000000000000085", "has more than 10 bytes"),
        ("7f7f7f7f7f7f7f7f7f7fff", "has more than 10 bytes"),
        ("0102030405060708090a8b", "has more than 10 bytes"),
    ],
)
def test_integers_that_are_too_large(encoded: str, what: str) -> None:
    """hat-sbs would give another integer instead, or look at millions of zeros."""
    with pytest.raises(InvalidMessageError) as e:
        sbs.read_integer(b"x" + bytes.fromhex(encoded), 1)
    assert str(e.value) == f"integer at byte 1 {what}"


@pytest.mark.parametrize("encoded", ["", "01", "00" * 9, "7f" * 3])
def test_an_integer_that_does_not_end(encoded: str) -> None:
    with pytest.raises(IndexError):
        sbs.read_integer(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("n_before", [3, 300])
def test_where_a_string_is_not_utf8(n_before: int) -> None:
    encoded = b"a" * n_before + b"\xff"
    data = b"??" + sbs.encode_length(len(encoded)) + encoded + b"?"
    reason = rf"^not UTF-8: invalid start byte at byte {len(data) - 2}$"
    with pytest.raises(InvalidMessageError, match=reason):
        sbs.read_string(data, 2)
