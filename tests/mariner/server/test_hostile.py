"""What a peer does wrong: a defined outcome each, and the server lives on."""

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits as net_limits
from mariner.gateway.gateway import Gateway
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import INIT, RawPeer, event, frame, register_req

QUERY = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}
ID = {"server": 1, "session": 1, "instance": 1}
BINARY = {"payload_type": "binary", "data_type": "t", "data": ""}
PING = {"msg_type": "ping_req", "ping_id": 1}


def body(text: str) -> bytes:
    """A registration (id 5) with this text as its payload's data."""
    return (
        '{"msg_type":"register_req","register_id":5,"register_events":[{"type":["a"],'
        '"source_timestamp":null,"payload":{"payload_type":"json","data":' + text + "}}]}"
    ).encode("utf-8", "surrogatepass")


def binary(data: str) -> dict[str, Any]:
    return {
        "type": ["a"],
        "source_timestamp": None,
        "payload": {"payload_type": "binary", "data_type": "t", "data": data},
    }


async def assert_alive(gateway: Gateway) -> None:
    async with await RawPeer.init(gateway.mariner.port) as peer:
        response = await peer.request(register_req(1, event("alive")))
        assert response["success"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (register_req(5, binary("QQ=")), "payload/data"),
        (register_req(5, binary("Q Q==")), "payload/data"),
        (register_req(5, event("a", "?")), "'?' and '*' are for queries only"),
        (register_req(5, event("*")), "'?' and '*' are for queries only"),
        (register_req(5, event(*["x"] * 65)), "65 segments"),
        (register_req(5, {**event("a"), "type": "a"}), "register_events/0/type"),
        (register_req(5, {**event("a"), "type": [True]}), "register_events/0/type/0"),
        (
            register_req(5, {**event("a"), "source_timestamp": {"s": 0, "us": 1_000_000}}),
            "register_events/0/source_timestamp",
        ),
        (
            register_req(5, {**event("a"), "source_timestamp": {"s": True, "us": 0}}),
            "register_events/0/source_timestamp",
        ),
        (body("[" * 200 + "]" * 200), "register_events/0/payload"),
        (body("1" * 2000), "register_events/0/payload"),
        (
            body("1").replace(b'"source_timestamp":null', b'"source_timestamp":{"s":1e30,"us":0}'),
            "register_events/0/source_timestamp",
        ),
        (
            body("1").replace(b'"source_timestamp":null', b'"source_timestamp":{"s":1.5,"us":0}'),
            "register_events/0/source_timestamp/s: expected integer, got number 1.5",
        ),
        (body('"\\ud800"'), "register_events/0: lone surrogate at byte 141"),
        (body('["' + "x" * 50_000 + '","\\udc00"]'), "register_events/0: lone surrogate at byte 5"),
        (body('["' + "x" * 200_000 + '","\\udc00"]'), "register_events/0: lone surrogate"),
        (
            body("1").replace(b'["a"]', b'["a","\\ud800"]'),
            "register_events/0: lone surrogate at byte 76",
        ),
    ],
)
async def test_a_wrong_registration_is_answered(message: Any, error: str) -> None:
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        response = await peer.request(message)
        assert response["msg_type"] == "register_res"
        assert response["register_id"] == 5
        assert response["success"] is False
        assert error in response["error"]
        assert "events" not in response
        # the same connection goes on
        assert (await peer.request(register_req(6, event("a"))))["success"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "empty"),
        (b"not json", ""),
        (b"[1]", ""),
        (b"{}", "msg_type"),
        (b'{"msg_type":"nothing"}', "msg_type"),
        (body("NaN"), ""),
        (b'{"msg_type":"ping_req","ping_id":1,"x":"\\ud800"}', "lone surrogate at byte 40"),
        (body('"\ud800"'), ""),
        (b'{"msg_type":"ping_req","ping_id":true}', "ping_id"),
        (b'{"msg_type":"ping_req","ping_id":9223372036854775808}', "ping_id"),
        (b'{"msg_type":"ping_req","ping_id":1.5}', "ping_id"),
        ({"msg_type": "register_req", "register_events": []}, "register_id"),
        ({**QUERY, "max_results": -1}, "max_results"),
        ({**QUERY, "event_types": None}, "event_types"),
        ({**QUERY, "event_types": [["*", "a"]]}, "'*'"),
        ({**QUERY, "order": "UP"}, "order"),
        ({**QUERY, "ids": 1}, "/ids: expected array, got integer 1"),
        ({**QUERY, "ids": [1]}, "/ids/0: expected object, got integer 1"),
        ({**QUERY, "ids": [{**ID, "session": "1"}]}, "/ids/0/session: expected integer"),
        ({**QUERY, "ids": [{**ID, "server": 1 << 63}]}, "/ids/0/server: expected at most"),
        ({**QUERY, "ids": [ID] * 4097}, "Expected `array` of length <= 4096 - at `$.ids`"),
        ({**QUERY, "ids": [ID] * 200_000}, "7600115 bytes, at most 1048576 are allowed"),
        ({**QUERY, "payload": None}, "/payload: expected object, got null"),
        ({**QUERY, "payload": [1]}, "/payload: expected object, got array"),
        ({**QUERY, "payload": {"payload_type": "json"}}, "required property is missing: data"),
        ({**QUERY, "payload": {**BINARY, "data": "QQ="}}, "/payload/data: expected base64"),
        ({**QUERY, "payload": {**BINARY, "payload_type": "sbs"}}, "/payload/payload_type"),
        ({**QUERY, "unique_type": "yes"}, "/unique_type: expected boolean, got string 'yes'"),
        (INIT, "init_req"),
        ({"msg_type": "events", "events": []}, "events"),
        (b"[" * 100_000, ""),
    ],
)
async def test_what_cannot_be_answered_closes_with_the_reason_in_the_log(
    message: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mariner")
    async with running_gateway() as gateway:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            peer.send(message)
            assert await peer.is_closed_by_server()
        [record] = [r for r in caplog.records if r.message == "closing connection"]
        detail = record.__dict__["detail"]
        assert reason in detail
        assert record.__dict__["client"] == "app"
        await assert_alive(gateway)


async def test_a_payload_that_nobody_can_have_is_found_nowhere(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        assert (await peer.request(register_req(1, event("a", value=[1]))))["success"]
        query: dict[str, Any] = {**QUERY, "payload": {"payload_type": "json", "data": "DATA"}}
        for data in "[" * 500 + "]" * 500, "1" * 100_000, "1e999999999999999999999":
            peer.send(msgspec.json.encode(query).replace(b'"DATA"', data.encode()))
            assert (await peer.receive())["events"] == []
        query["payload"]["data"] = [1.0]
        assert len((await peer.request(query))["events"]) == 1


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({**INIT, "client_token": "wrong"}, "invalid client name or token"),
        ({**INIT, "client_name": "nobody"}, "invalid client name or token"),
        ({**INIT, "client_name": 1}, "client_name"),
        ({**INIT, "subscriptions": [["*", "a"]]}, "'*'"),
        ({**INIT, "persisted": 0}, "persisted"),
        ({"msg_type": "init_req", "client_name": "app"}, "required"),
        ({**INIT, "server_id": True}, "server_id"),
    ],
)
async def test_a_wrong_init_is_declined(message: Any, error: str) -> None:
    async with running_gateway() as gateway:
        async with await RawPeer.connect(gateway.mariner.port) as peer:
            response = await peer.request(message)
            assert response["msg_type"] == "init_res"
            assert response["success"] is False
            assert error in response["error"]
            assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.declined == 1
        await assert_alive(gateway)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (PING, "ping_req from the client is not allowed before init_req"),
        (register_req(1), "register_req from the client is not allowed before init_req"),
        (QUERY, "query_req from the client is not allowed before init_req"),
        ({"msg_type": "hello"}, "hello: /msg_type: is string 'hello', expected one of init_req"),
        (b"garbage", "message: (root): not JSON: "),
        ("\x00", "frame header: first byte is 0, expected 1 to 255"),
        ("\x01\x00", "empty frame, expected a JSON message"),
        ("GET / HTTP/1.1\r\n\r\n", "frame of 2**64 or more bytes announced, at most 65536 are"),
    ],
)
async def test_what_comes_before_init_is_told_why_it_is_closed(
    sent: Any, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mariner")
    async with running_gateway() as gateway:
        async with await RawPeer.connect(gateway.mariner.port) as peer:
            peer.send_raw(sent.encode()) if isinstance(sent, str) else peer.send(sent)
            answer = await peer.receive()
            assert answer == {"msg_type": "init_res", "success": False, "error": answer["error"]}
            assert answer["error"].startswith(error)
            assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.closed == {"protocol error": 1}
        [record] = [r for r in caplog.records if r.message == "closing connection"]
        assert record.__dict__["detail"] == answer["error"]


async def test_the_token_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_gateway() as gateway:
        for init in ({"client_token": "hunter2"}, {"client_token": "hunter2", "server_id": "x"}):
            async with await RawPeer.connect(gateway.mariner.port) as peer:
                await peer.request({**INIT, **init})
    assert caplog.records
    for record in caplog.records:
        assert "hunter2" not in str(record.__dict__)


@pytest.mark.parametrize("initialised", [False, True])
async def test_a_gigabyte_announced_is_refused_before_it_is_kept(initialised: bool) -> None:
    async with running_gateway() as gateway:
        connect = RawPeer.init if initialised else RawPeer.connect
        before = psutil.Process().memory_info().rss
        async with await connect(gateway.mariner.port) as peer:
            peer.send_raw(b"\x04" + (1 << 30).to_bytes(4, "big") + b"x" * 1_000_000)
            if not initialised:
                assert "1073741824 bytes announced" in (await peer.receive())["error"]
            assert await peer.is_closed_by_server()
        assert psutil.Process().memory_info().rss - before < 16 << 20
        await assert_alive(gateway)


async def test_before_init_a_client_has_few_bytes() -> None:
    async with running_gateway() as gateway:
        async with await RawPeer.connect(gateway.mariner.port) as peer:
            size = net_limits.MAX_FIRST_FRAME_BYTES + 1
            peer.send_raw(b"\x04" + size.to_bytes(4, "big"))
            expected = "frame of 65537 bytes announced, at most 65536 are allowed"
            assert (await peer.receive())["error"] == expected
            assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.closed["protocol error"] == 1


async def test_before_init_a_client_has_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "FIRST_MESSAGE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(core_limits, "SWEEP_PERIOD_S", 0.02)
    async with running_gateway() as gateway:
        async with await RawPeer.connect(gateway.mariner.port) as peer:
            assert (await peer.receive())["error"] == "no init_req within 0.05 s"
            assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.closed["no first message"] == 1


async def test_garbage_behind_registrations_under_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(path=tmp_path / "store") as gateway:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            for i in range(100):
                peer.send(register_req(i, event("a")))
            peer.send(b"garbage")
            await peer.reader.read()
        await assert_alive(gateway)
        async with await RawPeer.init(gateway.mariner.port) as peer:
            result = await peer.request({**QUERY, "event_types": [["a"]]})
            assert len(result["events"]) == 100
    # no callback came too late for the closed connection
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_a_frame_header_of_wrong_size() -> None:
    async with running_gateway() as gateway:
        for header in (b"\x00", b"\xff\x01", b"GET / HTTP/1.1\r\n\r\n"):
            async with await RawPeer.init(gateway.mariner.port) as peer:
                peer.send_raw(header)
                assert await peer.is_closed_by_server()


async def test_a_frame_header_longer_than_needed() -> None:
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        message = b'{"msg_type":"ping_req","ping_id":9007199254740993.0}'
        for size in (8, 9, 255):
            peer.send_raw(bytes([size]) + len(message).to_bytes(size, "big") + message)
            assert await peer.receive() == {"msg_type": "ping_res", "ping_id": 9007199254740993}


async def test_cut_off_in_the_middle_of_a_frame(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mariner")
    async with running_gateway() as gateway:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            peer.send_raw(frame(b'{"msg_type":"ping_req","ping_id":1}')[:10])
            peer.writer.write_eof()
            assert await peer.is_closed_by_server()
        assert "in the middle of a frame" in caplog.records[-1].__dict__["detail"]
        await assert_alive(gateway)


async def test_one_byte_at_a_time() -> None:
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        for byte in frame(b'{"msg_type":"ping_req","ping_id":7}'):
            peer.send_raw(bytes([byte]))
            await asyncio.sleep(0)
        assert await peer.receive() == {"msg_type": "ping_res", "ping_id": 7}


async def test_who_stops_sending_still_gets_its_answers() -> None:
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        for i in range(10):
            peer.send(register_req(i, event("a")))
        peer.send(QUERY)
        peer.writer.write_eof()
        answers = [await peer.receive_answer() for _ in range(11)]
        assert sorted(a["register_id"] for a in answers if "register_id" in a) == list(range(10))
        assert await peer.is_closed_by_server()


async def test_binary_payloads_come_back_as_they_were() -> None:
    data = base64.b64encode(bytes(range(256))).decode()
    async with running_gateway() as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        response = await peer.request(register_req(1, binary(data)))
        assert response["events"][0]["payload"]["data"] == data
        result = await peer.request({**QUERY, "event_types": [["a"]]})
        assert result["events"] == response["events"]


LONG = '\\"ü' * 200_000
LONG_EVENTS = [
    event("other", LONG),
    event("other", *["x"] * 100_000),
    event("app", LONG),
    event("app", LONG[:300], value=LONG),
    {**event("app", "n"), "payload": {"payload_type": LONG, "data": 1}},
    {**event("app", "n"), LONG: 1, "type": LONG},
]


async def test_answers_and_log_do_not_grow_with_what_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = {
        **APP,
        "register_events": [
            {"subscriptions": [["app", "*"]], "schema_id": "test://integers"},
        ],
    }
    schemas = [{"$id": "test://integers", "type": "integer"}]
    async with running_gateway([client], schemas=schemas) as gateway:
        port = gateway.mariner.port
        async with await RawPeer.init(port) as peer:
            for message in LONG_EVENTS:
                response = await peer.request(register_req(5, message))
                assert response["success"] is False
                assert len(response["error"]) <= core_limits.MAX_REASON_CHARACTERS
            assert (await peer.request(register_req(6, event("app", "n"))))["success"]
        for subscriptions in [["*", LONG[:20_000]]], [["a"] * 10_000], [LONG[:20_000]]:
            async with await RawPeer.connect(port) as peer:
                response = await peer.request({**INIT, "subscriptions": subscriptions})
                assert response["success"] is False
                assert len(response["error"]) <= core_limits.MAX_REASON_CHARACTERS
    assert caplog.records
    assert max(len(str(record.__dict__)) for record in caplog.records) < 5_000
