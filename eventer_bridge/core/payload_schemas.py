"""Payload schemas of clients' rights, and their checks.

A check ends at the first error, and its text shows no value of the payload: values may be as
large as a message, and are neither collected nor copied.

The time of a check grows with the payload, by a factor of the schema: usually 0.1 to 0.6 us a
byte; for an ``enum`` of many arrays, or nested alternatives, it is unbounded. Therefore only
registrations of up to ``limits.INLINE_SCHEMA_BYTES`` are checked on the event loop's thread,
others by the process of :class:`PayloadSchemas`, with a time limit. A pattern that backtracks too
often (``limits.MAX_PATTERN_BACKTRACKS``) does not match.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs
import msgspec

from eventer_bridge import limits
from eventer_bridge.core.schema_worker import SchemaWorker
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import JsonPayload, Payload

_MASK = "value"
"""Placeholder for a payload's values in texts."""

_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=limits.MAX_PATTERN_BACKTRACKS)


class PayloadSchema:
    """See the module. Any thread.

    Args:
        schema: a JSON Schema with an ``$id``.
        registry: schemas that it may refer to.

    Raises:
        ValueError: it is no schema.
        jsonschema_rs.ReferencingError: it has an unknown reference.

    Attributes:
        id: its ``$id``.
    """

    def __init__(self, schema: Mapping[str, Any], registry: jsonschema_rs.Registry) -> None:
        self.id = str(schema["$id"])
        self._validator = jsonschema_rs.Draft202012Validator(
            dict(schema), registry=registry, mask=_MASK, pattern_options=_PATTERNS
        )

    def refusal(self, payload: Payload | None) -> str | None:
        """The reason why a payload does not satisfy the schema; None if it does."""
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


class PayloadSchemas:
    """Schemas of a configuration, and the worker for large payloads; see the module.

    Args:
        schemas: JSON Schemas with ``$id``.

    Raises:
        ConfigurationError: one cannot be used.

    Attributes:
        by_id: the schemas by their ``$id``.
        worker: checks large payloads. Belongs to the event loop's thread.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]] = ()) -> None:
        schemas = tuple(schemas)
        self.by_id = create(schemas)
        self.worker = SchemaWorker(schemas)

    async def async_close(self) -> None:
        """Close the worker."""
        await self.worker.async_close()
