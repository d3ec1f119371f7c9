"""What the codec refuses, and how it says so."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits as core_limits
from eventer_bridge.model import INT64_MAX, INT64_MIN, BinaryPayload, JsonPayload, RegisterEvent
from eventer_bridge.slices import at_once
from mariner import limits
from mariner.errors import ContractError
from mariner.wire import codec, contract
from mariner.wire.messages import EventsMsg, PingReq, RegisterReq
from tests.mariner.wire.messages_text import json_payload, ping, register

TYPES = (
    "init_req, init_res, status, events, register_req, register_res, query_req, query_res,"
    " ping_req, ping_res, events_ack, up_to_date, gap, cursor_lost"
)


def refusal(message: bytes | str) -> ContractError:
    with pytest.raises(ContractError) as e:
        codec.decode(message.encode() if isinstance(message, str) else message)
    return e.value


# --- hostile messages ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "message: (root): not JSON: Input data was truncated"),
        (b"[1]", "message: (root): expected object, got array"),
        (b"null", "message: (root): expected object, got null"),
        (b"{", "message: (root): not JSON: Input data was truncated"),
        (
            ping("1") + "x",
            "message: (root): not JSON: JSON is malformed: trailing characters (byte 36)",
        ),
        (ping("NaN"), "message: (root): not JSON: JSON is malformed: invalid character (byte 33)"),
        (
            ping("1", ',"x":-Infinity'),
            "message: (root): not JSON: JSON is malformed: invalid character (byte 40)",
        ),
        (ping("1", ',"x":"\\ud800"'), "ping_req: (root): lone surrogate at byte 40"),
        (ping("1", r',"x":"\udc00"'), "ping_req: (root): lone surrogate at byte 40"),
        (ping("1", r',"x":"\ud800\n","x":1'), "ping_req: (root): lone surrogate at byte 40"),
        (ping("1", r',"x":"\ud83d\ude00\\\ud83d"'), "ping_req: (root): lone surrogate at byte 54"),
        (ping("1", r',"\\ud83d\udC00":1'), "ping_req: (root): lone surrogate at byte 43"),
        (ping("1", r',"x":"\ud83d\ude00\ude00"'), "ping_req: (root): lone surrogate at byte 52"),
        (ping("1", r',"register_events":"\udfff"'), "ping_req: (root): lone surrogate at byte 54"),
        (
            ping("1", r',"x":"\\\ud800'),
            "message: (root): not JSON: Input data was truncated",
        ),
        (
            ping("NaN", r',"x":"\ud800"'),
            "message: (root): not JSON: JSON is malformed: invalid character (byte 33)",
        ),
        (
            ping("1", ',"x":"HERE"').encode().replace(b"HERE", b"\xff"),
            "message: (root): not UTF-8: invalid start byte at byte 40",
        ),
        (
            ping("1", ',"x":"HERE"').encode().replace(b"HERE", b"\xed\xa0\x80"),
            "message: (root): not UTF-8: invalid continuation byte at byte 40",
        ),
        (
            b"\xef\xbb\xbf" + ping("1").encode(),
            "message: (root): not JSON: JSON is malformed: invalid character (byte 0)",
        ),
        (ping("true"), "ping_req: /ping_id: expected integer, got boolean true"),
        (ping("1.5"), "ping_req: /ping_id: expected integer, got number 1.5"),
        (ping("null"), "ping_req: /ping_id: expected integer, got null"),
        (
            ping("9223372036854775808"),
            "ping_req: /ping_id: expected at most 9223372036854775807,"
            " got integer 9223372036854775808",
        ),
        (
            ping("-9223372036854775809"),
            "ping_req: /ping_id: expected at least -9223372036854775808,"
            " got integer -9223372036854775809",
        ),
        (ping("1" * 4301), "ping_req: (root): Integer value out of range - at `$.ping_id`"),
        (ping("[" * 5000 + "]" * 5000), "message: (root): JSON is nested too deeply"),
        (
            ping("1", ',"x":' + "[" * 5000 + "]" * 5000),
            "message: (root): JSON is nested too deeply",
        ),
        (
            ping("[" * 300 + "]" * 300),
            "ping_req: (root): invalid, and nested too deeply to say where",
        ),
        ('{"msg_type":["ping_req"]}', f"message: /msg_type: is array, expected one of {TYPES}"),
        (
            '{"msg_type":"query_req","query_id":1,"query_type":["latest"]}',
            "query_req: /query_type: is array, expected one of latest, timeseries, server",
        ),
        (
            '{"msg_type":"query_req","query_id":1,"query_type":"server","server_id":1,'
            '"persisted":true,"max_results":-1}',
            "query_req: /max_results: expected at least 0, got integer -1",
        ),
        (
            '{"msg_type":"query_req","query_id":1,"query_type":"latest","event_types":null}',
            "query_req: /event_types: expected array, got null",
        ),
    ],
)
def test_hostile_message(message: bytes | str, text: str) -> None:
    assert str(refusal(message)) == text


@pytest.mark.parametrize(
    ("message", "pointer", "reason"),
    [
        (
            register(payload='{"payload_type":"binary","data_type":"","data":"AAA"}'),
            "/register_events/1/payload/data",
            "expected base64, got string 'AAA'",
        ),
        (
            register(payload='{"payload_type":"binary","data_type":"","data":"AAAA\\n"}'),
            "/register_events/1/payload/data",
            "expected base64, got string 'AAAA\\n'",
        ),
        (
            register(payload='{"payload_type":"none","data":0}'),
            "/register_events/1/payload/payload_type",
            "expected binary or json, got string 'none'",
        ),
        (
            register('{"type":["a"],"source_timestamp":{"s":1,"us":1000000},"payload":null}'),
            "/register_events/1/source_timestamp/us",
            "expected at most 999999, got integer 1000000",
        ),
        (
            register('{"type":"a","source_timestamp":null,"payload":null}'),
            "/register_events/1/type",
            "expected array, got string 'a'",
        ),
        (
            register('{"type":["a"],"source_timestamp":null}'),
            "/register_events/1",
            "required property is missing: payload",
        ),
        (
            register(payload=json_payload("[" * 129 + "]" * 129)),
            "/register_events/1/payload/data",
            "nested deeper than 128 levels",
        ),
        (
            register(payload=json_payload("1" * 1001)),
            "/register_events/1/payload/data",
            "a number of more than 1000 digits in a row",
        ),
        (
            register(payload=json_payload(r'[["\ud83d\ude00"],["\ude00\ud83d",1.5,"\udfff"]]')),
            "/register_events/1",
            "lone surrogate at byte 214",
        ),
        (
            register(payload=json_payload(r'{"k":{"\uDBFF":["\udbff"]}}')),
            "/register_events/1",
            "lone surrogate at byte 201",
        ),
        (
            register(payload=r'{"payload_type":"binary","data_type":"\ud800","data":""}'),
            "/register_events/1",
            "lone surrogate at byte 202",
        ),
        (
            register(
                r'{"type":["a","\ud800x"],"source_timestamp":{"s":1.0,"us":0},"payload":null}'
            ),
            "/register_events/1",
            "lone surrogate at byte 130",
        ),
        (register(register_id=r'7.0,"request_key":"\ud800"'), "", "lone surrogate at byte 60"),
        (register(register_id=r'"\ud800","register_id":7'), "", "lone surrogate at byte 42"),
    ],
)
def test_registration_that_can_be_answered(message: str, pointer: str, reason: str) -> None:
    error = refusal(message)
    assert (error.pointer, error.reason) == (pointer, reason)
    assert (error.msg_type, error.register_id) == ("register_req", 7)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("1.00000000000000000001", "expected integer, got number 1.00000000000000000001"),
        ("9007199254740993.5", "expected integer, got number 9007199254740993.5"),
        ("1e-999999999999999999999", "expected integer, got number 1e-9999"),
        ("9223372036854775808.0", "expected at most 9223372036854775807, got integer 92233720"),
        ("-9223372036854775809.0", "expected at least -9223372036854775808, got integer -92233"),
        ("1e19", "expected at most 9223372036854775807, got number 1e+19"),
        ("1e999999999", "expected at most 9223372036854775807, got number 1.797693134862315"),
        ("-1e999999999999999999999", "expected at least -9223372036854775808, got number -1.79769"),
        ("9" * 5_000, "Integer value out of range - at `$.register_events[1].source_timestamp.s`"),
    ],
)
def test_what_is_no_integer_of_64_bits_is_refused(number: str, reason: str) -> None:
    event = f'{{"type":["a"],"source_timestamp":{{"s":{number},"us":1.0}},"payload":null}}'
    for more in ("", "," + ",".join([ODD] * 1_000)):  # too large to be shown to the schema
        error = refusal(register(event + more))
        assert error.register_id == 7
        if more:
            assert "register_events[1].source_timestamp.s`" in error.reason
        elif error.pointer:
            assert error.pointer == "/register_events/1/source_timestamp/s"
            assert error.reason.startswith(reason)
        else:
            assert error.reason == reason


@pytest.mark.parametrize("register_id", [INT64_MIN, INT64_MAX])
def test_registration_of_any_identifier_can_be_answered(register_id: int) -> None:
    assert refusal(register("1", register_id=str(register_id))).register_id == register_id


def test_the_place_of_a_payload_in_a_request_is_told() -> None:
    fine = JsonPayload.of([1] * core_limits.MAX_JSON_DEPTH)
    events = [
        RegisterEvent(("a",), None, i)
        for i in (None, fine, BinaryPayload("", b"[" * 999), JsonPayload(msgspec.Raw(b"1" * 1001)))
    ]
    codec.check_payloads(events[:-1])
    for event in events[:-1]:
        at_once(codec.check_payload_in_steps(event, 8))
    for check in (
        lambda: codec.check_payloads(events, 5),
        lambda: at_once(codec.check_payload_in_steps(events[-1], 8)),
    ):
        with pytest.raises(ContractError) as e:
            check()
        assert str(e.value) == (
            "register_req: /register_events/8/payload/data:"
            " a number of more than 1000 digits in a row"
        )


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_payload_that_is_not_utf8(data: bytes) -> None:
    message = register(payload=json_payload('"HERE"')).encode().replace(b"HERE", data)
    error = refusal(message)
    assert error.reason.startswith("not UTF-8: ")
    assert error.register_id is None


@pytest.mark.parametrize("register_id", ["null", "true", "1.5", '"1"', str(1 << 63), "[]"])
def test_registration_that_cannot_be_answered(register_id: str) -> None:
    error = refusal(register(register_id=register_id))
    assert (error.msg_type, error.register_id, error.pointer) == (
        "register_req",
        None,
        "/register_id",
    )


def test_only_registrations_can_be_answered() -> None:
    assert refusal('{"msg_type":"query_req","register_id":7}').register_id is None
    for message in ("[1]", "{}", '{"msg_type":1,"register_id":7}'):
        error = refusal(message)
        assert (error.msg_type, error.register_id) == (None, None)


def test_depth_and_digits_of_what_is_notified_are_not_bounded() -> None:
    """The registering server's business: a client can read what a server stored."""
    event: dict[str, Any] = {
        "id": {"server": 1, "session": 1, "instance": 1},
        "type": ["a"],
        "timestamp": {"s": 0, "us": 0},
        "source_timestamp": None,
        "payload": {"payload_type": "json", "data": "HERE"},
    }
    text = json.dumps({"msg_type": "events", "events": [event]})
    for data in ("[" * 500 + "]" * 500, "1" * 5000):
        decoded = codec.decode(text.replace('"HERE"', data).encode())
        assert isinstance(decoded, EventsMsg)
        payload = decoded.events[0].payload
        assert isinstance(payload, JsonPayload)
        assert bytes(payload.data) == data.encode()


