"""What is packed is what the codec reads from the same bytes; what is usual is packed."""

import base64
import itertools
import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hat.mariner.transport import encoder

from eventer_bridge.model import JsonPayload, RegisterEvent, Timestamp
from mariner.errors import ContractError
from mariner.wire import codec
from mariner.wire.messages import RegisterReq
from tests.eventer_bridge.packed import messages
from tests.eventer_bridge.packed.messages import Writer
from tests.eventer_bridge.packed.support import (
    Types,
    check_json,
    compiled,
    decoded,
    event_text,
    request,
)
from tests.mariner.wire.hat_messages import to_hat
from tests.mariner.wire.message_generator import MessageGenerator

pytestmark = compiled

N_MESSAGES: Final = int(os.environ.get("DIFFERENTIAL_MESSAGES", "4_000"))
"""Of each seed; ``make torture`` makes more."""
SEEDS: Final = (1, 2, 3)

MAX_DEPTH: Final = 32
MAX_NUMBER_BYTES: Final = 64
"""Of what is packed."""

RIGHT: Final = request(
    event_text("a", (1, 2), {"ž": [1, -2.5e3, "x\\u00e9\n", None, True]}),
    event_text("žižula"),
    event_text("a", -5, []),
    more=b',"request_key":"key","after_key":"other"',
)


def is_right(message: bytes) -> bool:
    """Whether the codec accepts a message."""
    try:
        codec.decode(message)
    except ContractError:
        return False
    return True


def check(message: bytes, types: Types | None = None) -> bool:
    """Whether a message is packed; if so it is what the codec makes of it."""
    types = types or Types()
    found = types.read(message)
    if found is not None:
        check_json(found, message, types)
    return found is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_packed_is_what_the_codec_reads(seed: int) -> None:
    writer, types = Writer(seed), Types()
    n_packed = n_others = n_wrong = 0
    for _ in range(N_MESSAGES):
        message = writer.message()
        if check(message, types):
            n_packed += 1
        elif is_right(message):
            n_others += 1
        else:
            n_wrong += 1
    # the messages are worth the name of a test
    assert n_packed > N_MESSAGES / 4
    assert n_others > N_MESSAGES / 200
    assert n_wrong > N_MESSAGES / 5


@pytest.mark.parametrize("seed", SEEDS)
def test_other_messages_are_no_registrations(seed: int) -> None:
    """Those of the codec's own differential test."""
    generator, types = MessageGenerator(seed), Types()
    n_packed = sum(check(generator.message(), types) for _ in range(N_MESSAGES))
    assert n_packed > 0


def test_nearly_everything_right_is_packed() -> None:
    writer, types = Writer(4), Types()
    n_packed = 0
    for _ in range(1_000):
        message = writer.right()
        assert is_right(message), message
        n_packed += check(message, types)
    assert n_packed > 700


def test_what_is_cut_off_or_goes_on_is_not_packed() -> None:
    types = Types()
    assert check(RIGHT, types)
    for size in range(len(RIGHT)):
        assert types.read(RIGHT[:size]) is None, size
        assert types.read(RIGHT[:size] + b"\0" + RIGHT[size:]) is None, size
        assert types.read(RIGHT[:size] + b"\0" * 8) is None, size
    for more in (b"x", b"}", b",", b"\0", b" 1", b"\n\0", RIGHT):
        assert types.read(RIGHT + more) is None, more
    assert check(b" \t" + RIGHT + b"\r\n ", types)


def test_every_byte_changed_to_every_other() -> None:
    message = request(event_text("\u010d", 1, {"\u017e": 1.5}))
    types = Types()
    n_packed = 0
    for at, byte in itertools.product(range(len(message)), range(256)):
        n_packed += check(message[:at] + bytes((byte,)) + message[at + 1 :], types)
    assert n_packed > len(message)


def test_space_is_anywhere() -> None:
    text = json.dumps(json.loads(RIGHT), indent=1).encode()
    assert check(text)
    marks = b"{}[],:"
    everywhere = b"".join(b" \r\n\t%c\t " % i if i in marks else b"%c" % i for i in RIGHT)
    assert check(everywhere)
    for space in messages.WRONG_SPACES:
        for at in range(len(RIGHT) + 1):
            check(RIGHT[:at] + space + RIGHT[at:])


# --- one part of a message ----------------------------------------------------------------

ALL_INTEGERS: Final = (
    *(messages.INTEGERS + messages.LONG_INTEGERS + messages.RARE_INTEGERS),
    *messages.WRONG_INTEGERS,
    *(b"1000000", b"-1", b"4294967296", b"1e999", b"99999999999999999999", b"1000000000000000000"),
)
ALL_NUMBERS: Final = (*ALL_INTEGERS, *messages.NUMBERS, *messages.WRONG_NUMBERS)


