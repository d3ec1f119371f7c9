import json
import time
from typing import Any

import jsonschema
import pytest

from eventer_bridge import limits
from mariner.wire import contract

EVENT: dict[str, Any] = {
    "id": {"server": 1, "session": 2, "instance": 3},
    "type": ["a"],
    "timestamp": {"s": 1, "us": 2},
    "source_timestamp": None,
    "payload": {"payload_type": "binary", "data_type": "t", "data": "AA=="},
}
REGISTER_EVENT = {key: EVENT[key] for key in ("type", "source_timestamp", "payload")}
INIT: dict[str, Any] = {
    "msg_type": "init_req",
    "client_name": "app",
    "client_token": None,
    "subscriptions": [["a"]],
    "server_id": None,
    "persisted": False,
}


def events(**changes: Any) -> Any:
    return {"msg_type": "events", "events": [EVENT, EVENT | changes]}


def registration(**changes: Any) -> Any:
    return {
        "msg_type": "register_req",
        "register_id": 1,
        "register_events": [REGISTER_EVENT | changes],
    }


def timeseries(**changes: Any) -> Any:
    return {
        "msg_type": "query_req",
        "query_id": 1,
        "query_type": "timeseries",
        "order": "ASCENDING",
        "order_by": "TIMESTAMP",
    } | changes


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(contract.schema())
    assert contract.schema()["$id"] == contract.SCHEMA_ID == "hat-mariner://mariner.yaml"


def test_every_reference_leads_to_a_definition() -> None:
    text = json.dumps(contract.schema())
    for name in ("messages/" + i for i in contract.schema()["$defs"]["messages"]):
        assert f'{contract.SCHEMA_ID}#/$defs/{name}"' in text
    validator = jsonschema.Draft202012Validator(contract.schema())
    # an unknown reference would raise; all branches are visited, as none is satisfied
    assert not validator.is_valid({"msg_type": "none"})


@pytest.mark.parametrize(
    ("value", "pointer", "reason"),
    [
        (None, "", "expected object, got null"),
        ([], "", "expected object, got array"),
        (1.5, "", "expected object, got number"),
        (INIT | {"client_name": 1}, "/client_name", "expected string, got integer 1"),
        (INIT | {"subscriptions": {}}, "/subscriptions", "expected array, got object"),
        (INIT | {"server_id": "1"}, "/server_id", "expected integer, got string '1'"),
        (INIT | {"persisted": 1}, "/persisted", "expected boolean, got integer 1"),
        (INIT | {"cursor": ""}, "/cursor", "expected at least 1 character, got string ''"),
        (
            INIT | {"cursor": "c" * 65},
            "/cursor",
            f"expected at most 64 characters, got string '{'c' * 59}…",
        ),
        ({"msg_type": "init_res"}, "/success", "is missing, expected boolean"),
        ({"msg_type": "init_res", "success": 0}, "/success", "is integer 0, expected boolean"),
        (
            {"msg_type": "init_res", "success": False, "status": "STANDBY"},
            "",
            "required property is missing: error",
        ),
        (
            {"msg_type": "register_res", "register_id": 1, "success": False, "error": None},
            "/error",
            "expected string, got null",
        ),
        (events(id=None), "/events/1/id", "expected object, got null"),
        (
            events(id={"server": 1, "session": 2}),
            "/events/1/id",
            "required property is missing: instance",
        ),
        (events(timestamp=None), "/events/1/timestamp", "expected object, got null"),
        (events(source_timestamp=[]), "/events/1/source_timestamp", "expected object, got array"),
        (
            events(source_timestamp={"s": 1, "us": -1}),
            "/events/1/source_timestamp/us",
            "expected at least 0, got integer -1",
        ),
        (events(type=["a", None]), "/events/1/type/1", "expected string, got null"),
        (registration(payload=""), "/register_events/0/payload", "expected object, got string ''"),
        (
            registration(payload={"payload_type": "binary", "data": ""}),
            "/register_events/0/payload",
            "required property is missing: data_type",
        ),
        (
            registration(payload={"payload_type": "json"}),
            "/register_events/0/payload",
            "required property is missing: data",
        ),
        (
            registration(payload=EVENT["payload"] | {"data": "A"}),
            "/register_events/0/payload/data",
            "expected base64, got string 'A'",
        ),
        (
            registration() | {"after_key": "a"},
            "/after_key",
            "expected with a request_key only",
        ),
        (
            registration() | {"after_key": "a", "request_key": None},
            "/after_key",
            "expected with a request_key only",
        ),
        (timeseries(order="UP"), "/order", "expected DESCENDING or ASCENDING, got string 'UP'"),
        (timeseries(t_from=None), "/t_from", "expected object, got null"),
        (
            timeseries(query_type=None),
            "/query_type",
            "is null, expected one of latest, timeseries, server",
        ),
        (timeseries(ids=None), "/ids", "expected array, got null"),
        (timeseries(ids=[1]), "/ids/0", "expected object, got integer 1"),
        (
            timeseries(ids=[EVENT["id"], EVENT["id"] | {"session": "2"}]),
            "/ids/1/session",
            "expected integer, got string '2'",
        ),
        (timeseries(ids=[EVENT["id"]] * 4097), "/ids", "expected at most 4096 items, got array"),
        (timeseries(payload=None), "/payload", "expected object, got null"),
        (timeseries(payload={"data": 1}), "/payload", "required property is missing: payload_type"),
        (
            timeseries(payload={"payload_type": "xml", "data": 1}),
            "/payload/payload_type",
            "expected binary or json, got string 'xml'",
        ),
        (
            timeseries(payload=EVENT["payload"] | {"data": "A"}),
            "/payload/data",
            "expected base64, got string 'A'",
        ),
        (timeseries(unique_type=1), "/unique_type", "expected boolean, got integer 1"),
        (timeseries(event_types=[["a"], "b"]), "/event_types/1", "expected array, got string 'b'"),
    ],
)
def test_reason(value: Any, pointer: str, reason: str) -> None:
    assert contract.explain(value) == (pointer, reason)
    assert not jsonschema.Draft202012Validator(contract.schema()).is_valid(value)


def test_as_many_ids_as_the_core_takes() -> None:
    ids = contract.schema()["$defs"]["query_req_timeseries"]["properties"]["ids"]
    assert ids["maxItems"] == limits.MAX_QUERY_IDS
    assert contract.explain(timeseries(ids=[EVENT["id"]] * limits.MAX_QUERY_IDS)) is None


def test_additional_properties_are_allowed_everywhere() -> None:
    for value in (events(more=1), registration(more=1), timeseries(more=[]), INIT | {"more": None}):
        assert contract.explain(value) is None


def test_long_values_are_cut_in_reasons() -> None:
    explained = contract.explain(INIT | {"persisted": "x" * 1000})
    assert explained is not None
    assert explained[1] == f"expected boolean, got string '{'x' * 59}…"


def test_a_wrong_message_as_large_as_a_frame_is_explained_at_once() -> None:
    """``jsonschema`` would need about a minute for it."""
    wrong = {"type": ["a"], "source_timestamp": None}
    value = registration()
    value["register_events"] = [REGISTER_EVENT] * 200_000 + [wrong]
    begin = time.thread_time()
    explained = contract.explain(value)
    assert time.thread_time() - begin < 5  # about 0.1 s
    assert explained == ("/register_events/200000", "required property is missing: payload")
