import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.errors import FrameError, RemoteProtocolError
from eventer_bridge.net.framing import FrameDecoder, encode_frame, encode_frames
from eventer_bridge.net.limits import BATCH_BYTES


def make_decoder(max_frame_bytes: int) -> FrameDecoder:
    return FrameDecoder(max_frame_bytes, content="a JSON message")


def take_all(decoder: FrameDecoder) -> list[bytes]:
    return list(iter(decoder.next_frame, None))


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (1, "0101"),
        (255, "01ff"),
        (256, "020100"),
        (65_535, "02ffff"),
        (65_536, "03010000"),
        (0xFF_FFFF, "03ffffff"),
    ],
)
def test_header_is_of_the_shortest_form(size: int, header: str) -> None:
    assert encode_frame(b"x" * size) == bytes.fromhex(header) + b"x" * size
    assert encode_frames([b"x" * size, b"y"]) == encode_frame(b"x" * size) + b"\1\1y"


@pytest.mark.parametrize("m", [*range(1, 11), 255])
def test_length_bytes_from_1_to_255(m: int) -> None:
    decoder = make_decoder(10)
    stream = bytes([m]) + (3).to_bytes(m, "big") + b"abc" + b"\x01\x01d"
    decoder.feed(stream)
    assert take_all(decoder) == [b"abc", b"d"]
    received = []
    for byte in stream:
        decoder.feed(bytes([byte]))
        received += take_all(decoder)
    assert received == [b"abc", b"d"]


def test_a_header_of_255_bytes_may_announce_no_more_than_others() -> None:
    decoder = make_decoder(10)
    decoder.feed(b"\xff" * 256)
    with pytest.raises(
        FrameError, match=r"^frame of 2\*\*64 or more bytes announced, at most 10 are allowed$"
    ):
        decoder.next_frame()


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"\xff\x00\x01"])
def test_a_stranger_is_refused_before_the_header_is_complete(begin: bytes) -> None:
    decoder = make_decoder(10)
    decoder.feed(begin)
    for _ in range(2):
        with pytest.raises(FrameError, match=r"^frame of 2\*\*64 or more bytes announced"):
            decoder.next_frame()


def test_how_a_size_beyond_64_bits_is_told() -> None:
    for size, told in (((1 << 64) - 1, f"{(1 << 64) - 1}"), (1 << 64, r"2\*\*64 or more")):
        decoder = make_decoder(10)
        decoder.feed(b"\x09" + size.to_bytes(9, "big"))
        with pytest.raises(FrameError, match=f"^frame of {told} bytes announced"):
            decoder.next_frame()


def test_a_header_without_length() -> None:
    decoder = make_decoder(10)
    decoder.feed(b"\x00")
    with pytest.raises(FrameError, match="first byte is 0, expected 1 to 255"):
        decoder.next_frame()


@st.composite
def headed(draw: st.DrawFn, message: bytes) -> bytes:
    """A frame, maybe with a header that is longer than needed."""
    shortest = encode_frame(message)[0]
    size = draw(st.sampled_from([shortest, shortest, 2, 3, 8, 9, 255]))
    return bytes([size]) + len(message).to_bytes(size, "big") + message


