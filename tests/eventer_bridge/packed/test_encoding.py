"""Answers to packed requests, byte by byte those that Python makes of the same events."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge import limits, packed
from eventer_bridge.backends.request_keys import digests
from eventer_bridge.model import INT64_MAX, INT64_MIN, Timestamp
from eventer_bridge.net.framing import encode_frame, encode_frames
from eventer_bridge.packed import Batch, plain
from mariner.wire import codec
from tests.eventer_bridge.packed.messages import Writer
from tests.eventer_bridge.packed.support import (
    Types,
    compiled,
    decode_events,
    decoded,
    event_text,
    make_events,
    plain_batch,
    request,
)
from tests.support.examples import examples

pytestmark = compiled

BOUNDS: Final = (0, 1, -1, 9, 10, 99, -10, 10**18, -(10**18), INT64_MAX, INT64_MIN, INT64_MIN + 1)
INTEGERS: Final = st.sampled_from(BOUNDS) | st.integers(INT64_MIN, INT64_MAX)
MANY: Final = request(*(event_text("a", (-(10**17), 999_999), "x") for _ in range(1_234)))


def staged(types: Types, message: bytes, server: int, session: int, time: Timestamp) -> Batch:
    """A request, as the session that it became."""
    found = types.batch(message)
    packed.assign([found], server, session, time.s, time.us)
    return found


def check(types: Types, message: bytes, server: int, session: int, time: Timestamp) -> None:
    found = staged(types, message, server, session, time)
    expected = decoded(message)
    events = make_events(server, session, expected.register_events, time)
    assert packed.encode_events(found) == msgspec.json.encode(events)[1:-1]
    assert packed.encode_events(found) == codec.encode_events(events)
    answers = codec.encode_register_successes([expected.register_id], [events])
    assert codec.encode_batch_successes([found]) == encode_frames(answers)
    for before, between, behind in (
        (b"", b"", b""),
        (b"a" * 99, b"", b"\0"),
        (b"", b"x" * 99, b""),
    ):
        whole = b"%b%d%b%b%b" % (
            *(before, expected.register_id, between),
            *(packed.encode_events(found), behind),
        )
        assert packed.encode_answers([found], before, between, behind) == encode_frame(whole)


@given(
    st.integers(0, 1 << 32),
    INTEGERS,
    INTEGERS,
    st.builds(Timestamp, INTEGERS, st.sampled_from((0, 9, 999_999))),
)
@settings(max_examples=examples(200))
def test_answers_are_those_that_python_encodes(
    seed: int, server: int, session: int, time: Timestamp
) -> None:
    types, writer = Types(), Writer(seed)
    while types.read(message := writer.right()) is None:
        pass
    check(types, message, server, session, time)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("register_id", [0, 10**18 - 1, 1 - 10**18])
def test_bounds_of_numbers(bound: int, register_id: int) -> None:
    time = Timestamp(bound, 999_999)
    for source in (None, (10**18 - 1, 999_999), (1 - 10**18, 999_999), (0, 0)):
        message = request(event_text("a", source, 1), event_text("b"), register_id=register_id)
        check(Types(), message, bound, bound, time)


@pytest.mark.parametrize("number", [1, 2, 9, 10, 11, 99, 100, 1_000])
def test_many_events_of_the_largest_numbers(number: int) -> None:
    source = (1 - 10**18, 999_999)
    message = request(*[event_text(b"[]", source, b"0")] * number, register_id=1 - 10**18)
    check(Types(), message, INT64_MIN, INT64_MIN, Timestamp(INT64_MIN, 999_999))
    message = request(*[event_text(b"[]")] * number)
    check(Types(), message, INT64_MIN, INT64_MIN, Timestamp(INT64_MIN, 999_999))


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'[ "a" , "b" ]',
        b'["\\u010d\\/\\n\\u0000"]',
        b'["\xc4\x8d"]',
        b'["%b"]' % (b"x" * 400),
    ],
)
def test_types_are_answered_as_python_writes_them(text: bytes) -> None:
    message = request(event_text(text), event_text("a"), event_text(text))
    check(Types(), message, 1, 2, Timestamp(3, 4))


@pytest.mark.parametrize(
    "data", [b"1", b" 1 ", b'{"a" : [1,\n2]}', b'"\\u010d"', b"1.50e+05", b'"%b"' % (b"x" * 99_999)]
)
def test_payloads_are_answered_as_they_came(data: bytes) -> None:
    message = request(event_text("a", None, data), event_text("b", 1, data))
    check(Types(), message, 1, 2, Timestamp(3, 4))
    found = staged(Types(), message, 1, 2, Timestamp(3, 4))
    assert b'"data":%b}}' % data.strip() in packed.encode_events(found)


def test_several_answers() -> None:
    types = Types()
    requests = [request(event_text(str(n), n, n), register_id=n) for n in range(5)]
    found = [types.batch(i) for i in requests]
    packed.assign(found, 1, 10, 2, 3)
    events = [
        make_events(1, 10 + n, decode_events(i), Timestamp(2, 3)) for n, i in enumerate(requests)
    ]
    answers = codec.encode_register_successes(range(5), events)
    assert codec.encode_batch_successes(found) == encode_frames(answers)
    assert codec.encode_batch_successes([]) == b""


@pytest.mark.parametrize("size", [0xFF, 0xFFFF, 0xFF_FFFF])
def test_answers_of_every_length_have_the_shortest_header(size: int) -> None:
    found = staged(Types(), request(event_text("a", 1)), 1, 2, Timestamp(3, 4))
    fewest = len(packed.encode_answers([found], b"", b"", b"")) - 1
    for n_bytes in range(size - fewest - 3, size - fewest + 3):
        behind = b"x" * max(n_bytes, 0)
        whole = b"%d%b%b" % (found.register_id, packed.encode_events(found), behind)
        framed = packed.encode_answers([found, found], b"", b"", behind)
        assert framed == 2 * encode_frame(whole)


def test_some_of_the_events() -> None:
    message = request(*(event_text(str(n), n, n) for n in range(12)))
    found = staged(Types(), message, 1, 2, Timestamp(3, 4))
    events = make_events(1, 2, decode_events(message), Timestamp(3, 4))
    for indices in ([], [0], [11], [0, 1, 2], [3, 7, 10], [*range(12)]):
        expected = codec.encode_events([events[i] for i in indices])
        assert packed.encode_events(found, indices) == expected
    for wrong in ([12], [-1], [0, -1], [1, 1], [2, 1], [0] * 1_000, [1 << 62]):
        with pytest.raises(IndexError):
            packed.encode_events(found, wrong)


def test_what_is_digested_is_what_python_digests() -> None:
    types, writer = Types(), Writer(9)
    n_packed = 0
    for _ in range(300):
        message = writer.right()
        found = types.read(message)
        if found is not None:
            n_packed += 1
            assert [*digests([found])] == [*digests([plain_batch(decode_events(message))])]
    assert n_packed > 200


@pytest.mark.parametrize("n_events", [3, 257, 1_234])
def test_a_batch_is_a_sequence_of_its_events(n_events: int) -> None:
    texts = [event_text(f"{n % 7}", n, "x" * (n % 5)) for n in range(n_events)]
    message = request(*texts)
    found, expected = Types().batch(message), [*decode_events(message)]
    assert len(found) == n_events
    assert [*found] == expected
    for index in (0, 1, -1, -n_events, n_events - 1):
        assert found[index] == expected[index]
    for part in (slice(None), slice(1, 3), slice(-2, None), slice(None, None, -2), slice(9, 1)):
        assert found[part] == expected[part]
    assert [*reversed(found)] == expected[::-1]
    assert found.index(expected[2]) == 2
    assert found.count(expected[2]) == 1
    for index in (n_events, -n_events - 1):
        with pytest.raises(IndexError):
            found[index]
    is_kept = found[0] is found[0]
    assert is_kept is (n_events <= limits.STEP_EVENTS)
    before = found.object_bytes
    assert Types().batch(message).object_bytes <= before


def test_wrong_arguments_are_refused() -> None:
    found = Types().batch(request(event_text("a")))
    for wrong in (None, "", bytearray(b"x")):
        for number in range(3):
            parts: list[object] = [b"", b"", b""]
            parts[number] = wrong
            with pytest.raises(TypeError):
                packed.encode_answers([found], *parts)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            packed.read_json(wrong, Types().table)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            packed.encode_events(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            packed.content(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        packed.read_json(b"", None)  # type: ignore[arg-type]


def test_what_batches_have_together() -> None:
    """Both implementations tell it alike."""
    types = Types()
    messages = [request(event_text("a", 1, "x")), request(*[event_text("b", 2)] * 3)]
    both: list[tuple[Any, list[Any]]] = [
        (packed, [types.batch(i) for i in messages]),
        (plain, [plain_batch(decode_events(i)) for i in messages]),
    ]
    for module, batches in both:
        empty = plain_batch(()) if module is plain else packed.batch_of((), types.table)
        batches[1].requested = 2
        n_bytes = sum(batch.payload_bytes for batch in batches)
        assert module.totals([]) == (0, 0, 0)
        assert module.totals([*batches, empty]) == (4, 3, n_bytes)
        assert module.claim([*batches, empty], "source", "quota") == 5
        assert {(i.source, i.quota) for i in (*batches, empty)} == {("source", "quota")}
        assert not module.are_keyed([])
        assert not module.are_keyed(batches)
        batches[1].key = "key"
        assert module.are_keyed(batches)
        batches[1].key, batches[0].request_key = None, "key"
        assert module.are_keyed(batches)
        assert module.are_alike([])
        batches[0].committed = batches[1].committed = object()
        assert module.are_alike(batches)
        batches[1].first = batches[0]
        assert not module.are_alike(batches)
        batches[1].first, batches[1].committed = None, object()
        assert not module.are_alike(batches)


def test_functions_of_batches_refuse_none() -> None:
    wrong: Any = [Types().batch(request(event_text("a"))), None]
    acts: tuple[Any, ...] = (packed.totals, packed.are_keyed, packed.are_alike)
    for act in acts:
        for batches in (wrong, wrong[::-1], None):
            with pytest.raises(TypeError):
                act(batches)
    with pytest.raises(TypeError):
        packed.claim(wrong, None, None)  # type: ignore[arg-type]
