"""The reason why the contract, ``schemas/mariner.yaml``, rejects a message.

A message that decoding refused is checked by the definition of its type, so that log and error
have the JSON pointer and the reason.

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
from mariner import limits
from mariner.wire import messages

SCHEMA_ID: Final = "hat-mariner://mariner.yaml"

_MESSAGES: Final = tuple(map(messages.name_of, messages.TYPES))
_QUERIES: Final = tuple(map(messages.name_of, messages.QUERIES))
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

_EXPECTED: Final = {
    "pattern": "base64",
    "not": "base64",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxItems": "at most {} items",
    "minLength": "at least {} character{}",
    "maxLength": "at most {} characters",
}


@functools.cache
def schema() -> dict[str, Any]:
    """The contract, decoded."""
    loaded: dict[str, Any] = yaml.load(read_schema("mariner.yaml"), yaml.CSafeLoader)
    return loaded


def explain(value: Any) -> tuple[str, str] | None:
    """Why the contract rejects a decoded message: JSON pointer ("" is the whole) and reason.

    None if the contract accepts it. Values are shortened, and those of tokens not shown.
    """
    if not isinstance(value, dict):
        return "", f"expected object, got {_JSON_TYPES.get(type(value), 'nothing')}"
    msg_type = value.get("msg_type")
    if msg_type not in _MESSAGES:
        return _unknown(value, "msg_type", f"one of {', '.join(_MESSAGES)}")
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
            return _unknown(value, "success", "boolean")
        return f"{msg_type}_{'success' if success else 'failure'}"
    if msg_type == "query_req":
        query_type = value.get("query_type")
        if query_type not in _QUERIES:
            return _unknown(value, "query_type", f"one of {', '.join(_QUERIES)}")
        return f"query_req_{query_type}"
    return f"messages/{msg_type}"


def _unknown(value: dict[str, Any], key: str, expected: str) -> tuple[str, str]:
    what = f"is {_show(value[key])}" if key in value else "is missing"
    return f"/{key}", f"{what}, expected {expected}"


@functools.cache
def _validator(branch: str) -> jsonschema_rs.Draft202012Validator:
    registry = jsonschema_rs.Registry([(SCHEMA_ID, schema())])
    reference = {"$ref": f"{SCHEMA_ID}#/$defs/{branch}"}
    # only _show shows values
    return jsonschema_rs.Draft202012Validator(reference, registry=registry, mask="…")


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
        return messages.NEEDS_REQUEST_KEY
    text = _EXPECTED.get(error.kind.name, "{}").format(
        " or ".join(expected) if isinstance(expected, list) else expected,
        "" if expected == 1 else "s",
    )
    return f"expected {text}, got {_show(error.instance)}"


def _show(value: Any) -> str:
    kind = _JSON_TYPES.get(type(value), type(value).__name__)
    if isinstance(value, dict | list) or value is None:
        return kind
    text = str(value).lower() if isinstance(value, bool | Decimal) else repr(value)
    most = limits.MAX_VALUE_CHARACTERS
    return f"{kind} {text if len(text) <= most else f'{text[:most]}…'}"


def _escape(segment: object) -> str:
    return str(segment).replace("~", "~0").replace("/", "~1")
