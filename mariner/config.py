"""Configuration of the gateway: a file, checked against ``schemas/gateway.yaml``.

YAML, TOML or JSON, read by hat-json. Everything that is wrong is told at once, a line each,
with the key, the value and what was expected; tokens are never shown.

:func:`load` and :func:`parse` look at the configuration itself, :func:`check` at the files
that it names.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import jsonschema
import jsonschema_rs
import msgspec
import yaml
from hat import json as hat_json
from jsonschema.exceptions import ValidationError
from referencing import Registry, Resource

from eventer_bridge.errors import ConfigurationError, InvalidSubscriptionError, ModuleError
from eventer_bridge.modules import loading as modules
from eventer_bridge.resources import read_schema
from eventer_bridge.rights import ClientConfig
from eventer_bridge.subscription import Subscription
from mariner import tls

DEFAULT_HTTP_PORT: Final = 23080

_ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")
_MAX_VALUE_CHARACTERS: Final = 60


class TlsConfig(msgspec.Struct, frozen=True):
    """TLS of a listener; with ``client_ca`` clients need a certificate of that CA."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class ListenConfig(msgspec.Struct, frozen=True):
    """Where Mariner clients connect to."""

    host: str
    port: int
    tls: TlsConfig | None = None


class MemoryConfig(msgspec.Struct, frozen=True, tag_field="type", tag="memory"):
    """A store that lives as long as the process."""

    conditions: tuple[dict[str, Any], ...] = ()


class RocksDbConfig(msgspec.Struct, frozen=True, tag_field="type", tag="rocksdb"):
    """A durable store; ``path`` is its directory."""

    path: Path
    conditions: tuple[dict[str, Any], ...] = ()


BackendConfig: TypeAlias = MemoryConfig | RocksDbConfig


class CoreConfig(msgspec.Struct, frozen=True):
    """The embedded event server."""

    server_id: int
    backend: BackendConfig
    modules: tuple[dict[str, Any], ...] = ()