ODD = '{"type":["a"],"source_timestamp":{"s":1.0,"us":0},"payload":null}'
DEEP = "[" * 513 + "]" * 513


@pytest.mark.parametrize(
    "message",
    [
        ping("1", f',"x":{DEEP}'),
        register(register_id="7.0", payload=f'null,"x":{DEEP}'),
        register(payload=json_payload("1") + f',"x":{DEEP}'),
        register(f'{{"type":["a"],"source_timestamp":{{"s":1,"us":1,"x":{DEEP}}},"payload":null}}'),
        f'{{"msg_type":"query_req","query_id":1,"query_type":"latest","x":{DEEP}}}',
        f'{{"msg_type":"init_res","success":true,"status":"STANDBY","error":{DEEP}}}',
        f'{{"msg_type":"init_res","success":false,"status":{DEEP},"error":""}}',
        '{"msg_type":"register_res","register_id":1,"success":false,"events":' + DEEP + "}",
        '{"msg_type":"register_res","register_id":1,"success":true,"events":[],"error":'
        + DEEP
        + "}",
        '{"msg_type":"events","events":[{"id":{"server":1,"session":1,"instance":1},"type":["a"],'
        '"timestamp":{"s":1,"us":1},"source_timestamp":null,"payload":'
        + json_payload(DEEP)
        + "}]}",
    ],
)
def test_depth_is_bounded_wherever_it_is(message: str) -> None:
    """Below what any interpreter follows, so that it is not theirs."""
    assert refusal(message).reason == "JSON is nested too deeply"
    codec.decode(message.replace(DEEP, "[" * 500 + "]" * 500).encode())


