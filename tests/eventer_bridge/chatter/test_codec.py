from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.chatter import codec
from eventer_bridge.chatter.codec import Dialect, Msg, decode, encode, recognise
from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.model import INT64_MAX, INT64_MIN
from eventer_bridge.net.framing import FrameDecoder, encode_frame
from tests.eventer_bridge.chatter.samples import (
    GOLDEN,
    PING,
    hat_decode,
    hat_encode,
    msgs,
)

DIALECTS: Final = pytest.mark.parametrize("dialect", Dialect)


@pytest.mark.parametrize(("dialect", "msg", "frame"), GOLDEN)
def test_golden_frames_whole_and_byte_by_byte(dialect: Dialect, msg: Msg, frame: bytes) -> None:
    assert encode_frame(encode(msg, dialect)) == frame
    for size in (len(frame), 1):
        decoder = FrameDecoder(1000, content="a chatter message")
        received: list[bytes] = []
        for i in range(0, len(frame), size):
            decoder.feed(frame[i : i + size])
            received += iter(decoder.next_frame, None)
        [message] = received
        assert recognise(message) is dialect
        assert decode(message, dialect) == msg


@DIALECTS
@given(st.data())
def test_as_hat_sbs_in_both_directions(dialect: Dialect, data: st.DataObject) -> None:
    msg = data.draw(msgs(dialect))
    message = encode(msg, dialect)
    assert message == hat_encode(msg, dialect)
    assert decode(message, dialect) == msg == hat_decode(message, dialect)
    assert recognise(message) is dialect


@DIALECTS
@given(st.data())
def test_anything_is_refused_or_means_the_same_to_hat_sbs(
    dialect: Dialect, data: st.DataObject
) -> None:
    message = bytearray(encode(data.draw(msgs(dialect)), dialect))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(message) - 1))
        message[position : position + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
        )
        message = message or bytearray(b"\x00")
    check_as_hat_sbs(bytes(message), dialect)


@DIALECTS
@given(message=st.binary(max_size=60))
def test_any_bytes(dialect: Dialect, message: bytes) -> None:
    check_as_hat_sbs(message, dialect)


def check_as_hat_sbs(message: bytes, dialect: Dialect) -> None:
    try:
        msg = decode(message, dialect)
    except InvalidMessageError:
        assert not is_in_order(message, dialect)
        return
    assert msg == hat_decode(message, dialect)
    assert recognise(message) is dialect


def test_more_types_than_are_remembered() -> None:
    for _ in range(2):
        for i in range(200):
            msg = Msg(i, i, i % 2 == 0, i % 3 == 0, i % 5 == 0, "T." + "x" * i, b"")
            assert decode(encode(msg, Dialect.CURRENT), Dialect.CURRENT) == msg
        assert len(codec._heads) <= 64
        assert max(map(len, codec._heads)) <= 3 + 1 + 0x3F


def is_in_order(message: bytes, dialect: Dialect) -> bool:
    """Whether these are the bytes that anybody would send for what hat-sbs makes of them."""
    try:
        msg = hat_decode(message, dialect)
        is_sent = encode(msg, dialect) == message
    except (IndexError, ValueError):
        return False
    return is_sent and all(INT64_MIN <= i <= INT64_MAX for i in (msg.id, msg.first))


@DIALECTS
def test_what_is_cut_off_is_refused(dialect: Dialect) -> None:
    message = encode(Msg(1000, 2000, True, True, False, "Mod.Type", b"data"), dialect)
    for size in range(len(message)):
        with pytest.raises(InvalidMessageError):
            decode(message[:size], dialect)


