"""What is packed of Eventer is what its codec reads from the same bytes, and answers with."""

import os
import random
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import pytest

from eventer_bridge import packed
from eventer_bridge.errors import InvalidEventError, InvalidMessageError
from eventer_bridge.eventer import codec, events
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    JsonPayload,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.packed import Batch
from tests.eventer_bridge.eventer.message_generator import MessageGenerator
from tests.eventer_bridge.packed import messages
from tests.eventer_bridge.packed.support import (
    Staging,
    Types,
    check_events,
    compiled,
    decode_events,
    event_text,
    make_events,
    plain_batch,
    request,
)
from tests.support.examples import examples

pytestmark = compiled

N_MESSAGES: Final = int(os.environ.get("DIFFERENTIAL_MESSAGES", "4_000"))
"""Of each seed; ``make torture`` makes more."""

BOUNDS: Final = (0, 1, -1, 63, 64, -64, -65, 8_191, 8_192, 1 << 34, INT64_MAX, INT64_MIN)
JSON: Final = (
    *messages.NUMBERS,
    *messages.WRONG_NUMBERS,
    *(b'"%b"' % i for i in (*messages.TEXTS, *messages.PAIRS, *messages.WRONG_TEXTS)),
    *(b"null", b"true", b"nul", b"", b" 1", b"1 ", b"{}", b"[", b"[1,2]", b'{"a":[1, 2]}', b"1 2"),
    *(b"[" * depth + b"]" * depth for depth in messages.DEPTHS),
)


def new_types() -> Types:
    return Types(read=codec.read_whole_type)


def pack(types: Types, message: bytes) -> Batch | None:
    return packed.read_sbs(message, types.table)


def read(message: bytes) -> Sequence[RegisterEvent]:
    """Events of a request, through Python."""
    found, end = events.read_register_events(message, 0)
    if end != len(message):
        raise InvalidMessageError("more follows")
    return found


def is_right(message: bytes) -> bool:
    try:
        return len(read(message)) > 0
    except (InvalidMessageError, InvalidEventError, IndexError):
        return False


def check(message: bytes, types: Types | None = None) -> bool:
    """Whether a message is packed; if so it is what Python makes of it."""
    types = types or new_types()
    found = pack(types, message)
    if found is not None:
        expected = read(message)
        check_events(found, expected, types)
        made = make_events(1, 2, expected, Timestamp(3, 4))
        assert packed.encode_sbs_answers([found]) == codec.encode_register_successes([made])
        assert (found.register_id, found.request_key, found.after_key) == (0, None, None)
    return found is not None


def text(data: bytes) -> bytes:
    return _int(len(data)) + data


def _int(value: int) -> bytes:
    groups = [value & 0x7F | 0x80]
    while not -0x40 <= value < 0x40:
        value >>= 7
        groups.append(value & 0x7F)
    return bytes(reversed(groups))


def sbs_event(names: Sequence[bytes], source: tuple[int, int] | None, data: bytes | None) -> bytes:
    """A RegisterEvent."""
    event_type = _int(len(names)) + b"".join(map(text, names))
    moment = b"\x80" if source is None else b"\x81" + _int(source[0]) + _int(source[1])
    payload = b"\x80" if data is None else b"\x81\x81" + text(data)
    return event_type + moment + payload


def sbs_request(*of: bytes) -> bytes:
    return _int(len(of)) + b"".join(of)


EVENT: Final = sbs_event([b"a", "\u010d".encode()], (1_700_000_000, 999_999), b'{"a":[1.5,"x"]}')
REQUEST: Final = sbs_request(
    EVENT, sbs_event([b"b"], None, None), EVENT, sbs_event([], (-1, 0), b"1")
)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_messages_of_the_codecs_own_differential_test(seed: int) -> None:
    generator, types = MessageGenerator(seed), new_types()
    n_packed = n_others = n_wrong = 0
    for _ in range(2 * N_MESSAGES):
        _, message = generator.message()
        if check(message, types):
            n_packed += 1
        elif is_right(message):
            n_others += 1
        else:
            n_wrong += 1
    assert n_packed > N_MESSAGES / 100
    assert n_others > N_MESSAGES / 100
    assert n_wrong > N_MESSAGES


@pytest.mark.parametrize("seed", range(examples(3)))
def test_random_requests(seed: int) -> None:
    chance, types = random.Random(seed), new_types()
    names = [b"a", b"b", b"", b"\xc4\x8d", b"\xff", b"a\0", b"x" * 70, b"?", b"\xed\xa0\x80"]
    n_packed = n_wrong = 0
    for _ in range(N_MESSAGES):
        some = [
            sbs_event(
                chance.choices(
                    names, weights=[9, 9, 2, 2, 0.1, 1, 1, 1, 0.1], k=chance.randrange(3)
                ),
                chance.choice((None, (chance.choice(BOUNDS[:10]), chance.choice((0, 5, 999_999))))),
                chance.choice((None, b"1", b"[1]", chance.choice(JSON))),
            )
            for _ in range(chance.choice((1, 1, 2, 5)))
        ]
        message = sbs_request(*some)
        if chance.random() < 0.5:
            at = chance.randrange(len(message) + 1)
            junk = chance.choice((b"", b"\x00", b"\x80", b"\x81", b"\x82", b"\xff", b"\x7f", b"1"))
            message = message[:at] + junk + message[at + chance.randrange(3) :]
        if check(message, types):
            n_packed += 1
        else:
            n_wrong += not is_right(message)
    assert n_packed > N_MESSAGES / 4
    assert n_wrong > N_MESSAGES / 20


