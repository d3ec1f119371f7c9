"""The reason why the contract, ``schemas/mariner.yaml``, rejects a message.

The hot path decodes without the schema; a refused message is checked by the schema here, so
that log and error carry the JSON pointer and the reason. Only the definition of the message's
type is used, not all ten.

``jsonschema-rs`` takes about 0.2 µs an event: an invalid message of maximum size must not delay
other clients, which ``jsonschema`` would do for a minute. (Tests compare both.)
"""

import functools
from decimal import Decimal
from typing import Any, Final

import jsonschema_rs
import yaml
from jsonschema_rs import ValidationError, ValidationErrorKind

from eventer_bridge.resources import read_schema
from mariner.wire.messages import NEEDS_REQUEST_KEY

SCHEMA_ID: Final = "hat-mariner://mariner.yaml"

_MESSAGES: Final = (
    "init_req",
    "init_res",
    "status",
    "events",
    "register_req",
    "register_res",
    "query_req",
    "query_res",
    "ping_req",
    "ping_res",
    "events_ack",
    "up_to_date",
    "gap",
    "cursor_lost",
)
_QUERIES: Final = ("latest", "timeseries", "server")
_MAX_VALUE_CHARACTERS: Final = 60
_JSON_TYPES: Final = {
    bool: "boolean",
    dict: "object",
    Decimal: "number",
    float: "number",
    int: "integer",
    list: "array",
    str: "string",
    type(None): "null",
}


@functools.cache
def schema() -> dict[str, Any]:
    """The contract, decoded."""
    loaded: dict[str, Any] = yaml.load(read_schema("mariner.yaml"), yaml.CSafeLoader)
    return loaded


def explain(value: Any) -> tuple[str, str] | None:
    """The reason why the contract rejects a message.

    Args:
        value: the message, decoded.

    Returns:
        JSON pointer ("" is the whole message) and reason; None if the contract accepts the
        message. Values are shortened, and those of tokens not shown.
    """
    if not isinstance(value, dict):
        return "", f"expected object, got {_JSON_TYPES.get(type(value), 'nothing')}"
    msg_type = value.get("msg_type")
    if msg_type not in _MESSAGES:
        what = "is missing" if "msg_type" not in value else f"is {_show(msg_type)}"
        return "/msg_type", f"{what}, expected one of {', '.join(_MESSAGES)}"
    branch = _branch(msg_type, value)
    if not isinstance(branch, str):
        return branch
    try:
        _validator(branch).validate(value)
    except ValidationError as e:
        error, expected = _leaf(e)
        return "".join(f"/{_escape(i)}" for i in error.instance_path), _reason(error, expected)
    except ValueError:  # more than 255 levels
        return "", "invalid, and nested too deeply to say where"
    return None


def _branch(msg_type: str, value: dict[str, Any]) -> str | tuple[str, str]:
    """Definition for a message, or the reason why there is none."""
    if msg_type in {"init_res", "register_res"}:
        success = value.get("success")
        if not isinstance(success, bool):
            what = "is missing" if "success" not in value else f"is {_show(success)}"
            return "/success", f"{what}, expected boolean"
        return f"{msg_type}_{'success' if success else 'failure'}"
    if msg_type == "query_req":
        query_type = value.get("query_type")
        if query_type not in _QUERIES:
            what = "is missing" if "query_type" not in value else f"is {_show(query_type)}"
            return "/query_type", f"{what}, expected one of {', '.join(_QUERIES)}"
        return f"query_req_{query_type}"
    return f"messages/{msg_type}"


@functools.cache
def _validator(branch: str) -> jsonschema_rs.Draft202012Validator:
    registry = jsonschema_rs.Registry([(SCHEMA_ID, schema())])
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"{SCHEMA_ID}#/$defs/{branch}"},
        registry=registry,
        mask="…",  # only _show shows values
    )


def _leaf(error: ValidationError) -> tuple[ValidationError, Any]:
    """The most relevant error inside a ``oneOf``, and the expected values."""
    while isinstance(error.kind, ValidationErrorKind.OneOfNotValid):
        branches = error.kind.context
        meant = [branch for branch in branches if not any(map(_is_other_kind, branch))]
        tags = [i for branch in branches for i in branch if i.kind.name == "const"]
        if tags and not meant:
            return tags[0], [i.kind.value for i in tags]
        error = (meant or branches)[0][0]
    return error, error.kind.value


def _is_other_kind(error: ValidationError) -> bool:
    """Whether a branch failed because it describes another kind (null, another tag)."""
    return error.kind.name == "const" or error.schema_path[-3:] == ["oneOf", 0, "type"]


def _reason(error: ValidationError, expected: Any) -> str:
    if "client_token" in error.instance_path:
        return "expected string or null"
    if isinstance(error.kind, ValidationErrorKind.Required):
        return f"required property is missing: {error.kind.property}"
    if "then" in error.schema_path:  # the one that depends on another property
        return NEEDS_REQUEST_KEY
    match error.kind.name:
        case "pattern" | "not":
            text = "base64"
        case "minimum":
            text = f"at least {expected}"
        case "maximum":
            text = f"at most {expected}"
        case "maxItems":
            text = f"at most {expected} items"
        case "minLength":
            text = f"at least {expected} character" + "s" * (expected != 1)
        case "maxLength":
            text = f"at most {expected} characters"
        case _:
            text = " or ".join(expected) if isinstance(expected, list) else str(expected)
    return f"expected {text}, got {_show(error.instance)}"


def _show(value: Any) -> str:
    kind = _JSON_TYPES.get(type(value), type(value).__name__)
    if isinstance(value, dict | list) or value is None:
        return kind
    text = str(value).lower() if isinstance(value, bool | Decimal) else repr(value)
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = f"{text[:_MAX_VALUE_CHARACTERS]}…"
    return f"{kind} {text}"


def _escape(segment: object) -> str:
    return str(segment).replace("~", "~0").replace("/", "~1")