@pytest.mark.parametrize(
    ("dialect", "message", "text"),
    [
        (Dialect.CURRENT, "", "id: the message ends in the middle of it"),
        (Dialect.CURRENT, "8100", "first: the message ends in the middle of it"),
        (Dialect.CURRENT, "00" * 11, "id: integer at byte 0 has more than 10 bytes"),
        (
            Dialect.CURRENT,
            "81" + "3f" + "7f" * 8 + "ff",
            "first: integer at byte 1 does not fit 64 bits",
        ),
        (Dialect.CURRENT, "81810101", "owner, token, last: the message ends in the middle of it"),
        (
            Dialect.CURRENT,
            "8181010200",
            "owner, token, last: expected bytes that are 00 or 01, got 01 02 00",
        ),
        (
            Dialect.CURRENT,
            "8181010100" + "80" + "80",
            "type: expected a name with its module, got 0",
        ),
        (
            Dialect.CURRENT,
            "8181010100" + "816180",
            "type: expected a name with its module, got 1 bytes",
        ),
        (Dialect.CURRENT, "8181010100" + "ff616180", "type: length or count -1 at byte 5"),
        (
            Dialect.CURRENT,
            "8181010100" + "84616180",
            "type: length or count 4 at byte 5, with 3 bytes",
        ),
        (
            Dialect.CURRENT,
            "8181010100" + "82ff6180",
            "type: not UTF-8: invalid start byte at byte 6",
        ),
        (Dialect.CURRENT, "8181010100" + "82616182aa", "data: of 2 bytes, but 1 bytes are left"),
        (Dialect.CURRENT, "8181010100" + "82616180aa", "data: of 0 bytes, but 1 bytes are left"),
        (Dialect.CURRENT, "8181010100" + "826161ff", "data: of -1 bytes, but 0 bytes are left"),
        (Dialect.CURRENT, "8181010100", "type: the message ends in the middle of it"),
        (Dialect.CLASSIC, "8181010100", "module and type: the message ends in the middle of it"),
        (Dialect.CURRENT, "8181010100" + "826161", "data: the message ends in the middle of it"),
        (
            Dialect.CLASSIC,
            "8181010100" + "826161",
            "module and type: expected 80 (no module) or 81",
        ),
        (Dialect.CLASSIC, "8181010100" + "808080", "module and type: expected the name of a type"),
        (
            Dialect.CLASSIC,
            "8181010100" + "81826161ff",
            "module and type: length or count -1 at byte 9",
        ),
    ],
)
def test_errors_name_the_property(dialect: Dialect, message: str, text: str) -> None:
    with pytest.raises(InvalidMessageError) as e:
        decode(bytes.fromhex(message), dialect)
    assert str(e.value).startswith(text)


def test_of_wrong_flags_three_bytes_are_told() -> None:
    with pytest.raises(InvalidMessageError, match=r"00 or 01, got 01 02 00$"):
        decode(bytes.fromhex("8181010200 82616180"), Dialect.CURRENT)


def test_a_classic_type_may_have_no_module() -> None:
    message = bytes.fromhex("8181010001 80 85") + b"Alone\x80"
    assert recognise(message) is Dialect.CLASSIC
    assert decode(message, Dialect.CLASSIC).type == "Alone"


def test_too_short_to_tell_its_dialect() -> None:
    whole = encode(PING, Dialect.CURRENT)
    for size in range(5):
        with pytest.raises(InvalidMessageError, match=r"^the message ends before its type$"):
            recognise(whole[:size])
    with pytest.raises(InvalidMessageError, match="more than 10 bytes"):
        recognise(bytes(20))


@pytest.mark.parametrize(
    ("dialect", "msg_type"),
    [
        (Dialect.CURRENT, ""),
        (Dialect.CURRENT, "a"),
        (Dialect.CLASSIC, ""),
        (Dialect.CLASSIC, "Module."),
        (Dialect.CURRENT, "\ud800\ud800"),
    ],
)
def test_types_that_cannot_be_sent(dialect: Dialect, msg_type: str) -> None:
    with pytest.raises(ValueError, match=r"expected a name|surrogates"):
        encode(Msg(1, 1, True, True, True, msg_type, b""), dialect)
