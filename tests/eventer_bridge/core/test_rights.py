"""What a client may register."""

import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.rights import (
    ClientConfig,
    RegisterRule,
    Rights,
    everything,
)
from eventer_bridge.model import BinaryPayload, JsonPayload, RegisterEvent
from tests.support.schemas import NUMBERS, checkers

# --- what may be registered ---------------------------------------------------------------

POSITIVE: Final[dict[str, Any]] = {"$id": "test://positive", "items": {"minimum": 1}}

RULES = (
    RegisterRule((("free",), ("free", "of", "*"))),
    RegisterRule((("numbers", "*"),), "test://numbers"),
    RegisterRule((("numbers", "positive"),), "test://positive"),
)


@pytest.fixture
async def schemas() -> AsyncIterator[PayloadSchemas]:
    schemas = PayloadSchemas([NUMBERS, POSITIVE])
    yield schemas
    await schemas.async_close()


def rights_of(schemas: PayloadSchemas, *rules: RegisterRule) -> Rights:
    return Rights(ClientConfig("app", None, (), rules), schemas)


def event(name: str, payload: object = None) -> RegisterEvent:
    """An event of a type that is given as ``a/b``."""
    if not isinstance(payload, BinaryPayload):
        payload = JsonPayload.of(payload)
    return RegisterEvent(tuple(name.split("/")), None, payload)


async def refusal(rights: Rights, *events: RegisterEvent) -> str | None:
    """Of a registration, as of a large one."""
    reason = rights.refusal(events)
    assert await rights.refusal_of_large(events) == reason
    assert rights.refusal(events) == reason  # by what is remembered
    return reason


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], None),
        ([event("free", "text"), event("free/of"), event("free/of/all")], None),
        ([event("free"), event("other")], "[1]: no right to register 'other'"),
        (
            [event("free/*")],
            "[0]: event type 'free/*': '?' and '*' are for queries only, expected plain segments",
        ),
        (
            [event("free", BinaryPayload("", b"")), event("numbers", BinaryPayload("", b"[1]"))],
            "[1]: 'numbers': a JSON payload is required by its schema",
        ),
    ],
)
async def test_types_are_refused_without_a_check(
    schemas: PayloadSchemas, events: list[RegisterEvent], reason: str | None
) -> None:
    expected = reason and f"register_events{reason}"
    assert await refusal(rights_of(schemas, *RULES), *events) == expected
    assert checkers() == []


async def test_payloads_have_to_satisfy_all_schemas_of_their_type(schemas: PayloadSchemas) -> None:
    rights = rights_of(schemas, *RULES)
    good = [event("free", "text"), event("numbers", [-1]), event("numbers/positive", [1])]
    assert await refusal(rights, *good) is None
    assert await refusal(rights, *good, event("numbers", ["1"])) == (
        "register_events[3]: 'numbers': payload/0: value is not of type \"integer\""
    )
    assert await refusal(rights, good[0], event("numbers/positive", [3, 0]), *good) == (
        "register_events[1]: 'numbers/positive': payload/1: value is less than the minimum of 1"
    )
    assert await refusal(rights, event("numbers/positive", ["1"])) == (
        "register_events[0]: 'numbers/positive': payload/0: value is not of type \"integer\""
    )


async def test_places_in_a_large_registration_are_told(schemas: PayloadSchemas) -> None:
    rights = rights_of(schemas, *RULES)
    many = [event("free"), event("numbers", [1])] * limits.STEP_EVENTS
    place = len(many)
    for last, reason in (
        (event("other"), "no right to register 'other'"),
        (event("numbers", 1), "'numbers': payload: value is not of type \"array\""),
    ):
        assert await refusal(rights, *many, last) == f"register_events[{place}]: {reason}"


async def test_what_is_told_of_a_refusal_is_cut() -> None:
    longest: dict[str, Any] = {"$id": "test://" + "x" * 900, "enum": ["y" * 900]}
    schemas = PayloadSchemas([longest])
    try:
        rights = rights_of(schemas, RegisterRule((("*",),), longest["$id"]))
        reason = await refusal(rights, event("z" * 900, 1))
    finally:
        await schemas.async_close()
    assert reason is not None
    assert len(reason) == limits.MAX_REASON_CHARACTERS


async def test_a_check_that_cannot_be_made_is_told() -> None:
    schemas = PayloadSchemas([NUMBERS, POSITIVE])
    rights = rights_of(schemas, *RULES)
    await schemas.async_close()
    assert await rights.refusal_of_large([event("numbers", [1])]) == (
        "schemas are not checked: the server is closing"
    )


async def test_who_may_register_everything_is_not_asked_for_types(schemas: PayloadSchemas) -> None:
    everything_of = RegisterRule((("*",),))
    assert await refusal(rights_of(schemas, everything_of), event("a/*")) is None
    # not if a schema has a say
    for rules in ((everything_of, RULES[1]), (RULES[1], everything_of)):
        assert await refusal(rights_of(schemas, *rules), event("numbers", ["1"])) is not None
        assert await refusal(rights_of(schemas, *rules), event("other", ["1"])) is None


def test_large_registrations_are_those_that_take_long_to_check() -> None:
    schemas = PayloadSchemas([NUMBERS, POSITIVE])
    assert rights_of(schemas, *RULES).inline_bytes == limits.INLINE_SCHEMA_BYTES
    assert rights_of(schemas, RULES[0]).inline_bytes == sys.maxsize


def test_rights_to_everything() -> None:
    quota = ClientQuota(max_event_types=7)
    rights = everything("all", quota)
    assert (rights.name, rights.tokens, rights.certificate) == ("all", (), None)
    assert rights.quota is quota
    assert rights.type_quota == TypeQuota("all", 7)
    assert rights.subscription.is_everything
    assert rights.refusal([event("a")]) is None


def test_a_client_has_a_quota_of_types() -> None:
    config = ClientConfig("app", None, (), (), quota=ClientQuota(max_event_types=3))
    quota = Rights(config, PayloadSchemas()).type_quota
    assert (quota.owner, quota.max_types) == ("client app", 3)


class NotHashed(str):
    """A text that is too long to be looked up in a dictionary."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


async def test_a_type_that_is_too_long_is_not_looked_up(schemas: PayloadSchemas) -> None:
    long = NotHashed("x" * 1025)
    refused = "register_events[1]: event type has 1025 bytes, at most 1024 are allowed"
    events = [event("a"), RegisterEvent((long,), None, None)]
    for rule in RegisterRule((("*",),)), RegisterRule((("a",),)):
        assert await rights_of(schemas, rule).refusal_of_large(events) == refused
