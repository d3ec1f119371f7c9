"""Parts of JSON Schema that the configurations of modules share."""

from typing import Any, Final

QUERY_TYPES: Final[dict[str, Any]] = {
    "description": 'query types; "?" matches one segment, "*" at the end any number',
    "type": "array",
    "minItems": 1,
    "maxItems": 1_000,
    "items": {"type": "array", "items": {"type": "string"}},
}

EVENT_TYPE: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 32,
    "items": {
        "description": 'a segment that is not "?" or "*"',
        "type": "string",
        "not": {"enum": ["?", "*"]},
    },
}
