"""What modules make by hand is checked where it enters, whichever way that is."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError, ModuleError
from eventer_bridge.model import (
    BinaryPayload,
    JsonPayload,
    Payload,
    ProcessEvent,
    RegisterEvent,
    Timestamp,
)
from eventer_bridge.subscription import EVERYTHING
from tests.eventer_bridge.modules.scripted import (
    NAME,
    Scripted,
    register,
    register_event,
    running,
    stored,
    types,
)

SURROGATE = "\ud800"


def raw(text: str | bytes) -> JsonPayload:
    return JsonPayload(msgspec.Raw(text.encode() if isinstance(text, str) else text))


def deep(n_levels: int) -> str:
    return "[" * n_levels + "]" * n_levels


def junk(data: Any) -> Any:
    """What a type checker would refuse."""
    return data


WRONG: list[tuple[RegisterEvent, type[Exception], str]] = [
    (RegisterEvent(("a", SURROGATE), None, None), InvalidEventError, "has a lone surrogate"),
    (
        RegisterEvent(("a",), Timestamp(0, 1_000_000), None),
        InvalidEventError,
        "timestamp out of range: s=0 us=1000000",
    ),
    (
        RegisterEvent(("a",), None, BinaryPayload(SURROGATE, b"")),
        InvalidEventError,
        "label '.ud800' has a lone",
    ),
    (
        RegisterEvent(("a",), None, BinaryPayload("x", junk("y"))),
        TypeError,
        "expected str and bytes",
    ),
    (
        RegisterEvent(("a",), None, BinaryPayload(junk(1), b"y")),
        TypeError,
        "expected str and bytes",
    ),
    (
        RegisterEvent(("a",), None, JsonPayload(junk(b"{not json"))),
        TypeError,
        "is bytes, expected msgspec.Raw",
    ),
    (
        RegisterEvent(("a",), None, raw("{not json")),
        InvalidEventError,
        "^payload is not JSON: JSON is malformed",
    ),
    (
        RegisterEvent(("a",), None, raw(b'"\xff"')),
        InvalidEventError,
        "^payload is not JSON: 'utf-8' codec",
    ),
    (RegisterEvent(("a",), None, raw("1 2")), InvalidEventError, "^payload is not JSON: "),
    (RegisterEvent(("a",), None, raw("")), InvalidEventError, "^payload is not JSON: "),
    (
        RegisterEvent(("a",), None, raw(deep(limits.MAX_JSON_DEPTH + 1))),
        InvalidEventError,
        "nested deeper than",
    ),
    (RegisterEvent(("a",), None, raw(deep(100_000))), InvalidEventError, "nested too deeply"),
    (
        RegisterEvent(("a",), None, raw("9" * (limits.MAX_NUMBER_DIGITS + 1))),
        InvalidEventError,
        "digits in a row",
    ),
    (RegisterEvent(("a",), Timestamp(junk(1.5), 0), None), TypeError, "expected integers"),
    (RegisterEvent(("a",), Timestamp(1, junk(True)), None), TypeError, "expected integers"),
    (RegisterEvent(("a",), junk(1), None), TypeError, "expected a Timestamp or None"),
    (RegisterEvent(junk(["a"]), None, None), TypeError, "expected a tuple of str"),
    (RegisterEvent(junk(("a", 1)), None, None), TypeError, "expected a tuple of str"),
    (
        RegisterEvent(("a",), None, junk(1)),
        TypeError,
        "expected JsonPayload, BinaryPayload or None",
    ),
]


@pytest.mark.parametrize(("event", "error", "text"), WRONG)
async def test_what_no_client_could_send_enters_nowhere(
    event: RegisterEvent, error: type[Exception], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(EVERYTHING) as (core, [module]):
        by_hand = ProcessEvent(module.source, event.type, event.source_timestamp, event.payload)

        async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
            return [by_hand] if events[0].type == ("returned",) else []

        module.on_process = on_process
        with pytest.raises(error, match=text):
            module.engine.create_process_event(module.source, event)
        with pytest.raises(error, match=text):
            await module.engine.register([by_hand])
        with pytest.raises(ModuleError, match=f"^module {NAME} failed: {error.__name__}"):
            await register(core, register_event("returned"))
        assert (core.pending_events, await stored(core)) == (0, [])
        assert types(await register(core, register_event("next"))) == ["next"]
    assert {i.message for i in caplog.records} == {"module failed"}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        raw('{"ä": [1e999, "\\ud83d\\ude00"]}'),
        raw(deep(limits.MAX_JSON_DEPTH)),
        BinaryPayload("😀", b"\xff"),
        BinaryPayload("", b""),
    ],
)
async def test_what_a_client_could_send_enters(payload: Payload | None) -> None:
    event = RegisterEvent(("a", "ä", ""), Timestamp(-1, 999_999), payload)

    async def on_process(module: Scripted, events: Sequence[ProcessEvent]) -> list[Any]:
        made = module.engine.create_process_event(module.source, event)
        return [made] if events[0].type == ("ask",) else []

    async with running(EVERYTHING) as (core, [module]):
        module.on_process = on_process
        _, added = await register(core, register_event("ask"))
        assert (added.type, added.source_timestamp, added.payload) == (
            event.type,
            event.source_timestamp,
            payload,
        )