class HttpConfig(msgspec.Struct, frozen=True):
    """Where health and metrics are told."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT


class GatewayConfig(msgspec.Struct, frozen=True):
    """A whole configuration; ``log`` is for ``logging.config.dictConfig``."""

    name: str
    mariner: ListenConfig
    event_core: CoreConfig
    clients: tuple[ClientConfig, ...]
    schemas: tuple[dict[str, Any], ...] = ()
    http: HttpConfig | None = None
    log: dict[str, Any] | None = None


def load(path: Path) -> GatewayConfig:
    """Read a configuration file.

    Raises:
        ConfigurationError: it cannot be read, or is wrong.
    """
    if path.suffix not in _ENDINGS:
        raise ConfigurationError(f"{path}: expected a file ending in {', '.join(_ENDINGS)}")
    try:
        data = hat_json.decode_file(path)
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from e
    except ValueError as e:  # JSON, TOML and UTF-8 errors, which name line and column
        raise ConfigurationError(f"{path}: {e}") from e
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigurationError(f"{path}: {place}{e.problem}") from e
    except yaml.YAMLError as e:
        raise ConfigurationError(f"{path}: {e}") from e
    return parse(data, str(path))


def parse(data: Any, where: str) -> GatewayConfig:
    """Check a decoded configuration.

    Args:
        data: the configuration.
        where: what to call it in errors, usually its file.

    Raises:
        ConfigurationError: it is wrong; one line an error.
    """
    problems = [_describe(error) for error in _validator().iter_errors(data)]
    if not problems:
        problems = list(_semantic_problems(data))
    if problems:
        raise ConfigurationError("\n".join(f"{where}: {i}" for i in sorted(problems)))
    return msgspec.convert(data, GatewayConfig, dec_hook=_to_path)


def check(config: GatewayConfig) -> None:
    """Check the files that a configuration names.

    Raises:
        ConfigurationError: a certificate or key is missing or does not fit.
    """
    if config.mariner.tls is not None:
        files = config.mariner.tls
        tls.server_context(files.cert, files.key, files.client_ca)


def _to_path(kind: type[Any], value: Any) -> Any:
    return kind(value)


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = yaml.safe_load(read_schema("gateway.yaml"))
    # hat-json's repository of its own schemas, which `log` refers to
    logging = hat_json.json_schema_repo["hat-json://logging.yaml"]
    registry: Registry[Any] = Registry().with_resources(
        [
            ("hat-json://logging.yaml", Resource.from_contents(logging)),
            (schema["$id"], Resource.from_contents(schema)),
        ]
    )
    return jsonschema.Draft202012Validator(schema, registry=registry)


def _describe(error: ValidationError, parent: Iterable[Any] = ()) -> str:
    """Key (below ``parent``), value and what was expected."""
    path = [*parent, *error.absolute_path]
    expected: Any = error.validator_value
    value: Any = error.instance
    if error.validator == "required":
        [name] = [i for i in expected if i not in value and f"'{i}'" in error.message][:1]
        return f"{_key([*path, name])}: missing, expected {_what(error.schema, name)}"
    if error.validator == "additionalProperties":
        known = error.schema["properties"] if isinstance(error.schema, Mapping) else {}
        unknown = [i for i in value if i not in known]
        keys = ", ".join(_key([*path, i]) for i in unknown)
        return f"{keys}: unknown key, expected one of {', '.join(known)}"
    shown = "***" if path[-1:] == ["token"] else _show(value)
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
            text = f"{error.validator} {_show(expected)}"
    article = {"integer": "an ", "object": "an ", "array": "an ", "string": "a "}.get(text, "")
    return f"{_key(path)}: {shown}: expected {article}{text}"


def _semantic_problems(data: Mapping[str, Any]) -> Iterator[str]:
    core = data["event_core"]
    yield from _module_problems(core.get("modules", []))
    for index, condition in enumerate(core["backend"].get("conditions", [])):
        key = f"event_core.backend.conditions[{index}].subscriptions"
        yield from _subscription_problems(key, condition["subscriptions"])
    schemas: list[Mapping[str, Any]] = data.get("schemas", [])
    for index, schema in enumerate(schemas):
        key = f"schemas[{index}]"
        if not isinstance(schema.get("$id"), str):
            yield f"{key}.$id: missing, expected the identifier that schema_id refers to"
        elif reason := _schema_problem(schema):
            yield f"{key}: expected a valid JSON Schema: {reason}"
    known = {schema.get("$id") for schema in schemas}
    names: set[str] = set()
    for index, client in enumerate(data["clients"]):
        key = f"clients[{index}]"
        name = client["name"]
        if name in names:
            yield f"{key}.name: {name!r}: expected a name that no other client has"
        names.add(name)
        if client.get("certificate") is not None:
            tls_keys = data["mariner"].get("tls") or {}
            if "client_ca" not in tls_keys:
                yield f"{key}.certificate: expected mariner.tls.client_ca beside it"
        yield from _subscription_problems(f"{key}.subscriptions", client["subscriptions"])
        for number, rule in enumerate(client["register_events"]):
            rule_key = f"{key}.register_events[{number}]"
            yield from _subscription_problems(f"{rule_key}.subscriptions", rule["subscriptions"])
            schema_id = rule.get("schema_id")
            if schema_id is not None and schema_id not in known:
                yield f"{rule_key}.schema_id: {schema_id!r}: expected the $id of one of schemas"


def _module_problems(confs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for index, conf in enumerate(confs):
        path = ["event_core", "modules", index]
        try:
            yield from [_describe(error, path) for error in modules.errors(conf)]
        except ModuleError as e:
            yield f"{_key([*path, 'module'])}: {e}"


def _subscription_problems(key: str, query_types: Iterable[list[str]]) -> Iterator[str]:
    for index, query_type in enumerate(query_types):
        try:
            Subscription([query_type])
        except InvalidSubscriptionError as e:
            yield f"{key}[{index}]: {e}"


def _schema_problem(schema: Mapping[str, Any]) -> str | None:
    try:
        jsonschema_rs.meta.validate(dict(schema))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        return str(e).splitlines()[0]
    return None


def _what(schema: Any, name: str) -> str:
    """What a property is for, as the schema describes it."""
    described = schema.get("properties", {}).get(name, {}) if isinstance(schema, Mapping) else {}
    description = described.get("description") if isinstance(described, Mapping) else None
    return description or described.get("type") or "a value"


def _key(path: Iterable[Any]) -> str:
    text = ""
    for i in path:
        text += f"[{i}]" if isinstance(i, int) else f".{i}"
    return text.removeprefix(".") or "(root)"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"
