"""Configuration of the gateway: a file, checked against ``schemas/gateway.yaml``.

YAML, TOML or JSON, read by hat-json. All errors are reported at once, one per line, with the key,
the value and what was expected; tokens are never shown.

:func:`load` and :func:`parse` check the configuration itself, :func:`check` the files that it
names.
"""

import functools
import math
import re
import ssl
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import jsonschema
import jsonschema_rs
import msgspec
import yaml
from hat import json as hat_json
from jsonschema.exceptions import ValidationError
from referencing import Registry, Resource

from eventer_bridge import limits as core_limits
from eventer_bridge import tls
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import LIMITS, RetentionRule
from eventer_bridge.control.sockets import SOCKET
from eventer_bridge.core import tokens
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import TokenConfig, TokenSource, without_token
from eventer_bridge.errors import (
    ConfigurationError,
    InvalidEventError,
    InvalidSubscriptionError,
    ModuleError,
)
from eventer_bridge.model import EventType, check_registrable
from eventer_bridge.modules import loading as modules
from eventer_bridge.resources import read_schema
from eventer_bridge.rsb.event import parse_scope
from eventer_bridge.subscription import Subscription
from mariner.gateway.logs.audit import AuditConfig
from mariner.gateway.tracing import TracesConfig

DEFAULT_HTTP_PORT: Final = 23080

_ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")
_MAX_VALUE_CHARACTERS: Final = 60
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104  # none of them is listened on here


class TlsConfig(msgspec.Struct, frozen=True):
    """TLS of a listener; with ``client_ca`` clients need a certificate of that CA.

    Certificates on the revocation list ``crl`` are refused.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    crl: Path | None = None


class ListenConfig(msgspec.Struct, frozen=True):
    """Where Mariner clients connect."""

    host: str
    port: int
    tls: TlsConfig | None = None


class DummyConfig(msgspec.Struct, frozen=True, tag_field="type", tag="dummy"):
    """Nothing is stored: events are only distributed."""

    conditions: tuple[dict[str, Any], ...] = ()


class MemoryConfig(msgspec.Struct, frozen=True, tag_field="type", tag="memory"):
    """A store that lives as long as the process."""

    conditions: tuple[dict[str, Any], ...] = ()
    retention: tuple[RetentionRule, ...] = ()
    request_keys: KeyRetention = KeyRetention()


class RocksDbConfig(msgspec.Struct, frozen=True, tag_field="type", tag="rocksdb"):
    """A durable store; ``path`` is its directory."""

    path: Path
    conditions: tuple[dict[str, Any], ...] = ()
    retention: tuple[RetentionRule, ...] = ()
    request_keys: KeyRetention = KeyRetention()


BackendConfig: TypeAlias = DummyConfig | MemoryConfig | RocksDbConfig


class ClientTlsConfig(msgspec.Struct, frozen=True):
    """TLS to a remote server: the CA that verifies it, and our own certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class RemoteConfig(msgspec.Struct, frozen=True):
    """A remote Event Server."""

    host: str
    port: int
    token: str | TokenSource | None = None
    tls: ClientTlsConfig | None = None

    def __repr__(self) -> str:
        return without_token(self, "token")


class ReplicationConfig(RemoteConfig, frozen=True, kw_only=True):
    """A remote Event Server whose events are also kept here."""

    server_id: int


class EventerServerConfig(msgspec.Struct, frozen=True):
    """Where Eventer clients connect; ``clients`` has the rights of each, by its name.

    Without ``clients``, ``quota`` is that of all of them together.
    """

    host: str
    port: int
    token: TokenConfig = None
    tls: TlsConfig | None = None
    clients: tuple[ClientConfig, ...] | None = None
    quota: ClientQuota = ClientQuota()

    def __repr__(self) -> str:
        return without_token(self, "token")


class MonitorConfig(msgspec.Struct, frozen=True):
    """Where the Monitor Server listens, and the group that this server belongs to."""

    host: str
    port: int
    group: str


class RsbConfig(msgspec.Struct, frozen=True):
    """The RSB bus; events on ``scopes_in`` are registered, those on ``scopes_out`` sent."""

    host: str
    port: int
    mode: Literal["server", "client"]
    scopes_in: tuple[str, ...] = ()
    scopes_out: tuple[str, ...] = ()
    prefix: EventType = ("rsb",)
    max_event_types: int = core_limits.MAX_CLIENT_EVENT_TYPES


class CursorsConfig(msgspec.Struct, frozen=True):
    """How long retention keeps events that a cursor is behind of, at most."""

    hold_retention: float = 0.0


