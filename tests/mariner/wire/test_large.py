"""Large messages: decoded in slices, with the codec's verdict."""

import contextlib
import gc
import json

import pytest

from eventer_bridge import limits as core_limits
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps, at_once
from mariner import limits
from mariner.errors import ContractError
from mariner.wire import codec, large
from mariner.wire.messages import Message, QueryReq, RegisterReq
from tests.eventer_bridge.packed.support import Types

EVENT = '{"type":["a","b"],"source_timestamp":{"s":1,"us":2},"payload":null}'
NEAR = '{"type":["a","b"],"source_timestamp":{"s":1.0,"us":1.5},"payload":null}'
ODD = '{"type":["a","b"],"source_timestamp":{"s":1.0,"us":2},"payload":null}'
# contains what looks like the begin of an event
NESTED = (
    '{"type":["a","b"],"source_timestamp":null,"payload":{"payload_type":"json","data":'
    '[{"type":["b"]},{"type":["c"],"x":"{\\"type\\":[\\\\"}]}}'
)
ONE = '{"payload_type":"json","data":%s}'
N = 3_000
TYPES = Types()


def register(events: str, head: str = "", tail: str = "") -> bytes:
    return (
        f'{{"msg_type":"register_req","register_id":7,{head}"register_events":[{events}]{tail}}}'
    ).encode()


def steps_of(message: bytes) -> Steps[Message]:
    found = yield from large.decode(message, TYPES.table)
    if not isinstance(found, Batch):
        return found
    assert found.requested == len(found)
    return RegisterReq(found.register_id, (*found,), found.request_key, found.after_key)


def decode(message: bytes) -> tuple[Message, int]:
    """What it is, and in how many steps that was found."""
    assert len(message) > limits.LARGE_FRAME_BYTES
    steps = steps_of(message)
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return e.value, n_steps
        n_steps += 1


