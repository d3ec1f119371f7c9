"""Payload schemas of clients' rights, and their checks.

A check ends at the first error, and its text shows no value of the payload: values may be as
large as a message, and are neither collected nor copied.

The time of a check grows with the payload, by a factor of the schema: usually 0.1 to 0.6 us a
byte; for an ``enum`` of many arrays, or nested alternatives, it is unbounded. Therefore only
registrations of up to ``limits.INLINE_SCHEMA_BYTES`` are checked on the event loop's thread,
others by the process of :class:`PayloadSchemas`, with a time limit. A pattern that backtracks too
often (``limits.MAX_PATTERN_BACKTRACKS``) does not match.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from eventer_bridge import limits
from eventer_bridge.core.schema_worker import SchemaWorker
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import JsonPayload, Payload

_MASK = "value"
"""Placeholder for a payload's values in texts."""

_EXPECTED = "expected a JSON Schema of draft 2020-12"
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
            return f"payload{_pointer(e)}: {e.message}"
        return None


def create(schemas: Iterable[Mapping[str, Any]]) -> dict[str, PayloadSchema]:
    """Schemas by their ``$id``.

    Raises:
        ConfigurationError: some cannot be used; one line each.
    """
    made, wrong = _create(schemas)
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return made


def problems(schemas: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Why :func:`create` would fail: texts that begin with the key, as ``schemas[0]``."""
    return _create(schemas)[1]


def _create(
    schemas: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, PayloadSchema], Sequence[str]]:
    made: dict[str, PayloadSchema] = {}
    wrong: list[str] = []
    several = [dict(schema) for schema in schemas]
    try:
        registry = _registry(several)
    except (ValueError, jsonschema_rs.ReferencingError) as e:
        return made, [_unregistered(several, e)]
    for index, schema in enumerate(several):
        key = _key(index, schema)
        try:
            found = PayloadSchema(schema, registry)
        except jsonschema_rs.ValidationError as e:
            wrong.append(f"{key}: {_EXPECTED}: schema{_pointer(e)}: {e.message}")
        except (ValueError, jsonschema_rs.ReferencingError) as e:
            wrong.append(f"{key}: {_EXPECTED}: {e}")
        else:
            if found.id in made:
                wrong.append(f"{key}: expected an $id that no other schema has")
            made[found.id] = found
    return made, wrong


def _registry(schemas: Iterable[dict[str, Any]]) -> jsonschema_rs.Registry:
    return jsonschema_rs.Registry([(str(i["$id"]), i) for i in schemas])


def _unregistered(schemas: Sequence[dict[str, Any]], error: Exception) -> str:
    """Says which schema has the unknown reference or wrong ``$id``: the library does not."""
    known = [{"$id": i["$id"]} for i in schemas]
    alone = [(index, [i]) for index, i in enumerate(known)]
    among = [(index, [*known, schema]) for index, schema in enumerate(schemas)]
    for index, several in (*alone, *among):
        try:
            _registry(several)
        except (ValueError, jsonschema_rs.ReferencingError) as e:
            return f"{_key(index, schemas[index])}: {_EXPECTED}: {e}"
    return f"schemas: {error}"


def _key(index: int, schema: Mapping[str, Any]) -> str:
    return f"schemas[{index}]: {str(schema['$id'])!r}"


def _pointer(error: jsonschema_rs.ValidationError) -> str:
    return "".join(f"/{i}" for i in error.instance_path)


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