class CoreConfig(msgspec.Struct, frozen=True):
    """The embedded event server."""

    server_id: int
    backend: BackendConfig
    cursors: CursorsConfig = CursorsConfig()
    modules: tuple[dict[str, Any], ...] = ()
    eventer_server: EventerServerConfig | None = None
    replication: tuple[ReplicationConfig, ...] = ()
    monitor: MonitorConfig | None = None
    rsb: RsbConfig | None = None


class HttpConfig(msgspec.Struct, frozen=True):
    """Where health and metrics are served."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT


class GatewayConfig(msgspec.Struct, frozen=True):
    """A whole configuration; it has either ``event_core`` or ``eventer``.

    ``log`` is for ``logging.config.dictConfig``. ``control`` is a socket for requests of operators,
    besides the one that a store has. ``quota`` is for what clients' own quotas do not say;
    ``audit`` turns the audit trail on, ``traces`` those of OpenTelemetry.
    """

    name: str
    mariner: ListenConfig
    clients: tuple[ClientConfig, ...]
    event_core: CoreConfig | None = None
    eventer: RemoteConfig | None = None
    schemas: tuple[dict[str, Any], ...] = ()
    http: HttpConfig | None = None
    control: Path | None = None
    quota: ClientQuota = ClientQuota()
    audit: AuditConfig | None = None
    traces: TracesConfig | None = None
    log: dict[str, Any] | None = None


def load(path: Path) -> GatewayConfig:
    """Read a configuration file.

    Raises:
        ConfigurationError: it cannot be read, or is wrong.
    """
    return parse(_with_moments_as_texts(_decode(path)), str(path))


def control_socket(path: Path) -> Path | None:
    """The socket of the gateway that a file configures, even if it is wrong otherwise.

    Returns:
        ``control`` or, without it, the socket of the store; None: there is neither.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    data = _decode(path)
    match data:
        case {"control": str(socket)}:
            return Path(socket)
        case {"event_core": {"backend": {"path": str(store)}}}:
            return Path(store) / SOCKET
    return None


def _decode(path: Path) -> Any:
    if path.suffix not in _ENDINGS:
        raise ConfigurationError(f"{path}: expected a file ending in {', '.join(_ENDINGS)}")
    try:
        return hat_json.decode_file(path)
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from e
    except ValueError as e:  # JSON, TOML and UTF-8 errors, which name line and column
        raise ConfigurationError(f"{path}: {_without_quotes(str(e))}") from e
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = _without_quotes(e.problem or "")
        raise ConfigurationError(f"{path}: {place}{problem}") from e
    except yaml.YAMLError as e:
        raise ConfigurationError(f"{path}: {_without_quotes(str(e))}") from e


def parse(data: Any, where: str) -> GatewayConfig:
    """Check a decoded configuration.

    Args:
        data: the configuration.
        where: what to call it in errors, usually its file.

    Raises:
        ConfigurationError: it is wrong; one line per error.
    """
    errors = [*_validator().iter_errors(data)]
    problems = [_describe(error) for error in errors]
    if isinstance(data, Mapping) and ("event_core" in data) is ("eventer" in data):
        found = "both are there" if "eventer" in data else "missing"
        problems.append(
            f"event_core: {found}, expected either event_core, the embedded event server, or"
            " eventer, the remote one that everything is relayed to"
        )
    if isinstance(data, Mapping):
        wrong = {error.absolute_path[0] for error in errors if error.absolute_path}
        if "schemas" in wrong:
            wrong |= {"clients", "event_core"}  # which refer to them
        problems += _semantic_problems({i: data[i] for i in data if i not in wrong})
    if problems:
        raise ConfigurationError("\n".join(f"{where}: {i}" for i in sorted(problems)))
    return msgspec.convert(data, GatewayConfig, dec_hook=_to_path)


def check(config: GatewayConfig) -> None:
    """Check the files and variables of the environment that a configuration names.

    Raises:
        ConfigurationError: a certificate, key or token is missing or does not fit; one line each.
    """
    problems: list[str] = []
    for key, look in _looks(config):
        try:
            look()
        except ConfigurationError as e:
            problems.append(str(e) if str(e).startswith(key) else f"{key}: {e}")
    if problems:
        raise ConfigurationError("\n".join(problems))