@pytest.mark.parametrize(
    "message",
    [
        register(",".join([EVENT] * N)),
        register(",".join([NESTED] * N)),
        register(",".join([ODD, *[EVENT] * N, ODD, ODD, *[NESTED] * N])),
        register(" , \n".join([EVENT.replace(":", " : ")] * N) + " "),
        register(",".join([EVENT] * N), head='"x":[{"register_events":1}],', tail=',"y":null'),
        register(EVENT.replace("null", ONE % ('"' + "é\\\\" * 99_999 + '"'))),
        register(EVENT.replace("null", ONE % ([1] * 99_999))),
        register(EVENT.replace("null", ONE % ('"' + "x" * 99_999 + r"\\" * 29_999 + '"'))),
        register(EVENT.replace("null", ONE % ('"' + r"\\" * 99_999 + '\\""'))),
        register(EVENT.replace("null", ONE % ('"' + "x" * 199_999 + r"\\" * 600 + '\\""'))),
        register(",".join([EVENT] * N), tail=r',"request_key":"\u017e]},","after_key":"\\\\]\"]"'),
        register(
            ",".join([EVENT] * N),
            head=r'"a\"register_events":[1],"b":{"c":"[","register_events":[[1]]},',
            tail=r',"\u017e":{"register_events":[1],"d":"\"register_events\":["}',
        ),
        ('{"register_events":[' + ",".join([EVENT] * N) + '],"register_id":7.0,'
         '"msg_type":"register_req"}').encode(),
    ],
)  # fmt: skip
def test_the_verdict_is_the_codecs(message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, n_steps = decode(message)
    monkeypatch.setattr(limits, "MAX_LENIENT_BYTES", 1 << 30)
    assert decoded == codec.decode(message)
    assert isinstance(decoded, RegisterReq)
    assert len(decoded.register_events) == 1 or n_steps >= len(message) // limits.STEP_BYTES - 1


def test_a_query_is_no_registration() -> None:
    types = [[str(i) * 100] for i in range(1_000)]
    query = {"msg_type": "query_req", "query_id": 1, "query_type": "latest", "event_types": types}
    decoded, _ = decode(json.dumps(query).encode())
    assert isinstance(decoded, QueryReq)


WRONG = '{"type":["a"],"source_timestamp":null,"payload":5}'
LONG_NUMBER = EVENT.replace("null", '{"payload_type":"json","data":' + "1" * 2_000 + "}")
HALF = EVENT.replace("null", ONE % r'{"k/":["\udc00"]}')
WIDE_HALF = HALF.replace('["\\', "[" + "1," * 99_999 + '"\\')
MANY = ",".join([EVENT] * N)
AT = f"/register_events/{N}"
TAILED = (
    f'{{"msg_type":"register_req","register_events":[{MANY},{WRONG}],"register_id":8,'
    '"request_key":TAIL}'
).encode()


@pytest.mark.parametrize(
    ("message", "register_id", "text"),
    [
        (register(f"{MANY},{WRONG},{MANY}"), 7, f"{AT}: Expected `object | null`, got `int`"),
        (register(f"{MANY},{LONG_NUMBER}"), 7, f"{AT}/payload/data: a number of more than 1000"),
        (
            register(f"{MANY},{NEAR}"),
            7,
            f"{AT}: Expected `int`, got `float` - at `$.source_timestamp.us",
        ),
        (register(f"{MANY},1,1,1,{MANY}"), 7, f"{AT}: Expected `object`, got `int`"),
        (register(",".join([EVENT] * 65_537)), 7, ": at most 65536 events are allowed"),
        (register(EVENT.replace("null", "[" + "1," * 1_000_001 + "1]")), 7, "0: more than 1000000"),
        (register(EVENT.replace("null", "[" + "[]," * 500_001 + "1]")), 7, "/0: more than 500000"),
        (register(MANY).replace(b'"register_id":7', b'"register_id":"7"'), None, "/register_id"),
        (register(MANY)[:-2], None, "not JSON"),
        (register(f"{MANY} {EVENT}"), None, "expected ',' or ']'"),
        (register(MANY, tail=',"register_events":[]'), 7, "/register_events: expected once"),
        (register(MANY, tail=f',"register_events":[{EVENT}]'), 7, "/register_events: expected"),
        (register(MANY, tail=r',"register\u005fevents":[]'), 7, "/register_events: expected once"),
        (register(MANY, tail=',"register_events":[[]]'), 7, "/register_events/0: expected object"),
        (register(f"{MANY},{WRONG}", tail=r',"request_key":"\u017e]},\\"'), 7, f"{AT}: Expected"),
        (TAILED.replace(b"TAIL", rb'"\"]},\\","after_key":"]\\"'), 8, f"{AT}: Expected"),
        (TAILED.replace(b"TAIL", rb'"\ud800"'), 8, "(root): lone surrogate at byte"),
        (register(f"{MANY},{HALF}"), 7, f"{AT}: lone surrogate at byte 100 of the event"),
        (
            register(f"{MANY},{HALF.replace('2', '2.0')},{MANY}"),
            7,
            f"{AT}: lone surrogate at byte 102 of the event",
        ),
        (
            register(f"{MANY},{WIDE_HALF}"),
            7,
            f"{AT}: lone surrogate, or",
        ),
        (register(MANY, tail=',"x":"' + "x" * 200_000 + '"'), None, "bytes follow register_events"),
        (register(MANY).replace(b'"b"', b'"\xff"'), None, "not UTF-8"),
        (b'{"msg_type":"ping_req","ping_id":1,"x":[%b1]}' % (b"1," * 999_999), None, "at most"),
    ],
)
def test_what_is_wrong_is_told(message: bytes, register_id: int | None, text: str) -> None:
    with pytest.raises(ContractError) as e:
        decode(message)
    assert text in str(e.value)
    assert len(str(e.value)) < 500
    assert e.value.register_id == register_id


def test_payloads_are_deep_as_in_small_messages() -> None:
    deepest = core_limits.MAX_JSON_DEPTH
    for depth, is_accepted in ((deepest, True), (deepest + 1, False), (5_000, False)):
        data = "[" * depth + "]" * depth
        event = EVENT.replace("null", f'{{"payload_type":"json","data":{data}}}')
        message = register(f"{MANY},{event}")
        if is_accepted:
            at_once(steps_of(message))
            continue
        with pytest.raises(ContractError, match="nested") as e:
            decode(message)
        assert e.value.register_id == (7 if depth < 500 else None)


@pytest.mark.parametrize(
    "message",
    [
        register(f"{MANY},{EVENT.replace('2}', '2000000}')}"),
        register(f"{MANY} {EVENT}"),
        register(MANY)[:-2],
        register('{"type":["' + "x" * 2_000_000 + '"],"payload":null}'),
        b'{"msg_type":"ping_req","ping_id":1.5,"x":"%b"}' % (b"x" * 900_000),
        register(f"{MANY},{NEAR}"),
        b'{"msg_type":"ping_req","ping_id":1,"x":"%b"}' % (b"x" * 9_000_000),
    ],
)
def test_what_was_refused_is_gone_at_once(message: bytes) -> None:
    def cycles() -> int:
        gc.collect()
        with contextlib.suppress(ContractError):
            at_once(steps_of(message))
        return gc.collect()

    gc.disable()
    try:
        # no cycle, which would keep the message for long; another thread may leave some
        assert 0 in (cycles() for _ in range(5))
    finally:
        gc.enable()