@given(st.lists(st.binary(min_size=1, max_size=700), max_size=20), st.data())
def test_any_cut_gives_the_same_frames(messages: list[bytes], data: st.DataObject) -> None:
    frames = [data.draw(headed(i)) for i in messages]
    stream = b"".join(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    decoder = make_decoder(700)
    received: list[bytes] = []
    taken = 0
    for begin, end in pairwise([0, *sorted(cuts), len(stream)]):
        decoder.feed(stream[begin:end])
        received += take_all(decoder)
        taken = sum(map(len, frames[: len(received)]))
        assert decoder.buffered_bytes == end - taken
    assert received == messages
    assert taken == len(stream)


def test_one_byte_at_a_time() -> None:
    messages = [b"a", b"b" * 300, b"c" * 70_000]
    decoder = make_decoder(70_000)
    received = []
    for byte in b"".join(encode_frame(i) for i in messages):
        decoder.feed(bytes([byte]))
        received += take_all(decoder)
    assert received == messages


@pytest.mark.parametrize("m", [1, 8])
def test_empty_frame(m: int) -> None:
    decoder = make_decoder(100)
    decoder.feed(bytes([m]) + bytes(m))
    with pytest.raises(FrameError, match="empty frame, expected a JSON message"):
        decoder.next_frame()


@pytest.mark.parametrize("size", [101, 1 << 30, (1 << 64) - 1])
def test_too_large_a_frame_is_refused_by_its_header(size: int) -> None:
    decoder = make_decoder(100)
    decoder.feed(b"\x08" + size.to_bytes(8, "big"))
    with pytest.raises(FrameError, match=f"frame of {size} bytes announced, at most 100 are"):
        decoder.next_frame()


@pytest.mark.parametrize("size", [4, 300])
def test_too_large_a_frame_is_refused_though_it_came_whole(size: int) -> None:
    decoder = make_decoder(size - 1)
    decoder.feed(encode_frame(b"x" * size))
    with pytest.raises(FrameError, match=f"frame of {size} bytes announced, at most {size - 1} a"):
        decoder.next_frame()


def test_frame_of_the_limit_is_accepted_and_the_limit_can_be_raised() -> None:
    decoder = make_decoder(3)
    decoder.feed(encode_frame(b"abc"))
    assert decoder.next_frame() == b"abc"
    decoder.max_frame_bytes = 4
    decoder.feed(encode_frame(b"abcd"))
    assert decoder.next_frame() == b"abcd"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\x01\x04", "frame of 4 bytes announced, at most 3 are allowed"),
        (b"\x02\x00\x04", "frame of 4 bytes announced, at most 3 are allowed"),
        (b"\x02\x00\x00", "empty frame, expected a JSON message"),
        (b"\x00", "frame header: first byte is 0, expected 1 to 255"),
    ],
)
def test_what_is_wrong_is_told_after_the_frames_before_it(header: bytes, reason: str) -> None:
    decoder = make_decoder(3)
    decoder.feed(encode_frame(b"a") + encode_frame(b"bc") + header + b"abcdefg")
    assert [decoder.next_frame(), decoder.next_frame()] == [b"a", b"bc"]
    for _ in range(2):
        with pytest.raises(FrameError, match=f"^{reason}$"):
            decoder.next_frame()


def test_frames_come_together_up_to_a_bound() -> None:
    messages = [bytes([i % 256]) * 99 for i in range(1000)]
    decoder = make_decoder(100)
    decoder.feed(b"".join(encode_frame(i) for i in messages))
    most = BATCH_BYTES // 101
    for _ in range(2):
        assert decoder.next_frame() == messages.pop(0)
        assert decoder.frames == messages[: most - 1]
        assert decoder.take(most - 1) == (most - 1) * 99
        assert decoder.buffered_bytes == (len(messages) - most + 1) * 101
        del messages[: most - 1]
    assert take_all(decoder) == messages


def test_one_that_came_alone_is_not_cut() -> None:
    for size in 1, 255, 256:
        decoder = make_decoder(1_000)
        decoder.feed(encode_frame(b"x" * size))
        assert decoder.cut() == []
        assert decoder.next_frame() == b"x" * size
        assert decoder.cut() == []
        decoder.feed(encode_frame(b"x" * size) + encode_frame(b"y"))
        assert decoder.cut() == [b"x" * size, b"y"]


def test_what_only_looks_like_one_alone_is_none() -> None:
    decoder = make_decoder(0x2_0000)
    decoder.feed(b"\x03\x01\x00\x00" + b"x" * 0x100)
    assert decoder.next_frame() is None
    decoder = make_decoder(9)
    decoder.feed(b"\x02\x00\x00")
    with pytest.raises(FrameError, match="empty frame"):
        decoder.next_frame()