def _looks(config: GatewayConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """Keys with files or variables, and what reads them."""
    for key, listener in listeners(config).items():
        if listener.tls is not None:
            yield f"{key}.tls", functools.partial(server_context, listener.tls)
    for key, remote in remotes(config).items():
        if (its := remote.tls) is not None:
            yield f"{key}.tls", functools.partial(tls.client_context, its.ca, its.cert, its.key)
        yield f"{key}.token", functools.partial(tokens.read_own, remote.token, f"{key}.token")
    yield "audit.file", functools.partial(_look_at_trail, config.audit)
    for key, token in client_tokens(config).items():
        yield key, functools.partial(tokens.read, token, key)
    core = config.event_core
    if core is not None and core.monitor is not None and core.eventer_server is not None:
        # the other servers of the group present it
        key = "event_core.eventer_server.token"
        yield key, functools.partial(tokens.read_own, core.eventer_server.token, key)


def _look_at_trail(audit: AuditConfig | None) -> None:
    trail = None if audit is None else audit.file
    if trail is not None and (trail.is_dir() or not trail.parent.is_dir()):
        raise ConfigurationError(f"audit.file: {trail}: expected a file in an existing directory")


def server_context(listener: TlsConfig) -> ssl.SSLContext:
    """TLS of a listener.

    Raises:
        ConfigurationError: a file is missing or invalid.
    """
    return tls.server_context(listener.cert, listener.key, listener.client_ca, listener.crl)


def listeners(config: GatewayConfig) -> dict[str, ListenConfig | EventerServerConfig]:
    """The listeners that may have TLS, by their keys."""
    found: dict[str, ListenConfig | EventerServerConfig] = {"mariner": config.mariner}
    if config.event_core is not None and config.event_core.eventer_server is not None:
        found["event_core.eventer_server"] = config.event_core.eventer_server
    return found


def remotes(config: GatewayConfig) -> dict[str, RemoteConfig]:
    """The remote servers, by their keys."""
    if config.eventer is not None:
        return {"eventer": config.eventer}
    several = () if config.event_core is None else config.event_core.replication
    return {f"event_core.replication[{index}]": remote for index, remote in enumerate(several)}


def client_tokens(config: GatewayConfig) -> dict[str, TokenConfig]:
    """The tokens of clients, by their keys."""
    found = {f"clients[{i}].token": client.token for i, client in enumerate(config.clients)}
    core = config.event_core
    if core is not None and core.eventer_server is not None:
        key = "event_core.eventer_server"
        found[f"{key}.token"] = core.eventer_server.token
        for i, client in enumerate(core.eventer_server.clients or ()):
            found[f"{key}.clients[{i}].token"] = client.token
    return found


def _with_moments_as_texts(data: Any) -> Any:
    """YAML and TOML have moments of their own, which JSON Schema does not know."""
    match data:
        case dict():
            return {key: _with_moments_as_texts(value) for key, value in data.items()}
        case list():
            return [_with_moments_as_texts(value) for value in data]
        case date():  # and datetime
            return data.isoformat()
    return data


def _to_path(kind: type[Any], value: Any) -> Any:
    return kind(value)


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = yaml.load(read_schema("gateway.yaml"), yaml.CSafeLoader)
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
        masked = ["***"] if "token" in path else [_masked(i) for i in unknown]
        keys = ", ".join(_key([*path, i]) for i in masked)
        return f"{keys}: unknown key, expected one of {', '.join(known)}"
    shown = "***" if "token" in path else _show(value)
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
    """What the schema cannot tell, of those top-level keys that it accepts."""
    schemas: list[Mapping[str, Any]] = data.get("schemas", [])
    for index, schema in enumerate(schemas):
        key = f"schemas[{index}]"
        if not isinstance(schema.get("$id"), str):
            yield f"{key}.$id: missing, expected the identifier that schema_id refers to"
        elif reason := _schema_problem(schema):
            yield f"{key}: expected a valid JSON Schema: {reason}"
    known = {schema.get("$id") for schema in schemas}
    if "clients" in data and "mariner" in data:
        yield from _client_problems("clients", data["clients"], "mariner", data["mariner"], known)
    yield from _listener_problems("mariner", data.get("mariner", {}))
    if "event_core" in data:
        yield from _core_problems(data["event_core"], known)
    yield from _token_problems("eventer.token", data.get("eventer", {}).get("token"))


def _core_problems(core: Mapping[str, Any], known: Container[Any]) -> Iterator[str]:
    yield from _module_problems(core.get("modules", []))
    for index, condition in enumerate(core["backend"].get("conditions", [])):
        key = f"event_core.backend.conditions[{index}].subscriptions"
        yield from _subscription_problems(key, condition["subscriptions"])
    for index, rule in enumerate(core["backend"].get("retention", [])):
        yield from _retention_problems(f"event_core.backend.retention[{index}]", rule)
    server = core.get("eventer_server", {})
    key = "event_core.eventer_server"
    yield from _listener_problems(key, server)
    yield from _token_problems(f"{key}.token", server.get("token"))
    for index, remote in enumerate(core.get("replication", [])):
        place = f"event_core.replication[{index}].token"
        yield from _token_problems(place, remote.get("token"))
    yield from _client_problems(f"{key}.clients", server.get("clients", []), key, server, known)
    if "clients" in server and server.get("token") is not None:
        yield f"{key}.token: expected either one token for all clients, or clients with their own"
    if "clients" in server and "quota" in server:
        yield f"{key}.quota: expected in each client instead, if there are clients"
    ids = {core["server_id"]}
    for index, remote in enumerate(core.get("replication", [])):
        if remote["server_id"] in ids:
            key = f"event_core.replication[{index}].server_id"
            yield f"{key}: {remote['server_id']}: expected an id that no other server has"
        ids.add(remote["server_id"])
    if "monitor" in core:
        yield from _monitor_problems(core)
    yield from _rsb_problems("event_core.rsb", core.get("rsb", {}))


def _monitor_problems(core: Mapping[str, Any]) -> Iterator[str]:
    key = "event_core.eventer_server"
    if "eventer_server" not in core:
        yield f"{key}: missing, required with monitor, for the other servers of the group"
        return
    host = core["eventer_server"]["host"]
    if "tls" not in core["eventer_server"] and host in _ANY_ADDRESS:
        yield (
            f"{key}.host: {host!r}: expected the name or address at which others reach this"
            " server: the Monitor Server passes it to them"
        )


def _rsb_problems(key: str, rsb: Mapping[str, Any]) -> Iterator[str]:
    for name in ("scopes_in", "scopes_out"):
        for index, scope in enumerate(rsb.get(name, [])):
            try:
                parse_scope(scope)
            except InvalidEventError as e:
                yield f"{key}.{name}[{index}]: {e}"
    try:
        check_registrable(tuple(rsb.get("prefix", ())))
    except InvalidEventError as e:
        yield f"{key}.prefix: {e}"


def _client_problems(
    place: str,
    clients: Iterable[Mapping[str, Any]],
    listener_key: str,
    listener: Mapping[str, Any],
    known: Container[Any],
) -> Iterator[str]:
    names: set[str] = set()
    for index, client in enumerate(clients):
        key = f"{place}[{index}]"
        name = client["name"]
        if name in names:
            yield f"{key}.name: {name!r}: expected a name that no other client has"
        names.add(name)
        yield from _token_problems(f"{key}.token", client["token"])
        if client.get("certificate") is not None:
            tls_keys = listener.get("tls") or {}
            if "client_ca" not in tls_keys:
                yield f"{key}.certificate: requires {listener_key}.tls.client_ca"
        yield from _subscription_problems(f"{key}.subscriptions", client["subscriptions"])
        for number, rule in enumerate(client["register_events"]):
            rule_key = f"{key}.register_events[{number}]"
            yield from _subscription_problems(f"{rule_key}.subscriptions", rule["subscriptions"])
            schema_id = rule.get("schema_id")
            if schema_id is not None and schema_id not in known:
                yield f"{rule_key}.schema_id: {schema_id!r}: expected the $id of one of schemas"


def _listener_problems(key: str, listener: Mapping[str, Any]) -> Iterator[str]:
    tls_keys = listener.get("tls") or {}
    if "crl" in tls_keys and "client_ca" not in tls_keys:
        yield f"{key}.tls.crl: requires {key}.tls.client_ca"


def _token_problems(key: str, token: Any) -> Iterator[str]:
    several = token if isinstance(token, list) else [token]
    for index, configured in enumerate(several):
        place = f"{key}[{index}]" if isinstance(token, list) else key
        if configured is None:
            continue
        source = {"value": configured} if isinstance(configured, str) else configured
        if len([i for i in ("value", "file", "environment") if i in source]) != 1:
            yield f"{place}: expected one of value, file and environment"
            continue
        try:
            tokens.parse(source.get("value", ""), source.get("expires"), place)
        except ConfigurationError as e:
            yield str(e)


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


def _retention_problems(key: str, rule: Mapping[str, Any]) -> Iterator[str]:
    yield from _subscription_problems(f"{key}.subscriptions", rule["subscriptions"])
    if not any(limit in rule for limit in LIMITS):
        yield f"{key}: expected at least one of {', '.join(LIMITS)}"
    if math.isnan(rule.get("duration", 0)):
        yield f"{key}.duration: nan: expected a number"


def _schema_problem(schema: Mapping[str, Any]) -> str | None:
    try:
        jsonschema_rs.meta.validate(dict(schema))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        return str(e).splitlines()[0]
    return None


def _without_quotes(problem: str) -> str:
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


def _key(path: Iterable[Any]) -> str:
    text = ""
    for i in path:
        text += f"[{i}]" if isinstance(i, int) else f".{i}"
    return text.removeprefix(".") or "(root)"


def _masked(value: Any) -> Any:
    """Without a token that stands where none should: ``token:secret`` is one text to YAML."""
    is_suspect = isinstance(value, str) and "token" in value and not value.isidentifier()
    return "***" if is_suspect else value


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(_masked(value))
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"
