"""Says what is wrong with a configuration, without what may be a token."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jsonschema.exceptions import ValidationError

_MAX_VALUE_CHARACTERS: Final = 60


def describe(error: ValidationError, parent: Iterable[Any] = ()) -> str:
    """Key (below ``parent``), value and what was expected."""
    path = [*parent, *error.absolute_path]
    expected: Any = error.validator_value
    value: Any = error.instance
    if error.validator == "required":
        [name] = [i for i in expected if i not in value and f"'{i}'" in error.message][:1]
        return f"{key_of([*path, name])}: missing, expected {_what(error.schema, name)}"
    if error.validator == "additionalProperties":
        known = error.schema["properties"] if isinstance(error.schema, Mapping) else {}
        unknown = [i for i in value if i not in known]
        shown_keys = ["***"] if "token" in path else [masked(i) for i in unknown]
        keys = ", ".join(key_of([*path, i]) for i in shown_keys)
        return f"{keys}: unknown key, expected one of {', '.join(known)}"
    shown = "***" if "token" in path else show(value)
    match error.validator:
        case "type":
            text = " or ".join(expected if isinstance(expected, list) else [expected])
        case "enum":
            text = f"one of {', '.join(map(str, expected))}"
        case "const":
            text = repr(expected)
        case "minimum":
            text = f"at least {expected}"
        case "maximum":
            text = f"at most {expected}"
        case "minLength":
            text = "a text that is not empty"
        case "minItems":
            text = f"at least {expected} in it"
        case "maxItems":
            text = f"at most {expected} in it"
        case "not" if isinstance(error.schema, Mapping) and "description" in error.schema:
            text = error.schema["description"]
        case _:
            text = f"{error.validator} {show(expected)}"
    article = {"integer": "an ", "object": "an ", "array": "an ", "string": "a "}.get(text, "")
    return f"{key_of(path)}: {shown}: expected {article}{text}"


def without_quotes(problem: str) -> str:
    """What a parser says without what it quotes of the file: that may be part of a token.

    A token that begins with ``!`` or ``*``, for example, is a tag or an alias to YAML. What is
    one character, or the parser's own word (``<block end>``), stays.
    """
    return re.sub(r"""(['"])(?!<[a-z ]+>\1)(?:(?!\1).){2,}\1""", "***", problem)


def _what(schema: Any, name: str) -> str:
    """What a property is for, as the schema describes it."""
    described = schema.get("properties", {}).get(name, {}) if isinstance(schema, Mapping) else {}
    description = described.get("description") if isinstance(described, Mapping) else None
    return description or described.get("type") or "a value"


def key_of(path: Iterable[Any]) -> str:
    """A place in a configuration as text: ``clients[0].name``."""
    text = ""
    for i in path:
        text += f"[{i}]" if isinstance(i, int) else f".{i}"
    return text.removeprefix(".") or "(root)"


def masked(value: Any) -> Any:
    """Without a token that stands where none should: ``token:secret`` is one text to YAML."""
    is_suspect = isinstance(value, str) and "token" in value and not value.isidentifier()
    return "***" if is_suspect else value


def show(value: Any) -> str:
    """A value as text, shortened, without a token."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(masked(value))
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"