@pytest.mark.parametrize("number", ALL_INTEGERS)
def test_integers(number: bytes) -> None:
    right = event_text("a", 1, 1)
    start = b'{"msg_type":"register_req","register_id":%b,"register_events":[%b]}'
    check(start % (number, right))
    check(request(b'{"type":[],"source_timestamp":{"s":%b,"us":0},"payload":null}' % number))
    check(request(b'{"type":[],"source_timestamp":{"s":0,"us":%b},"payload":null}' % number))


@pytest.mark.parametrize("us", [0, 1, 999_999])
def test_microseconds_within_their_bounds_are_packed(us: int) -> None:
    assert check(request(event_text("a", (-1, us))))


@pytest.mark.parametrize("number", ALL_NUMBERS)
def test_numbers_of_payloads(number: bytes) -> None:
    for payload in (number, b"[%b]" % number, b'{"a":%b}' % number, b" %b " % number):
        check(request(event_text("a", None, payload)))


@pytest.mark.parametrize("number", [i for i in messages.NUMBERS if i not in (b"1e308", b"1e-400")])
def test_usual_numbers_are_packed(number: bytes) -> None:
    assert check(request(event_text("a", None, b"[%b, %b]" % (number, number))))


def test_bounds_of_what_is_packed() -> None:
    for size, expected in ((MAX_NUMBER_BYTES, True), (MAX_NUMBER_BYTES + 1, False)):
        assert check(request(event_text("a", None, b"1" * size))) is expected
    for depth, expected in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False)):
        assert check(request(event_text("a", None, b"[" * depth + b"]" * depth))) is expected
        objects = b'{"a":' * depth + b"1" + b"}" * depth
        assert check(request(event_text("a", None, objects))) is expected
        side_by_side = b"[%b]" % b",".join([b"[]"] * 1_000)
        assert check(request(event_text("a", None, side_by_side)))


@pytest.mark.parametrize("depth", [100, 1_000, 100_000, 1_000_000])
def test_deep_nesting_takes_no_stack(depth: int) -> None:
    for begin in (b"[", b'{"":', b'[{"":'):
        assert Types().read(request(event_text("a", None, begin * depth))) is None
        assert Types().read(request(event_text(begin * depth, None))) is None


TEXTS: Final = (*messages.TEXTS, *messages.PAIRS, *messages.WRONG_TEXTS)


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: bytes) -> None:
    types = Types()
    for data in (text, b"a" + text, text + b"a", b"\xc4\x8d" + text):
        for _ in range(2):  # the type is looked up, then expected
            check(request(event_text(b'["%b"]' % data)), types)
            check(request(event_text(b'["%b"]' % data), event_text("\u010d", None, "\u010d")))
        check(request(event_text("a", None, b'"%b"' % data)), types)
        check(request(event_text("a", None, b'{"%b":1}' % data)), types)
        check(request(event_text("a", None, b'{"%b":1,"%b":2}' % (data, data))), types)
        keys = b',"request_key":"%b","after_key":"%b"' % (data, data)
        check(request(event_text("a"), more=keys), types)


@pytest.mark.parametrize("text", [i for i in messages.TEXTS if i])
def test_usual_texts_are_packed(text: bytes) -> None:
    assert check(request(event_text(b'["%b"]' % text, None, b'"%b"' % text)))


@pytest.mark.parametrize("key", [b"", b"k" * 64, b"k" * 65, b"k" * 1000, b"a b~", b"\x7f", b"\\n"])
def test_request_keys(key: bytes) -> None:
    assert check(request(event_text("a"), more=b',"request_key":"%b"' % key)) is (
        0 < len(key) <= 64 and b"\\" not in key and b"\x7f" not in key
    )
    for more in (
        b',"after_key":"%b"' % key,
        b',"after_key":"k","request_key":"%b"' % key,
        b',"request_key":"k","after_key":"%b"' % key,
        b',"request_key":"k","request_key":"%b"' % key,
        b',"request_key":null,"after_key":"%b"' % key,
        b',"request_key":"%b","after_key":null' % key,
        b',"request_key":"%b","x":1' % key,
        b',"request_key":"%b",' % key,
        b',"request_key":"%b" , "after_key" : "%b" ' % (key, key),
    ):
        check(request(event_text("a"), more=more))


