"""The document: what it shows is what a gateway does, and what it promises is what the code has."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.framing import FrameDecoder, encode_frame
from eventer_bridge.net.stats import CloseReason
from mariner import limits as mariner_limits
from mariner.wire import contract
from mariner.wire.messages import TYPES, name_of
from tests.protocol import dialogues, document
from tests.protocol.dialogues import Dialogue, MismatchError, Step
from tests.protocol.stage import Stage
from tests.support.peer import INIT, RawPeer
from tests.support.peer import frame as shortest_frame

ROOT: Final = Path(__file__).parents[2]
DIALOGUES: Final = document.read_dialogues()
WORDS: Final = " ".join(document.TEXT.split())


# --- dialogues ------------------------------------------------------------------------------


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda i: i.name)
async def test_dialogues(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage(monkeypatch) as stage:
        await stage.run(dialogue)


def test_the_document_begins_with_the_shortest_dialogue() -> None:
    first = DIALOGUES[0]
    assert first.name == "The shortest dialogue"
    assert [i.send["msg_type"] for i in first.steps[::2]] == ["init_req", "register_req"]
    assert document.TEXT.index("```") == document.TEXT.index("```dialogue")


def test_the_dialogues_show_every_message() -> None:
    shown = {
        message["msg_type"]
        for dialogue in DIALOGUES
        for step in dialogue.steps
        for message in (step.send, step.receive)
        if isinstance(message, dict)
    }
    assert shown == {name_of(i) for i in TYPES}


def test_the_vectors_are_the_dialogues_of_the_document() -> None:
    assert dialogues.FILE.read_text(encoding="utf-8") == dialogues.text_of(DIALOGUES), (
        "python -m tests.protocol.document writes it"
    )
    assert dialogues.load() == DIALOGUES


def altered(message: Any) -> Iterator[Any]:
    """A message with another value in one place, or one field more or less."""
    if isinstance(message, dict):
        for key, value in message.items():
            yield {k: i for k, i in message.items() if k != key}
            for other in altered(value):
                yield {**message, key: other}
        yield {**message, "more": None}
    elif isinstance(message, list):
        for index, value in enumerate(message):
            for other in altered(value):
                yield [*message[:index], other, *message[index + 1 :]]
        if message != message[::-1]:
            yield message[::-1]
        yield [*message, None]
    elif isinstance(message, str):
        if not message.startswith("$"):
            yield f"x{message}"
    else:
        yield None if message is not None else 0
        if isinstance(message, bool):
            yield not message
            yield int(message)
        elif isinstance(message, int):
            yield message + 1


def test_whatever_is_altered_is_noticed() -> None:
    n_altered = 0
    for dialogue in DIALOGUES:
        for step in dialogue.steps:
            if not isinstance(step.receive, dict):
                continue
            names = re.findall(r"\$[a-z]+\d+", json.dumps(step.receive))
            known = {name: f"value {index}" for index, name in enumerate(names)}
            actual = dialogues.filled(step.receive, known)
            dialogues.match(step.receive, actual, {**known})
            for other in altered(step.receive):
                with pytest.raises(MismatchError):
                    dialogues.match(other, actual, {**known})
                n_altered += 1
    assert n_altered > 1_000


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: [*steps[:-1], Step("A", receive={**steps[-1].receive, "register_id": 2})],
        lambda steps: [*steps, Step("A", receive={"msg_type": "up_to_date"})],
        lambda steps: steps[:-1],
        lambda steps: [*steps, Step("A", closes="gateway")],
    ],
    ids=["another answer", "another message", "less than comes", "another end"],
)
async def test_a_wrong_dialogue_fails(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.peer.TIMEOUT_S", 0.3)
    wrong = Dialogue("wrong", change(DIALOGUES[0].steps))
    async with Stage(monkeypatch) as stage:
        with pytest.raises(AssertionError):
            await stage.run(wrong)


def test_sessions_that_do_not_ascend_as_in_the_document_are_noticed() -> None:
    dialogues.check_order({"$session5": 7, "$session12": 9, "$time1": {}})
    for wrong in ({"$session5": 9, "$session12": 7}, {"$session5": 7, "$session12": 7}):
        with pytest.raises(AssertionError):
            dialogues.check_order(wrong)


# --- frames ---------------------------------------------------------------------------------


async def test_frames_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = document.read_frames()
    assert [i.is_sent for i in frames] == [True, False]
    async with Stage(monkeypatch) as stage, await RawPeer.init(stage.port) as peer:
        for frame in frames:
            if frame.is_sent:
                peer.send_raw(frame.data)
            else:
                async with asyncio.timeout(10):
                    assert await peer.reader.readexactly(len(frame.data)) == frame.data
            check_rows(frame)


def check_rows(frame: document.Frame) -> None:
    """The text beside the bytes says what they are."""
    message = frame.data[2:]
    (_, first), (_, second), *rows = frame.rows
    assert first == "m: the length has 1 byte"
    assert second == f"k: the message has {len(message)} bytes"
    assert [data.decode() for data, _ in rows] == [text for _, text in rows]
    json.loads(message)


async def test_headers_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = re.findall(r"^\| ([\d,]+)(.*) \| `([0-9a-f ]+)` \|$", document.TEXT, re.MULTILINE)
    assert len(rows) == 6
    async with Stage(monkeypatch) as stage, await RawPeer.init(stage.port) as peer:
        for number, note, text in rows:
            length, header = int(number.replace(",", "")), bytes.fromhex(text)
            assert (header == encode_frame(b" " * length)[: len(header)]) is ("zeros" not in note)
            assert int.from_bytes(header[1:], "big") == length
            assert (length == net_limits.MAX_FRAME_BYTES) is ("the most" in note)
            if length <= mariner_limits.MAX_LENIENT_BYTES:
                message = b'{"msg_type":"ping_req","ping_id":7}'
                peer.send_raw(header + message + b" " * (length - len(message)))
                assert await peer.receive() == {"msg_type": "ping_res", "ping_id": 7}


async def test_what_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    [sentence] = re.findall(r"These end a connection: (.*?)\.", WORDS)
    wrong = [bytes.fromhex(i) for i in re.findall(r"`([0-9a-f ]+)`", sentence)]
    assert len(wrong) == 3
    async with Stage(monkeypatch) as stage:
        for data in (*wrong, shortest_frame(b'"\xff"'), shortest_frame(b"{")):
            async with await RawPeer.init(stage.port) as peer:
                peer.send_raw(data)
                assert await peer.is_closed_by_server()


def test_the_largest_header_is_allowed() -> None:
    decoder = FrameDecoder(net_limits.MAX_FRAME_BYTES, content="a message")
    decoder.feed(b"\xff" + (1).to_bytes(255, "big") + b"x")
    assert decoder.next_frame() == b"x"
    assert "up to `m` = 255" in WORDS


# --- tables ---------------------------------------------------------------------------------


def properties(definition: Any) -> dict[str, bool]:
    """Properties of a message, by the schema: whether they are required."""
    if "oneOf" in definition:
        branches = [properties(resolve(i)) for i in definition["oneOf"]]
        names = {name for branch in branches for name in branch}
        return {name: any(branch.get(name, False) for branch in branches) for name in names}
    required = definition["required"]
    return {name: name in required for name in definition["properties"]}


def resolve(definition: Any) -> Any:
    *_, name = definition["$ref"].rsplit("/", 1)
    defs = contract.schema()["$defs"]
    return defs.get(name) or defs["messages"][name]


def shown_fields(text: str, of: set[str]) -> dict[str, bool]:
    """Fields that a row of a table names: whether they are required."""
    found = re.findall(r"(\*)?`(\w+)`", text)
    return {name: not optional for optional, name in reversed(found) if name in of}


@pytest.mark.parametrize("message", [name_of(i) for i in TYPES if name_of(i) != "query_req"])
def test_fields_of_messages(message: str) -> None:
    definition = contract.schema()["$defs"]["messages"][message]
    expected = properties(definition)
    del expected["msg_type"]
    table = document.TEXT.split("## Messages", 1)[1]
    row = next(i for i in table.splitlines() if re.match(rf"\|[^|]*`{message}`", i))
    assert shown_fields(row.split("|", 3)[3], {*expected}) == expected


@pytest.mark.parametrize("query", ["latest", "timeseries", "server"])
def test_fields_of_queries(query: str) -> None:
    expected = properties(contract.schema()["$defs"][f"query_req_{query}"])
    for common in ("msg_type", "query_id", "query_type"):
        del expected[common]
    [row] = re.findall(rf"^\| `{query}` \|(.*)$", document.TEXT, re.MULTILINE)
    assert shown_fields(row, {*expected}) == expected


def test_who_sends_what() -> None:
    row = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (client|gateway|both) \|", re.MULTILINE)
    rows = row.findall(document.TEXT)
    senders = {name.strip("`"): who for names, who in rows for name in names.split(", ")}
    both = {"ping_req", "ping_res"}
    of_client = {"init_req", "register_req", "query_req", "events_ack"}
    others = {name_of(i) for i in TYPES} - both - of_client
    assert senders == (
        dict.fromkeys(both, "both")
        | dict.fromkeys(of_client, "client")
        | dict.fromkeys(others, "gateway")
    )


def test_reasons_in_the_log() -> None:
    start = document.TEXT.index("## What closes a connection")
    table = document.TEXT[start : document.TEXT.index("## Limits")]
    cells = re.findall(r"\| ([^|]*) \|$", table, re.MULTILINE)
    told = {reason for cell in cells for reason in re.findall("`(.*?)`", cell)}
    others = {
        CloseReason.CLOSED,
        CloseReason.PEER_CLOSED,
        CloseReason.LOST,
        CloseReason.INTERNAL_ERROR,  # a bug of ours
        CloseReason.OUTCOME_UNKNOWN,  # of Eventer
        CloseReason.NO_HANDSHAKE,  # another line
        CloseReason.TOO_MANY_CONNECTIONS,  # of RSB
    }
    lines = {"reason", "connection refused", "TLS handshake failed"}
    assert told - lines == {i.value for i in CloseReason} - {i.value for i in others}


@pytest.mark.parametrize(
    "promise",
    [
        f"at most {net_limits.MAX_FRAME_BYTES >> 20} MiB (64 KiB before `init`), and"
        f" {limits.MAX_OTHER_MESSAGE_BYTES >> 20} MiB if it is no registration; a registration at"
        f" most {limits.MAX_SESSION_EVENTS:,} events, an answer at most"
        f" {limits.MAX_RESULTS:,} events ({limits.MAX_LATEST_RESULTS:,} of `latest`)",
        f"at most {limits.MAX_TYPE_SEGMENTS} segments and {limits.MAX_TYPE_BYTES:,} bytes",
        f"the gateway ends an answer at {limits.MAX_RESULTS:,} events",
        f"nested at most {limits.MAX_RECEIVED_DEPTH} levels, and {limits.MAX_JSON_DEPTH} in the"
        f" payload of an event; a number has at most {limits.MAX_NUMBER_DIGITS:,} digits in a row",
        f"at most {mariner_limits.MAX_EVENT_COMMAS:,} commas, and"
        f" {mariner_limits.MAX_EVENT_MARKS:,} brackets and quotes",
        f"turns of at most {net_limits.TURN_MESSAGES} messages or"
        f" {net_limits.TURN_S * 1_000:.0f} ms",
        f"takes at most {limits.MAX_MEMORY_BYTES >> 20} MiB together",
        f"A query, or a subscription, has at most {limits.MAX_SUBSCRIPTION_TYPES:,} types with"
        f" {limits.MAX_QUERY_SEGMENTS:,} segments, and all connections of a client subscribe to"
        f" {limits.MAX_CLIENT_SUBSCRIPTIONS:,}",
        f"{net_limits.MAX_NEW_CONNECTIONS:,} before `init`"
        f" ({net_limits.MAX_NEW_CONNECTIONS_PER_ADDRESS} per address) and"
        f" {net_limits.MAX_CONNECTIONS:,} after it ({net_limits.MAX_CONNECTIONS_PER_ADDRESS:,} per"
        f" address), fewer if the limit of open files requires it. A peer has"
        f" {net_limits.FIRST_MESSAGE_TIMEOUT_S:.0f} s from `accept` to `init`",
        f"our clients take {net_limits.MAX_ANSWER_FRAME_BYTES >> 20} MiB",
        f"within {net_limits.FIRST_MESSAGE_TIMEOUT_S:.0f} s of connecting",
        f"A message has {net_limits.MESSAGE_TIMEOUT_S:.0f} s from its first byte to its last",
        f"silent in both directions for {mariner_limits.SERVER_PING_DELAY_S:.0f} s",
        f"after {mariner_limits.SERVER_PING_DELAY_S:.0f} s in which nothing came or went",
        f"no answer to a ping for {net_limits.PING_TIMEOUT_S:.0f} s",
        f"{net_limits.WRITE_STALL_TIMEOUT_S:.0f} s without progress, or"
        f" {net_limits.MAX_SEND_BUFFER_BYTES >> 20} MiB wait",
        f"keeps sending (more than {net_limits.MAX_DROPPED_BYTES >> 20} MiB)",
        f"for {limits.REQUEST_KEYS_S / 3600:.0f} h, unless the client has used"
        f" {limits.REQUEST_KEYS:,} newer ones",
        f"`request_key` (1 to {limits.MAX_REQUEST_KEY_CHARACTERS} characters",
        f"With `cursor` (a name, 1 to {limits.MAX_CURSOR_NAME_CHARACTERS} characters)",
        f"may have {limits.MAX_CLIENT_CURSORS} cursors, all clients together"
        f" {limits.MAX_CURSORS:,}, each cursor {limits.MAX_PARKED:,} parked events",
        f"written within {limits.CURSOR_PERIOD_S:g} s",
        f"more than {limits.LARGE_SESSION_EVENTS:,} events,"
        f" {limits.LARGE_SESSION_BYTES >> 10} KiB of payload or {limits.MANY_NEW_TYPES} new event",
        f"in messages up to {limits.INLINE_SCHEMA_BYTES >> 10} KiB",
        f"a peer is pinged after {net_limits.PING_DELAY_S:.0f} s of silence, and closed after"
        f" another {net_limits.PING_TIMEOUT_S:.0f} s",
    ],
)
def test_bounds_are_those_of_the_code(promise: str) -> None:
    assert promise in WORDS


def test_times_that_tests_change() -> None:
    """``patience`` of the tests makes it longer: the source has it."""
    source = (ROOT / "eventer_bridge" / "limits.py").read_text(encoding="utf-8")
    assert "SCHEMA_CHECK_TIMEOUT_S: Final = 2.0\n" in source
    assert "If a check takes longer than 2 s" in WORDS
    assert "After ten of them, an address gets two answers a second." in WORDS
    assert net_limits.FREE_LOGIN_FAILURES == 10
    assert net_limits.LOGIN_FAILURE_PERIOD_S == 0.5


# --- specifications -------------------------------------------------------------------------


USERS_READ: Final = [
    *ROOT.glob("*.md"),
    *(path for i in ("docs", "schemas", "deploy", "spark") for path in (ROOT / i).rglob("*.md")),
    *(ROOT / "schemas").glob("*.yaml"),
    *(ROOT / "schemas").glob("*.sbs"),
    *(ROOT / "deploy").rglob("*.yaml"),
    ROOT / "eventer_bridge" / "modules" / "README.md",
    dialogues.VECTORS / "README.md",
]


@pytest.mark.parametrize("path", USERS_READ, ids=lambda i: str(i.relative_to(ROOT)))
def test_protocols_are_named_not_numbered(path: Path) -> None:
    number = re.compile(r"(?<![\d,./:_])00[0-4]\b(?![.,:]\d)")
    if path.name not in {"ARCHITECTURE.md", "CHANGELOG.md"}:  # for developers; of the past
        assert not number.findall(path.read_text(encoding="utf-8"))


def test_init_of_other_tests_is_that_of_the_document() -> None:
    assert DIALOGUES[0].steps[0].send == INIT
