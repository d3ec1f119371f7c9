"""``tests/vectors``: the codec has them, and a gateway does what they say."""

import json
import logging
import re
from collections import Counter
from typing import Any, Final

import msgspec
import pytest

from eventer_bridge.net.framing import FrameDecoder, encode_frame
from mariner.errors import RemoteProtocolError
from mariner.wire import codec, contract
from mariner.wire.messages import TYPES, name_of
from mariner.wire.protocol import MarinerProtocol, Role
from tests.protocol import dialogues
from tests.protocol.stage import Stage
from tests.support.peer import INIT, RawPeer, frame

PAGE: Final = (dialogues.VECTORS / "README.md").read_text(encoding="utf-8")


def load(name: str) -> Any:
    return json.loads((dialogues.VECTORS / name).read_text(encoding="utf-8"))


FRAMING: Final[dict[str, list[Any]]] = load("framing.json")
MESSAGES: Final[list[Any]] = load("messages.json")
REFUSALS: Final[list[Any]] = load("refusals.json")


def name_in(vector: Any) -> str:
    return str(vector["name"])


# --- framing --------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", FRAMING["encode"], ids=name_in)
def test_frames_are_encoded(vector: Any) -> None:
    message = vector["message"].encode()
    assert bytes.fromhex(vector["bytes"]) == encode_frame(message) == frame(message)


@pytest.mark.parametrize("n_bytes", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("vector", FRAMING["decode"], ids=name_in)
def test_frames_are_decoded_however_they_are_cut(vector: Any, n_bytes: int) -> None:
    decoder = FrameDecoder(1 << 20, content="a message")
    data = bytes.fromhex(vector["bytes"])
    found = []
    for begin in range(0, len(data), n_bytes):
        decoder.feed(data[begin : begin + n_bytes])
        while (message := decoder.next_frame()) is not None:
            found.append(message.decode())
    assert found == vector["messages"]


@pytest.mark.parametrize("vector", FRAMING["refuse"], ids=name_in)
async def test_wrong_frames_are_refused(vector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes.fromhex(vector["bytes"])
    client = MarinerProtocol(Role.CLIENT)
    client.receive_data(data)
    with pytest.raises(RemoteProtocolError):
        client.next_message()
    async with Stage(monkeypatch) as stage, await RawPeer.init(stage.port) as peer:
        peer.send_raw(data)
        assert await peer.is_closed_by_server()


# --- messages -------------------------------------------------------------------------------


def at(value: Any, pointer: str) -> Any:
    """What a JSON pointer points to."""
    for key in pointer.split("/")[1:]:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@pytest.mark.parametrize("vector", MESSAGES, ids=name_in)
def test_messages(vector: Any) -> None:
    text = vector["message"]
    value = json.loads(text)
    assert contract.explain(value) is None
    assert json.loads(codec.encode(codec.decode(text.encode()))) == value
    for pointer, digits in vector["integers"].items():
        assert str(at(value, pointer)) == digits


def test_there_is_every_message_of_both_sides() -> None:
    shown = {(json.loads(i["message"])["msg_type"], i["from"]) for i in MESSAGES}
    assert {name for name, _ in shown} == {name_of(i) for i in TYPES}
    assert Counter(name for name, _ in shown if name.startswith("ping")) == {
        "ping_req": 2,
        "ping_res": 2,
    }
    beyond = [i for v in MESSAGES for i in v["integers"].values() if abs(int(i)) > 1 << 53]
    assert {str(2**63 - 1), str(-(2**63)), str(2**53 + 1)} <= {*beyond}


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", REFUSALS, ids=name_in)
async def test_refusals(
    vector: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mariner")
    assert {*vector} <= {"name", "client", "message", "bytes", "answer", "closes", "log"}
    async with Stage(monkeypatch) as stage, await RawPeer.connect(stage.port) as peer:
        if vector["client"] is not None:
            answer = await peer.request({**INIT, "client_name": vector["client"]})
            assert answer["success"]
        if "bytes" in vector:
            peer.send_raw(bytes.fromhex(vector["bytes"]))
        else:
            peer.send(vector["message"].encode())
        if vector["answer"] is not None:
            assert await peer.receive() == vector["answer"]
        if vector["closes"]:
            assert await peer.is_closed_by_server()
        else:
            pong = await peer.request({"msg_type": "ping_req", "ping_id": 1})
            assert pong == {"msg_type": "ping_res", "ping_id": 1}
    details = [vars(i).get("detail") for i in caplog.records if i.message == "closing connection"]
    assert details == ([vector["log"]] if vector["closes"] else [])


# --- the page -------------------------------------------------------------------------------


def test_the_page_names_every_file_and_field() -> None:
    files = {i.name for i in dialogues.VECTORS.iterdir()} - {"README.md"}
    assert {*re.findall(r"`([\w.]+\.(?:json|yaml))`", PAGE)} == files
    steps = {field.encode_name for field in msgspec.structs.fields(dialogues.Step)}
    vectors = [*MESSAGES, *REFUSALS, *(i for part in FRAMING.values() for i in part)]
    fields = {field for vector in vectors for field in vector} | {*FRAMING} | steps
    assert {i for i in fields if f"`{i}`" not in PAGE} == set()