def test_no_more_is_cut_before_what_is_cut_was_taken() -> None:
    decoder = make_decoder(1_000)
    decoder.feed(encode_frame(b"x" * 100) * (BATCH_BYTES // 50))
    n_cut = len(decoder.cut())
    assert n_cut == BATCH_BYTES // 102
    assert len(decoder.cut()) == n_cut


@pytest.mark.parametrize("n_more", [-1, 0, 1, 300])
def test_a_frame_of_about_that_bound_comes_alone(n_more: int) -> None:
    message = b"x" * (BATCH_BYTES - 3 + n_more)
    decoder = make_decoder(2 * BATCH_BYTES)
    decoder.feed(encode_frame(message) + encode_frame(b"a" * 9) + encode_frame(b"b"))
    assert decoder.next_frame() == message
    assert decoder.frames == []
    assert decoder.next_frame() == b"a" * 9
    assert decoder.frames == [b"b"]


def test_frames_that_end_in_what_came_later_come_together() -> None:
    messages = [b"a" * 200, b"b" * 300, b"c", b"d" * 5]
    stream = b"".join(encode_frame(i) for i in messages)
    for cut in range(len(stream)):
        decoder = make_decoder(300)
        decoder.feed(stream[:cut])
        frames = take_all(decoder)
        n_begun = decoder.buffered_bytes
        decoder.feed(stream[cut:])
        if n_begun > len(stream) - cut:  # it is large for what came later
            frames += filter(None, [decoder.next_frame()])
        if (frame := decoder.next_frame()) is not None:
            frames += [frame, *decoder.frames]
            decoder.take(len(decoder.frames))
        assert frames == messages
        assert all(type(i) is bytes for i in frames)
        assert decoder.buffered_bytes == 0


def test_what_is_cut_but_not_taken_is_buffered() -> None:
    decoder = make_decoder(1000)
    decoder.feed(encode_frame(b"a") + encode_frame(b"b" * 300) + encode_frame(b"c" * 20) + b"\2")
    n_bytes = 3 + 303 + 22 + 1
    assert decoder.buffered_bytes == n_bytes
    assert decoder.next_frame() == b"a"
    assert decoder.frames == [b"b" * 300, b"c" * 20]
    assert decoder.buffered_bytes == n_bytes - 1
    decoder.feed(b"\1\0")
    assert decoder.buffered_bytes == n_bytes - 1 + 2
    assert decoder.next_frame() == b"b" * 300
    assert decoder.buffered_bytes == n_bytes - 1 + 2 - 300
    assert decoder.next_frame() == b"c" * 20
    assert decoder.frames == []
    assert decoder.buffered_bytes == 3  # those headers count no more
    assert decoder.next_frame() is None


def test_some_of_what_is_cut_is_taken_at_once() -> None:
    decoder = make_decoder(10)
    decoder.feed(b"".join(encode_frame(b"x" * i) for i in range(1, 6)) + b"\1")
    assert decoder.next_frame() == b"x"
    n_bytes = decoder.buffered_bytes
    assert decoder.take(2) == 2 + 3
    assert decoder.buffered_bytes == n_bytes - 5
    assert decoder.frames == [b"xxxx", b"xxxxx"]
    assert decoder.next_frame() == b"xxxx"
    assert decoder.take(1) == 5
    assert decoder.buffered_bytes == 1
    assert decoder.next_frame() is None


def test_what_is_cut_was_accepted_whatever_limit_is_set_then() -> None:
    decoder = make_decoder(5)
    decoder.feed(b"".join(encode_frame(b"x" * i) for i in (1, 5)) + b"\1\5")
    assert decoder.next_frame() == b"x"
    decoder.max_frame_bytes = 4
    assert decoder.next_frame() == b"xxxxx"
    with pytest.raises(FrameError, match=r"^frame of 5 bytes announced, at most 4 are allowed$"):
        decoder.next_frame()


def test_nothing_is_left_after_discarding() -> None:
    decoder = make_decoder(10)
    decoder.feed(b"\1\1a\1\1b\1")
    assert decoder.next_frame() == b"a"
    decoder.discard()
    assert decoder.frames == []
    assert decoder.buffered_bytes == 0
    assert decoder.next_frame() is None
    decoder.feed(b"\1\1c")
    assert decoder.next_frame() == b"c"


# --- end of the stream --------------------------------------------------------------------

ENDS = pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b"\2", "connection ended in the middle of a frame header, 1 received"),
        (b"\2\1", "connection ended in the middle of a frame header, 2 received"),
        (b"\2\1\0", "connection ended in the middle of a frame of 256 bytes, 0 received"),
        (b"\1\x20abc", "connection ended in the middle of a frame of 32 bytes, 3 received"),
        (b"\6\1\0\0\0\0", "connection ended in the middle of a frame header, 6 received"),
        (b"\x08" + bytes(7), "connection ended in the middle of a frame header, 8 received"),
        (b"\x09" + bytes(8), "connection ended in the middle of a frame header, 9 received"),
        (b"\x00", "frame header: first byte is 0, expected 1 to 255"),
    ],
)