def test_what_is_cut_off_or_goes_on_is_not_packed() -> None:
    types = new_types()
    assert check(REQUEST, types)
    for size in range(len(REQUEST)):
        assert pack(types, REQUEST[:size]) is None, size
        assert pack(new_types(), REQUEST[:size]) is None, size
    for more in (b"\0", b"\x80", b"1", REQUEST):
        assert pack(types, REQUEST + more) is None


def test_every_byte_changed_to_every_other() -> None:
    types, n_packed = new_types(), 0
    message = sbs_request(EVENT, sbs_event([b"b"], None, b'"x"'))
    for at, byte in product(range(len(message)), range(256)):
        n_packed += check(message[:at] + bytes((byte,)) + message[at + 1 :], types)
    assert n_packed > len(message)


@pytest.mark.parametrize("data", JSON)
def test_payloads(data: bytes) -> None:
    types = new_types()
    for after in ([], [sbs_event([b"a"], None, b"1")], [sbs_event([b'"'], (1, 2), b'"x"')]):
        check(sbs_request(sbs_event([b"a"], None, data), *after), types)


@pytest.mark.parametrize("count", [-(1 << 61), -1, 0, 2, 3, 1 << 20, 1 << 61, 1 << 62, INT64_MAX])
def test_wrong_counts_and_sizes(count: int) -> None:
    types = new_types()
    moment = b"\x80\x80"
    for number in (_int(count), b"\x00" * 6 + _int(count), b"\x00" * 12 + _int(count)):
        check(number + EVENT, types)
        check(_int(1) + number + text(b"a") + moment, types)
        check(_int(1) + _int(1) + number + b"a" + moment, types)
        check(_int(1) + _int(1) + text(b"a") + b"\x80\x81\x81" + number + b"1", types)
        check(_int(1) + _int(1) + text(b"a") + b"\x81" + number + _int(1) + b"\x80", types)
        check(_int(1) + _int(1) + text(b"a") + b"\x81" + _int(1) + number + b"\x80", types)


def test_a_type_that_is_longer_than_it_need_be_is_not_packed() -> None:
    """It would be answered in that way."""
    long = _int(1) + b"\x00" + text(b"a") + b"\x80\x80"
    assert is_right(_int(1) + long)
    assert not check(_int(1) + long)
    types = new_types()
    assert check(sbs_request(sbs_event([b"a"], None, None)), types)
    assert not check(_int(1) + long, types)


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_of_numbers_in_answers(bound: int) -> None:
    types = new_types()
    message = sbs_request(
        *[sbs_event([b"a"], ((1 << 61) - 1, 999_999), b'"%b"' % (b"x" * 99))] * 99
    )
    found = pack(types, message)
    assert found is not None
    packed.assign([found], bound, bound, bound, 999_999)
    made = make_events(bound, bound, read(message), Timestamp(bound, 999_999))
    assert packed.encode_sbs_answers([found]) == codec.encode_register_successes([made])


def test_what_clients_send_is_packed() -> None:
    values: list[Any] = [None, 0, -1.5, True, "x", "žižula \U0001f600", [], {"a": [1, {"b": 2}]}]
    asked = [
        RegisterEvent(
            ("a", "žižula", str(n % 3)), source, None if n == 3 else JsonPayload.of(value)
        )
        for n, value in enumerate(values)
        for source in (None, Timestamp(1_700_000_000, 1), Timestamp(-5, 999_999))
    ]
    message = events.encode_register_events(asked)
    assert check(message)
    assert check(events.encode_register_events(asked[:1]))
    types = new_types()
    for event in asked * 2:
        assert check(events.encode_register_events([event]), types)


def test_deep_nesting_takes_no_stack() -> None:
    for begin in (b"[", b'{"":'):
        data = begin * 1_000_000
        assert pack(new_types(), sbs_request(sbs_event([b"a"], None, data))) is None


def test_both_wires_share_the_order_of_a_type() -> None:
    """A type has another table, and another text, for each wire."""
    json_types, types = Types(), new_types()
    message, sbs = request(event_text("a", 5)), sbs_request(sbs_event([b"a"], (3, 0), None))
    by_json, by_sbs = json_types.batch(message), pack(types, sbs)
    assert by_sbs is not None
    packed.assign([by_json, by_sbs], 1, 1, 1, 0)
    in_python = [
        plain_batch(events, (1, number, Timestamp(1, 0)))
        for number, events in enumerate((decode_events(message), read(sbs)), 1)
    ]
    [type_id] = json_types.ids.values()
    staging = Staging(types, {type_id: (b"", b"", 0)}, {})
    staged = staging.stage([by_json, by_sbs], in_python)
    assert len(staged[2]) == 1  # the second one is not in order
    assert staging.last[type_id][2] == 1
    assert len(staging.put()) == 2
    with pytest.raises(ValueError, match="another wire"):
        packed.encode_sbs_answers([by_json])