def test_a_large_message_is_not_shown_to_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    many = ",".join([ODD] * 1000)
    wrong = '{"type":["a"],"source_timestamp":{"s":"1","us":0},"payload":null}'
    assert len(many) > limits.MAX_EXPLAINED_BYTES
    monkeypatch.setattr(contract, "explain", lambda value: pytest.fail("was asked"))
    decoded = codec.decode(register(many).encode())
    assert isinstance(decoded, RegisterReq)
    assert len(decoded.register_events) > 1000
    error = refusal(register(f"{many},{wrong}"))
    assert (error.msg_type, error.register_id) == ("register_req", 7)
    assert error.reason.startswith("Expected `int`, got `")
    assert refusal(register(f"{many},{wrong}", register_id=DEEP[200:800])).register_id is None


def test_of_a_large_message_what_is_short_is_told() -> None:
    many = ",".join(["1"] * limits.MAX_EXPLAINED_BYTES)
    error = refusal(f'{{"msg_type":"events","events":[{many}]}}')
    assert (error.msg_type, error.register_id, error.pointer) == ("events", None, "")
    assert error.reason == "Expected `object`, got `int` - at `$.events[0]`"
    for n_bytes, is_told in ((limits.MAX_REASON_BYTES, True), (limits.MAX_REASON_BYTES + 1, False)):
        msg_type = "x" * (n_bytes - len('""'))
        error = refusal(f'{{"msg_type":"{msg_type}","x":[{many}]}}')
        assert error.msg_type == (msg_type if is_told else None)
        assert len(error.reason) <= limits.MAX_REASON_BYTES


