"""What is wrong with a configuration that its schema accepts: what the schema cannot tell."""

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from eventer_bridge.backends.retention import LIMITS
from eventer_bridge.core import payload_schemas, tokens
from eventer_bridge.errors import (
    ConfigurationError,
    InvalidEventError,
    InvalidSubscriptionError,
    ModuleError,
)
from eventer_bridge.model import check_registrable
from eventer_bridge.modules import loading as modules
from eventer_bridge.rsb.event import parse_scope
from eventer_bridge.subscription import Subscription
from mariner.gateway.config import HttpConfig
from mariner.gateway.config_messages import describe, key_of, show

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104  # none of them is listened on here


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
    yield from _listener_problems("mariner", data.get("mariner", {}))
    if "event_core" in data:
        yield from _core_problems(data["event_core"], known)
    yield from _token_problems("eventer.token", data.get("eventer", {}).get("token"))


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
            yield from [describe(error, path) for error in modules.errors(conf)]
        except ModuleError as e:
            yield f"{key_of([*path, 'module'])}: {e}"


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
