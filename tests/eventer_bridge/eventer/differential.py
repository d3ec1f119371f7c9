"""What our decoder and both implementations of hat-sbs make of the same bytes.

Both of theirs, because each has its own faults: the one in C cuts integers to 64 bits, the
one in Python takes less text than was announced. Neither says whether something follows the
message, so a mark is appended that must be found after it. What makes a well-formed message
inadmissible is written down here again, in other words.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
from hat import sbs as hat_sbs
from hat.event.common import sbs_repo

from eventer_bridge.errors import InvalidMessageError
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import MsgQueryReq, MsgQueryRes, RefusedReq
from eventer_bridge.model import EventId, QueryLatestParams, QueryResult
from tests.eventer_bridge.eventer.message_generator import NAMES
from tests.support import json_oracle

Verdict: TypeAlias = Literal["malformed", "needless zeros", "inadmissible", "accepted"]

REQUESTS: Final = {f"HatEventer.Msg{i}Req" for i in ("Init", "Register", "Query")}
SIFTED: Final = {"HatEventer.MsgEventsNotify", "HatEventer.MsgQueryRes"}
"""Of these, only the events that are inadmissible are refused."""

MARK: Final = b"the message ends here"
ENCODED_MARK: Final = b"\x01" + bytes((0x80 + len(MARK),)) + MARK
"""What comes before it is not taken for the beginning of its length: a Boolean is between."""
MARKED: Final = hat_sbs.Repository(
    sbs_repo,
    "module Marked "
    + " ".join(
        f"{name.partition('.')[2]} = Record {{ message: {name}, is_marked: Boolean, mark: Bytes }}"
        for name in NAMES
    ),
)


class MalformedError(Exception):
    """Says hat-sbs."""


def hat_value(name: str, data: bytes) -> Any:
    """What both implementations of hat-sbs make of a message."""
    values = []
    for serializer in (hat_sbs.PySerializer, hat_sbs.CSerializer):
        try:
            value = MARKED.decode(
                name.replace("HatEventer", "Marked"), data + ENCODED_MARK, serializer=serializer
            )
        except (IndexError, UnicodeDecodeError, SystemError, MemoryError) as e:
            raise MalformedError(repr(e)) from None
        if value["mark"] != MARK:
            raise MalformedError("ends elsewhere")
        values.append(with_bytes(value["message"]))
    if values[0] != values[1]:
        raise MalformedError("an integer of more than 64 bits")
    return values[0]


def with_bytes(value: Any) -> Any:
    """The same with bytes in place of views of memory."""
    if isinstance(value, dict):
        return {key: with_bytes(i) for key, i in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_bytes(i) for i in value)
    return bytes(value) if isinstance(value, memoryview) else value


def parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All parts of a message, each after the name of its property or choice."""
    yield name, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from parts(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from parts(each, name)
    elif isinstance(value, tuple):
        yield from parts(value[1], name if value[0] == "value" else value[0])


def is_admissible(name: str, value: Any) -> bool:
    for key, part in parts(value, name):
        if key == "us" and not 0 <= part < 1_000_000:
            return False
        if key == "maxResults" and isinstance(part, int) and part < 0:
            return False
        if key == "json" and not is_payload(part, is_registered=name.endswith("RegisterReq")):
            return False
        if isinstance(part, list) and len(part) > 65 and isinstance(part[0], str):
            return False
    return True


def is_payload(text: str, *, is_registered: bool) -> bool:
    try:
        value = json_oracle.parse(text.encode())
    except (ValueError, RecursionError):
        return False
    return not is_registered or json_oracle.keeps_bounds(value)


def sifted(value: Any) -> tuple[Any, list[Any]]:
    """A message with its admissible events only, and the identifiers of the others."""
    events = value["events"] if isinstance(value, dict) else value
    kept = [event for event in events if is_admissible("Event", event)]
    others = [event["id"] for event in events if not is_admissible("Event", event)]
    return ({**value, "events": kept} if isinstance(value, dict) else kept), others


def judge_extended(name: str, data: bytes, decoded: MsgQueryReq | MsgQueryRes) -> None:
    """Of what only we know: hat-sbs does not look at what is ours."""
    if isinstance(decoded, MsgQueryReq):
        params = msgspec.structs.replace(decoded.params, last_event_id=None)
        assert sbs_repo.decode(name, data) == sbs_repo.decode(*codec.encode(MsgQueryReq(params)))
        assert codec.decode(*codec.encode(decoded)) == decoded, data
        return
    kept, others = sifted(with_bytes(sbs_repo.decode(name, data)))
    assert [msgspec.to_builtins(i.id) for i in decoded.refused] == others, data
    result = msgspec.structs.replace(decoded.result, deleted=None, n_deletions=0)
    assert sbs_repo.decode(*codec.encode(MsgQueryRes(result))) == kept, data
    admitted = MsgQueryRes(decoded.result)
    assert codec.decode(*codec.encode(admitted)) == admitted, data


def judge(name: str, data: bytes) -> Verdict:
    """What a message is.

    Raises:
        AssertionError: we and hat-sbs disagree.
    """
    decoded, reason = None, ""
    try:
        decoded = codec.decode(name, data)
    except InvalidMessageError as e:
        reason = str(e)
    is_refused = decoded is None or isinstance(decoded, RefusedReq)
    match decoded:
        case (
            MsgQueryReq(params=QueryLatestParams(last_event_id=EventId()))
            | MsgQueryRes(result=QueryResult(deleted=EventId()))
        ):
            judge_extended(name, data, decoded)
            return "accepted"

    try:
        value = hat_value(name, data)
    except MalformedError:
        assert is_refused, (name, data)
        return "malformed"
    if "more than 10 bytes" in reason:
        return "needless zeros"
    if name in SIFTED:
        assert decoded is not None, (name, data, reason)
        kept, others = sifted(value)
        assert [msgspec.to_builtins(i.id) for i in decoded.refused] == others, (name, data)  # type: ignore[union-attr]  # of both
        assert sbs_repo.decode(*codec.encode(decoded)) == kept, (name, data)  # type: ignore[arg-type]  # it is a message
        return "inadmissible" if others else "accepted"
    if not is_admissible(name, value):
        assert is_refused, (name, data)
        assert (decoded is not None) == (name in REQUESTS), (name, data)
        return "inadmissible"
    assert decoded is not None, (name, data, reason)
    assert not isinstance(decoded, RefusedReq), (name, data, decoded)
    encoded_name, encoded = codec.encode(decoded)
    assert encoded_name == name
    assert sbs_repo.decode(name, encoded) == value, (name, data)
    return "accepted"