@pytest.mark.parametrize(
    "event",
    [
        event_text("a").replace(b'"type"', b'"type":[],"type"'),
        event_text("a", 1).replace(b'"us"', b'"s":2,"us"'),
        b'{"type":["a"],"source_timestamp":null}',
        b'{"type":"a","source_timestamp":null,"payload":null}',
        b'{"type":[1],"source_timestamp":null,"payload":null}',
        b'{"type":["a",],"source_timestamp":null,"payload":null}',
        b'{"type":[,"a"],"source_timestamp":null,"payload":null}',
        b'{"type":["a" "b"],"source_timestamp":null,"payload":null}',
        b'{"type":[["a"]],"source_timestamp":null,"payload":null}',
        b'{"type":["a"],"source_timestamp":1,"payload":null}',
        b'{"type":["a"],"source_timestamp":{"us":1,"x":1},"payload":null}',
        b'{"type":["a"],"source_timestamp":null,"payload":null,}',
        b'{,"type":["a"],"source_timestamp":null,"payload":null}',
        b'{"type":["a"],"source_timestamp":null,"payload":null "x":1}',
        b'{"type":["a"],"source_timestamp":null,"payload":null,"x"}',
        b'{"type":["a"],"source_timestamp":null,"payload":null,"x":}',
        b'{"type":["a"],"source_timestamp":null,"payload":null,x:1}',
        b'{"type":["a"],"source_timestamp":null,"payload":null,"\\u0074ype":["b"]}',
        b'{"type":["a"],"source_timestamp":null,"payload":{"data":1,"payload_type":"json","data":2}}',
        b'{"type":["a"],"source_timestamp":null,"payload":{"data":1,"payload_type":"binary"}}',
        b'{"type":["a"],"source_timestamp":null,"payload":{"payload_type":"json"}}',
        b'{"type":["a"],"source_timestamp":null,"payload":{"payload_type":"json","data":}}',
        *(
            b'{"type":["a"],"source_timestamp":null,"payload":{"payload_type":"binary",%b}}' % rest
            for rest in (
                b'"data_type":"x","data":"AA="',
                b'"data_type":"x","data":"AA"',
                b'"data_type":"x","data":"AB=="',  # would be written as AA==
                b'"data_type":"x","data":"A==="',
                b'"data_type":"x","data":"===="',
                b'"data_type":"x","data":"=AAA"',
                b'"data_type":"x","data":"AA-_"',
                b'"data_type":"x","data":"A A="',
                b'"data_type":"x","data":"AA\\/A"',
                b'"data_type":"\\n","data":"AA=="',
                b'"data_type":null,"data":"AA=="',
                b'"data_type":"x","data":null',
                b'"data_type":"x","data_type":"y","data":"AA=="',
            )
        ),
        b"null",
        b"",
    ],
)
def test_unusual_events_are_not_packed(event: bytes) -> None:
    assert not check(request(event))
    assert not check(request(event_text("a"), event))
    assert not check(request(event, event_text("a")))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        request(),
        request(event_text("a")).replace(b"register_req", b"register_res"),
        request(event_text("a")).replace(b'"register_id":1,', b""),
        request(event_text("a"), more=b',"register_id":2'),
        request(event_text("a"), more=b',"msg_type":"register_req"'),
        request(event_text("a"), more=b',"register_events":[%b]' % event_text("a")),
        request(event_text("a"), more=b',"after_key":"k"'),
        request(event_text("a"), more=b',"request_key":null,"after_key":"k"'),
        request(event_text("a"), more=b',"x":[1,}'),
        request(event_text("a"), more=b","),
        b'{"msg_type":"register_req","register_id":1,"register_events":%b}' % event_text("a"),
        b'{"msg_type":"ping_req","ping_id":1}',
    ],
)
def test_unusual_messages_are_not_packed(message: bytes) -> None:
    assert not check(message)


@pytest.mark.parametrize(
    "event",
    [
        b'{"payload":null,"type":["a"],"source_timestamp":null}',
        b'{"payload":{"data":{"x":1},"payload_type":"json"},"source_timestamp":null,"type":["a"]}',
        b'{"source_timestamp":{"us":1,"s":2},"type":["a"],"payload":null}',
        b'{"type":["a"],"source_timestamp":{"s":1.0,"us":0.00},"payload":null}',
        b'{"type":["a"],"source_timestamp":{"s":-9223372036854775808,"us":1},"payload":null}',
        b'{"x":[{}],"type":["a"],"y":{"z":null},"source_timestamp":null,"":1,"payload":null}',
        b'{"type":["a"],"source_timestamp":{"s":1,"x":"}","us":1},"payload":null}',
        b'{"type":["a"],"source_timestamp":null,"payload":{"data_type":1,"payload_type":"json",'
        b'"data":2,"x":"\xc4\x8d"}}',
    ],
)
def test_any_order_and_other_properties_are_packed(event: bytes) -> None:
    assert check(request(event))
    assert check(request(event_text("a"), event, event_text("b")))
    assert check(
        b'{"x":1,"register_events":[%b],"msg_type":"register_req","register_id":7}' % event
    )


