"""Payload schemas of clients' rights, and whether a payload satisfies one.

A check ends at the first thing that is wrong, and its text shows no value of the payload: what
may be as large as a message is neither collected nor copied.

Any thread.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs
import msgspec

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import JsonPayload, Payload

_MASK = "value"
"""What stands for a payload's values in texts."""


class PayloadSchema:
    """See the module.

    Args:
        schema: a JSON Schema.
        registry: schemas that it may refer to.

    Raises:
        ValueError: it is no schema.
        jsonschema_rs.ReferencingError: it refers to what is not there.
    """

    def __init__(self, schema: Mapping[str, Any], registry: jsonschema_rs.Registry) -> None:
        self._validator = jsonschema_rs.Draft202012Validator(
            dict(schema), registry=registry, mask=_MASK
        )

    def refusal(self, payload: Payload | None) -> str | None:
        """Why a payload does not satisfy the schema; None if it does."""
        if not isinstance(payload, JsonPayload):
            return "a JSON payload is required by its schema"
        try:
            self._validator.validate(payload.value())
        except (msgspec.DecodeError, RecursionError) as e:
            return f"payload: {e}"
        except jsonschema_rs.ValidationError as e:
            pointer = "".join(f"/{i}" for i in e.instance_path)
            return f"payload{pointer}: {e.message}"
        return None


def create(schemas: Iterable[Mapping[str, Any]]) -> dict[str, PayloadSchema]:
    """Schemas by their ``$id``.

    Raises:
        ConfigurationError: one cannot be used.
    """
    by_id = {str(schema["$id"]): schema for schema in schemas}
    try:
        registry = jsonschema_rs.Registry([(i, dict(schema)) for i, schema in by_id.items()])
        return {i: PayloadSchema(schema, registry) for i, schema in by_id.items()}
    except (ValueError, jsonschema_rs.ReferencingError) as e:
        raise ConfigurationError(f"schemas: {e}") from e
