"""Says what is wrong with a configuration, without anything that may be a token.

:func:`describe` is about what its schema refuses, :func:`semantic_problems` about the rest.
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from jsonschema.exceptions import ValidationError

from eventer_bridge import errors
from eventer_bridge.backends.retention import LIMITS
from eventer_bridge.core import payload_schemas, tokens
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.model import check_registrable
from eventer_bridge.modules import loading as modules
from eventer_bridge.rsb.event import parse_scope
from eventer_bridge.subscription import Subscription
from mariner import limits
from mariner.gateway.config import HttpConfig

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104  # none of them is listened on here

_KINDS: Final = {bool: "a boolean", int: "a number", float: "a number"}
"""What YAML, for example, makes of ``yes`` and ``12``."""

_EXPECTED: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "a text that is not empty",
    "minItems": "at least {} in it",
    "maxItems": "at most {} in it",
}


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
            if "token" in path and isinstance(value, bool | int | float):
                text += f": put it in quotes, without them it is {_KINDS[type(value)]}"
        case "enum":
            text = f"one of {', '.join(map(str, expected))}"
        case "const":
            text = repr(expected)
        case "not" if isinstance(error.schema, Mapping) and "description" in error.schema:
            text = error.schema["description"]
        case str(kind) if kind in _EXPECTED:
            text = _EXPECTED[kind].format(expected)
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
    most = limits.MAX_VALUE_CHARACTERS
    return text if len(text) <= most else f"{text[:most]}…"


# --- what the schema cannot tell ----------------------------------------------------------


def semantic_problems(data: Mapping[str, Any]) -> Iterator[str]:
    """What the schema cannot tell, of those top-level keys that it accepts."""
    schemas: list[Mapping[str, Any]] = data.get("schemas", [])
    without_id = [i for i, schema in enumerate(schemas) if not isinstance(schema.get("$id"), str)]
    for index in without_id:
        yield f"schemas[{index}].$id: missing, expected the identifier that schema_id refers to"
    if not without_id:
        yield from payload_schemas.problems(schemas)
    known = {schema.get("$id") for schema in schemas}
    yield from _address_problems(data)
    if "clients" in data and "mariner" in data:
        yield from _client_problems("clients", data["clients"], "mariner", data["mariner"], known)
    if "event_core" in data:
        yield from _core_problems(data["event_core"], known)
    # clients are looked at with their listener
    whole = {key: i for key, i in data.items() if key != "clients" or "mariner" in data}
    for key, node in _nodes(whole):
        yield from _node_problems(key, node)


def _nodes(data: Any, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All objects of a configuration, with their keys, except those of free form."""
    if isinstance(data, Mapping):
        yield key, data
        for name, value in data.items():
            if name not in {"modules", "schemas", "log", "condition"}:
                yield from _nodes(value, f"{key}.{name}".removeprefix("."))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _nodes(value, f"{key}[{index}]")


def _node_problems(key: str, node: Mapping[str, Any]) -> Iterator[str]:
    yield from _token_problems(f"{key}.token", node.get("token"))
    for index, pattern in enumerate(node.get("subscriptions", ())):
        try:
            Subscription([pattern])
        except errors.InvalidSubscriptionError as e:
            yield f"{key}.subscriptions[{index}]: {e}"
    its = node.get("tls") or {}
    if "crl" in its and "client_ca" not in its:
        yield f"{key}.tls.crl: requires {key}.tls.client_ca"


def _address_problems(data: Mapping[str, Any]) -> Iterator[str]:
    core = data.get("event_core", {})
    rsb, replication = core.get("rsb", {}), core.get("replication", [])
    http = {"http": msgspec.to_builtins(HttpConfig()) | data["http"]} if "http" in data else {}
    listeners: dict[str, Mapping[str, Any]] = {
        "mariner": data.get("mariner", {}),
        "event_core.eventer_server": core.get("eventer_server", {}),
        "event_core.rsb": rsb if rsb.get("mode") == "server" else {},
        **http,
    }
    servers = {f"event_core.replication[{index}]": i for index, i in enumerate(replication)}
    servers |= {"event_core.monitor": core.get("monitor", {}), "eventer": data.get("eventer", {})}
    for key, place in {**listeners, **servers, "event_core.rsb": rsb}.items():
        if not _is_host(place.get("host", "")):
            yield f"{key}.host: {show(place['host'])}: expected a name or an address"
    taken: dict[tuple[str, int], str] = {}
    for key, place in listeners.items():
        if port := place.get("port", 0):
            other = taken.setdefault((place["host"], port), key)
            if other != key:
                yield f"{key}.port: {port}: expected another port than {other} has"


def _is_host(text: str) -> bool:
    try:
        return b"\0" not in text.encode("idna")
    except UnicodeError:
        return False


def _core_problems(core: Mapping[str, Any], known: Container[Any]) -> Iterator[str]:
    yield from _module_problems(core.get("modules", []))
    for index, rule in enumerate(core["backend"].get("retention", [])):
        key = f"event_core.backend.retention[{index}]"
        if not any(limit in rule for limit in LIMITS):
            yield f"{key}: expected at least one of {', '.join(LIMITS)}"
        if math.isnan(rule.get("duration", 0)):
            yield f"{key}.duration: nan: expected a number"
    server = core.get("eventer_server", {})
    key = "event_core.eventer_server"
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
    if "group" in core:
        yield from _group_problems(core)
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


def _group_problems(core: Mapping[str, Any]) -> Iterator[str]:
    key, group = "event_core.group", core["group"]
    if problem := PostgresqlConfig(group["log"]["dsn"]).problem():
        yield f"{key}.log.dsn: ***: {problem}"
    for name in ("takeover_s", "keep"):
        if math.isnan(group.get(name, 0)):
            yield f"{key}.{name}: nan: expected a number"
    if core["backend"]["type"] != "rocksdb":
        yield f"event_core.backend.type: {core['backend']['type']}: expected rocksdb, for a group"
    for name in ("monitor", "replication"):
        if core.get(name):
            yield (
                f"event_core.{name}: expected either {name} or group: the log of the group says who"
                " is active, and brings the events"
            )


def _rsb_problems(key: str, rsb: Mapping[str, Any]) -> Iterator[str]:
    for name in ("scopes_in", "scopes_out"):
        for index, scope in enumerate(rsb.get(name, [])):
            try:
                parse_scope(scope)
            except errors.InvalidEventError as e:
                yield f"{key}.{name}[{index}]: {e}"
    try:
        check_registrable(tuple(rsb.get("prefix", ())))
    except errors.InvalidEventError as e:
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
        if client.get("certificate") is not None and "client_ca" not in (listener.get("tls") or {}):
            yield f"{key}.certificate: requires {listener_key}.tls.client_ca"
        for number, rule in enumerate(client["register_events"]):
            schema_id = rule.get("schema_id")
            if schema_id is not None and schema_id not in known:
                place_of_id = f"{key}.register_events[{number}].schema_id"
                yield f"{place_of_id}: {schema_id!r}: expected the $id of one of schemas"


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
        except errors.ConfigurationError as e:
            yield str(e)


def _module_problems(confs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for index, conf in enumerate(confs):
        path = ["event_core", "modules", index]
        try:
            yield from [describe(error, path) for error in modules.errors(conf)]
        except errors.ModuleError as e:
            yield f"{key_of([*path, 'module'])}: {e}"