def test_keys_that_are_null_are_packed() -> None:
    for more in (b',"request_key":null', b',"after_key":null,"request_key":"k"'):
        assert check(request(event_text("a"), more=more))


def test_a_type_that_is_not_known_is_not_packed() -> None:
    types = Types()
    types.unknown.add(("b",))
    assert not check(request(event_text("a"), event_text("b")), types)
    assert not check(request(event_text("b")), types)
    assert check(request(event_text("a")), types)


# --- what clients send --------------------------------------------------------------------

VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, 1e99, 5e-99, -0.0, 2**63, "", "x", "žižula \U0001f600", '\\"/\n\t'),
    *([], {}, [1, [2, {"a": None}]], {"a": {"b": "č"}, "": [1.25e-7]}),
    *("x" * 10_000, [0.1] * 1_000, {str(i): i for i in range(100)}),
)
EVENTS: Final = [
    RegisterEvent(("plant", "žižula", str(n)), source, payload)
    for n, (source, payload) in enumerate(
        (source, None if number % 5 == 4 else JsonPayload.of(value))
        for number, value in enumerate(VALUES)
        for source in (None, Timestamp(1_700_000_000, 999_999), Timestamp(-1, 0))
    )
]
REQUEST: Final = RegisterReq(7, tuple(EVENTS))


def plain(message: RegisterReq) -> Any:
    return msgspec.json.decode(codec.encode(message))


def test_what_json_writes_is_packed() -> None:
    for ensure_ascii, indent, separators in itertools.product(
        (True, False), (None, 0, 2), (None, (",", ":"), (", ", ": "))
    ):
        text = json.dumps(
            plain(REQUEST), ensure_ascii=ensure_ascii, indent=indent, separators=separators
        )
        assert check(text.encode())


@pytest.mark.parametrize("spaces", [700, 2_000])
def test_what_has_little_in_many_bytes_is_not_packed(spaces: int) -> None:
    """It stays in memory until it is answered, where only its payload counts."""
    event = codec.encode(REQUEST).replace(b":[{", b":[" + b" " * spaces + b"{", 1)
    assert check(event)  # of many events
    single = codec.encode(RegisterReq(7, (RegisterEvent(("a",), None, JsonPayload.of(1)),)))
    assert check(single.replace(b":[{", b":[" + b" " * spaces + b"{", 1)) is (spaces < 1_000)


@pytest.mark.parametrize("value", [b"1e300", b"5e-324", b'"\\ud83d\\ude00"', b'"\\uD83D\\uDE00x"'])
def test_large_exponents_and_pairs_of_surrogates_are_packed(value: bytes) -> None:
    single = codec.encode(RegisterReq(7, (RegisterEvent(("a",), None, JsonPayload.of(1)),)))
    assert check(single.replace(b'"data":1', b'"data":' + value))


def test_what_our_client_sends_is_packed() -> None:
    assert check(codec.encode(REQUEST))
    for key, after in (("key", None), ("key", "other")):
        assert check(codec.encode(RegisterReq(-7, tuple(EVENTS), key, after)))


def test_what_hat_mariner_sends_is_packed() -> None:
    events = [i for i in EVENTS if i.payload is None or b"\xf0" not in bytes(i.payload.data)]
    message = encoder.encode_msg(to_hat(RegisterReq(7, tuple(events))))
    assert check(json.dumps(message).encode())


def test_what_a_java_or_javascript_client_sends_is_packed() -> None:
    """Compact, not ASCII only; as ``JSON.stringify`` and Jackson write it."""
    text = json.dumps(plain(REQUEST), ensure_ascii=False, separators=(",", ":"))
    assert check(text.replace("/", "\\/").encode())


@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("label", ["", "x", "č \N{GRINNING FACE}", "x" * 300])
def test_binary_payloads_are_packed(size: int, label: str) -> None:
    data = base64.b64encode(bytes(range(250, 250 - size, -1))).decode()
    for order in itertools.permutations(("payload_type", "data_type", "data")):
        values = {"payload_type": "binary", "data_type": label, "data": data}
        payload = json.dumps({i: values[i] for i in order}, ensure_ascii=False)
        text = f'{{"type":["a"],"source_timestamp":{{"s":1,"us":2}},"payload":{payload}}}'
        assert check(request(text.encode(), event_text("b", 3, {"x": 1}), text.encode()))


def test_recorded_messages_of_hat_mariner_are_packed() -> None:
    path = Path(__file__).parents[2] / "vectors" / "hat_mariner.json"
    found = [
        i["message"].encode()
        for i in json.loads(path.read_text(encoding="utf-8"))
        if i["name"].startswith("register_req")
    ]
    assert found
    for message in found:
        is_usual = any(i.type for i in decoded(message).register_events)
        assert check(message) is is_usual, message
