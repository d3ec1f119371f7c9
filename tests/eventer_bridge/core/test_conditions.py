"""Conditions: what they accept, what they say, and that hat-event decides the same."""

from typing import Any

import pytest
from hat.event import common
from hat.event.backends.lmdb import conditions as hat
from hypothesis import given, settings
from hypothesis import strategies as st

from eventer_bridge.core.conditions import Conditions
from eventer_bridge.errors import ConditionError
from eventer_bridge.model import BinaryPayload, JsonPayload, Payload, RegisterEvent
from tests.support.examples import examples

keys = st.sampled_from(["a", "b"])
scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | keys
values = st.recursive(
    scalars,
    lambda i: st.lists(i, max_size=3) | st.dictionaries(keys, i, max_size=2),
    max_leaves=6,
)
data_types = st.sampled_from(["null", "boolean", "string", "number", "array", "object"])
json_conditions = st.fixed_dictionaries(
    {"type": st.just("json")},
    optional={
        "data_path": keys | st.integers(-2, 2) | st.lists(keys | st.integers(-2, 2), max_size=3),
        "data_type": data_types,
        "data_value": values,
    },
)
any_conditions = st.recursive(
    json_conditions,
    lambda i: st.fixed_dictionaries(
        {"type": st.sampled_from(["all", "any"]), "conditions": st.lists(i, max_size=3)}
    ),
    max_leaves=4,
)
confs = st.lists(
    st.fixed_dictionaries(
        {
            "subscriptions": st.sampled_from([[["*"]], [["x"]], [["?"], ["y"]], [["x", "*"]], []]),
            "condition": any_conditions,
        }
    ),
    max_size=3,
)


def reason(condition: dict[str, Any], payload: Payload | None) -> str | None:
    """Why an event of type x is refused."""
    conditions = Conditions([{"subscriptions": [["x"]], "condition": condition}])
    try:
        conditions.check([RegisterEvent(("x",), None, payload)])
    except ConditionError as e:
        return str(e).removeprefix("event 1 (x) fails conditions[0]: ")
    return None


def has_boolean(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_boolean, value.values()))
    return any(map(has_boolean, value)) if isinstance(value, list) else isinstance(value, bool)


@given(confs, values)
@settings(max_examples=examples(100))
def test_hat_event_decides_the_same(confs: list[dict[str, Any]], value: Any) -> None:
    # Python, and so hat-event, holds true and 1 for equal; JSON and ours do not
    if has_boolean([confs, value]):
        value, confs = _without_booleans(value), _without_booleans(confs)
    event = common.Event(
        id=common.EventId(1, 1, 1),
        type=("x",),
        timestamp=common.now(),
        source_timestamp=None,
        payload=common.EventPayloadJson(value),
    )
    expected = hat.Conditions(confs).matches(event)
    try:
        Conditions(confs).check([RegisterEvent(("x",), None, JsonPayload.of(value))])
    except ConditionError:
        assert not expected
    else:
        assert expected


def _without_booleans(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_booleans(i) for key, i in value.items()}
    if isinstance(value, list):
        return list(map(_without_booleans, value))
    return str(value) if isinstance(value, bool) else value


def test_true_is_not_one() -> None:
    condition = {"type": "json", "data_value": [{"a": 1}]}
    assert reason(condition, JsonPayload.of([{"a": 1}])) is None
    assert reason(condition, JsonPayload.of([{"a": 1.0}])) is None
    assert reason(condition, JsonPayload.of([{"a": True}])) == 'the payload: expected [{"a":1}]'
    assert reason({"type": "json", "data_value": False}, JsonPayload.of(0)) is not None
    assert reason({"type": "json", "data_type": "number"}, JsonPayload.of(True)) is not None


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ({"type": "json"}, 1, None),
        ({"type": "json", "data_type": "string"}, 1, "the payload: expected string"),
        ({"type": "json", "data_path": ["a", 0], "data_value": 5}, {"a": [4]}, "a/0: expected 5"),
        ({"type": "json", "data_path": "a", "data_type": "null"}, {"b": 1}, None),
        ({"type": "any", "conditions": []}, 1, "expected any of no conditions"),
        ({"type": "all", "conditions": []}, 1, None),
        (
            {
                "type": "any",
                "conditions": [
                    {"type": "json", "data_type": "string"},
                    {"type": "json", "data_path": [0], "data_type": "array"},
                ],
            },
            1,
            "the payload: expected string and 0: expected array",
        ),
        (
            {
                "type": "all",
                "conditions": [
                    {"type": "json", "data_type": "number"},
                    {"type": "json", "data_value": 2},
                ],
            },
            1,
            "the payload: expected 2",
        ),
    ],
)
def test_texts(condition: dict[str, Any], value: Any, expected: str | None) -> None:
    assert reason(condition, JsonPayload.of(value)) == expected


@pytest.mark.parametrize("payload", [None, BinaryPayload("x", b"1")])
def test_what_is_no_json_fails(payload: Payload | None) -> None:
    assert reason({"type": "json"}, payload) == "expected a JSON payload"
    assert reason({"type": "all", "conditions": []}, payload) is None


def test_the_text_names_event_and_condition() -> None:
    conditions = Conditions(
        [
            {"subscriptions": [["a", "*"]], "condition": {"type": "json"}},
            {"subscriptions": [["?", "b"]], "condition": {"type": "json", "data_type": "number"}},
        ]
    )
    good, bad = JsonPayload.of(1), JsonPayload.of("x")
    events = [
        RegisterEvent(("other",), None, None),
        RegisterEvent(("a", "b"), None, good),
        RegisterEvent(("a", "b"), None, bad),
    ]
    conditions.check(events[:2])
    with pytest.raises(ConditionError) as raised:
        conditions.check(events)
    assert str(raised.value) == "event 3 (a/b) fails conditions[1]: the payload: expected number"
    Conditions([]).check([RegisterEvent(("x",), None, None)])