@ENDS
@pytest.mark.parametrize("n_before", range(2))
def test_an_end_in_the_middle_of_a_message(n_before: int, rest: bytes, text: str) -> None:
    decoder = make_decoder(1000)
    decoder.feed(encode_frame(b"x") * n_before + rest)
    for _ in range(n_before):
        assert decoder.next_frame() == b"x"
    with pytest.raises(RemoteProtocolError) as e:
        decoder.feed_eof()
    assert str(e.value) == text
    with pytest.raises(RemoteProtocolError) as e:
        decoder.next_frame()
    assert str(e.value) == text


@ENDS
@pytest.mark.parametrize("n_before", range(1, 4))
def test_an_end_in_the_middle_of_a_message_is_told_after_those_before(
    n_before: int, rest: bytes, text: str
) -> None:
    for n_taken in range(n_before):
        decoder = make_decoder(1000)
        decoder.feed(encode_frame(b"x") * n_before + rest)
        taken = [decoder.next_frame() for _ in range(n_taken)]
        decoder.feed_eof()
        taken += [decoder.next_frame() for _ in range(n_before - n_taken)]
        assert taken == [b"x"] * n_before
        with pytest.raises(RemoteProtocolError) as e:
            decoder.next_frame()
        assert str(e.value) == text


def test_an_end_in_the_middle_of_a_message_that_was_waited_for() -> None:
    decoder = make_decoder(1000)
    for data in (b"\x01\x01a\x02", b"\x01\x00" + b"x" * 20, b"x" * 200):
        decoder.feed(data)
        take_all(decoder)
    with pytest.raises(RemoteProtocolError, match="a frame of 256 bytes, 220 received"):
        decoder.feed_eof()


@pytest.mark.parametrize("n_before", range(3))
def test_an_end_between_messages(n_before: int) -> None:
    decoder = make_decoder(10)
    decoder.feed(encode_frame(b"x") * n_before)
    decoder.feed_eof()
    assert take_all(decoder) == [b"x"] * n_before
    assert decoder.next_frame() is None


# --- cost ---------------------------------------------------------------------------------


def test_cost_is_linear_and_memory_is_flat() -> None:
    large = encode_frame(b"x" * (4 << 20))
    decoder = make_decoder(4 << 20)
    tracemalloc.start()
    try:
        for _ in range(3):
            for i in range(0, len(large), 65_536):
                decoder.feed(large[i : i + 65_536])
                received = decoder.next_frame()
            assert received == large[4:]
            del received
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes == 0
    assert current < 100_000  # nothing of the large frames is kept
    assert peak < 4 * len(large)


@pytest.mark.parametrize("size", [20, 100_000])
def test_an_incomplete_frame_keeps_nothing_of_those_before_it(size: int) -> None:
    """Only its own bytes count among those that a connection has buffered."""
    n_frames = 400_000 // size
    data = encode_frame(b"x" * size) * n_frames
    decoder = make_decoder(100_000)
    tracemalloc.start()
    try:
        decoder.feed(b"".join([data, b"\x02"]))
        assert len(take_all(decoder)) == n_frames
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes == 1
    assert current < 10_000


def test_a_large_frame_in_small_pieces_is_as_cheap_as_in_large_ones() -> None:
    """What came before must not be copied with each piece."""

    def seconds(n_pieces: int) -> float:
        best = float("inf")
        stream = encode_frame(b"x" * (n_pieces << 10))
        for _ in range(3):
            decoder = make_decoder(len(stream))
            begin = time.thread_time()
            for i in range(0, len(stream), 1 << 10):
                decoder.feed(stream[i : i + (1 << 10)])
                frame = decoder.next_frame()
            assert frame is not None
            best = min(best, time.thread_time() - begin)
        return best

    # quadratic cost would make it 16 times 16
    assert seconds(4_000) < 16 * 5 * seconds(250)


def test_many_small_frames_in_one_piece_are_as_cheap_as_one_by_one() -> None:
    """Taking a frame must not move what stands behind it."""

    def seconds(n_frames: int) -> float:
        best = float("inf")
        stream = encode_frame(b"x" * 20) * n_frames
        for _ in range(3):
            decoder = make_decoder(100)
            begin = time.thread_time()
            decoder.feed(stream)
            assert len(take_all(decoder)) == n_frames
            best = min(best, time.thread_time() - begin)
        return best

    # quadratic cost would make it 32 times 32
    assert seconds(64_000) < 32 * 8 * seconds(2_000)