def ping_of_size(ping_id: str, n_bytes: int) -> str:
    return ping(ping_id, ',"x":""'.replace('""', f'"{"x" * (n_bytes - len(ping(ping_id)) - 7)}"'))


@pytest.mark.parametrize("n_more", [0, 1])
def test_how_large_a_message_may_be_to_be_explained(n_more: int) -> None:
    message = ping_of_size('"1"', limits.MAX_EXPLAINED_BYTES + n_more)
    assert len(message) == limits.MAX_EXPLAINED_BYTES + n_more
    expected = "Expected `int`, got `str` - at `$.ping_id`" if n_more else "expected integer, got"
    assert refusal(message).reason.startswith(expected)


@pytest.mark.parametrize("n_more", [0, 1])
def test_how_large_a_message_may_be_to_be_written_anew(n_more: int) -> None:
    message = ping_of_size("1.0", limits.MAX_LENIENT_BYTES + n_more)
    if not n_more:
        assert codec.decode(message.encode()) == PingReq(1)
    else:
        assert refusal(message).reason == "Expected `int`, got `float` - at `$.ping_id`"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            '{"msg_type":"query_req","query_id":1,"query_type":"server","server_id":1,'
            '"persisted":true,"max_results":-1,"x":',
            "max_results is negative",
        ),
        (
            '{"msg_type":"register_res","register_id":1,"success":true,"error":',
            "required property is missing",
        ),
    ],
)
def test_what_is_wrong_with_a_message_that_is_not_explained(message: str, reason: str) -> None:
    assert refusal(f'{message}"{"x" * limits.MAX_EXPLAINED_BYTES}"}}').reason == reason
    assert refusal(f"{message}1}}").reason != reason


def test_token_is_never_shown() -> None:
    message = (
        '{"msg_type":"init_req","client_name":"a","client_token":["secret"],'
        '"subscriptions":[],"server_id":null,"persisted":true}'
    )
    assert str(refusal(message)) == "init_req: /client_token: expected string or null"


@given(st.binary(max_size=40))
def test_base64_of_any_bytes(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    payload = f'{{"payload_type":"binary","data_type":"t","data":"{text}"}}'
    decoded = codec.decode(register(payload=payload).encode())
    assert isinstance(decoded, RegisterReq)
    assert decoded.register_events[-1].payload == BinaryPayload("t", data)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda i: i.encode("utf-8", "ignore")))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        codec.decode(data)
    except ContractError:
        return
    assert json.loads(data)["msg_type"]
