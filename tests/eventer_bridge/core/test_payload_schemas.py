"""Payload schemas: the first thing that is wrong is told, and no value of the payload."""

import re
import tracemalloc
from typing import Any

import msgspec
import pytest

from eventer_bridge.core import payload_schemas
from eventer_bridge.core.payload_schemas import PayloadSchema
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import BinaryPayload, JsonPayload

NUMBERS: dict[str, Any] = {
    "$id": "test://numbers",
    "type": "array",
    "items": {"$ref": "test://number"},
}
NUMBER: dict[str, Any] = {"$id": "test://number", "type": "integer", "minimum": 3}


@pytest.fixture
def numbers() -> PayloadSchema:
    return payload_schemas.create([NUMBERS, NUMBER])["test://numbers"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("[3, 4]", None),
        ("[3, 2, 1]", "payload/1: value is less than the minimum of 3"),
        ('[3, "secret"]', 'payload/1: value is not of type "integer"'),
        ('{"secret": 1}', 'payload: value is not of type "array"'),
        ("[" + "9" * 5_000 + "]", "payload: Integer value out of range - at `$[0]`"),
    ],
)
def test_the_first_thing_that_is_wrong_is_told(
    numbers: PayloadSchema, data: str, reason: str | None
) -> None:
    assert numbers.refusal(JsonPayload(msgspec.Raw(data.encode()))) == reason


@pytest.mark.parametrize("payload", [None, BinaryPayload("a", b"[3]")])
def test_only_json_satisfies_a_schema(
    numbers: PayloadSchema, payload: BinaryPayload | None
) -> None:
    assert numbers.refusal(payload) == "a JSON payload is required by its schema"


def test_errors_are_not_collected(numbers: PayloadSchema) -> None:
    payload = JsonPayload.of(["wrong"] * 200_000)
    tracemalloc.start()
    try:
        assert numbers.refusal(payload) == 'payload/0: value is not of type "integer"'
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_a_schema_that_cannot_be_used_is_named() -> None:
    expected = "expected a JSON Schema of draft 2020-12"
    good, wrong = {"$id": "urn:good"}, {"$id": "urn:wrong", "type": 1}
    unknown = {"$id": "urn:a", "$ref": "urn:none"}
    several: list[tuple[list[dict[str, Any]], str]] = [
        ([NUMBERS], f"schemas[0]: 'test://numbers': {expected}: Resource 'test://number' is not"),
        ([good, wrong], f"schemas[1]: 'urn:wrong': {expected}: schema/type: value is not valid"),
        ([{"$id": "urn:b", "$ref": "urn:a"}, unknown], f"schemas[1]: 'urn:a': {expected}: "),
        ([good, {"$id": ":: no URI"}], f"schemas[1]: ':: no URI': {expected}: Invalid URI"),
        ([good, good], "schemas[1]: 'urn:good': expected an $id that no other schema has"),
    ]
    for schemas, problem in several:
        with pytest.raises(ConfigurationError, match=f"^{re.escape(problem)}"):
            payload_schemas.create(schemas)
        assert len(payload_schemas.problems(schemas)) == 1


def test_a_pattern_that_goes_back_too_often_does_not_match() -> None:
    schema = {"$id": "test://pattern", "pattern": r"(.*)\1b"}
    pattern = payload_schemas.create([schema])["test://pattern"]
    assert pattern.refusal(JsonPayload.of("a" * 10 + "b")) is None
    reason = pattern.refusal(JsonPayload.of("a" * 400))
    assert reason is not None
    assert "Max limit for backtracking count exceeded" in reason
