"""Configuration: formats, every error with key, value and expectation."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.errors import ConfigurationError
from mariner import limits
from mariner.gateway import config, config_check, config_file
from mariner.gateway.config import DummyConfig, MemoryConfig, RocksDbConfig
from tests.support.certificates import make_certificates

GOOD: dict[str, Any] = {
    "type": "mariner",
    "name": "gateway",
    "mariner": {"host": "127.0.0.1", "port": 23014},
    "event_core": {"server_id": 1, "backend": {"type": "rocksdb", "path": "data/events"}},
    "clients": [
        {
            "name": "app",
            "token": "hunter2",
            "subscriptions": [["a", "*"]],
            "register_events": [{"subscriptions": [["a", "?"]], "schema_id": "urn:x"}],
        }
    ],
    "schemas": [{"$id": "urn:x", "type": "number"}],
}


DRAFT_07 = {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "urn:x"}


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    conf = copy.deepcopy(GOOD)
    target: Any = conf
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = to
    return conf


def without(*path: str | int) -> dict[str, Any]:
    conf = copy.deepcopy(GOOD)
    target: Any = conf
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return conf


def with_retention(*rules: Any) -> dict[str, Any]:
    return changed("event_core", "backend", "retention", to=list(rules))


def problems(conf: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        config_file.parse(conf, "gateway.yaml")
    return str(raised.value).splitlines()


def test_a_good_configuration() -> None:
    conf = config_file.parse(GOOD, "test")
    assert conf.event_core is not None
    assert conf.event_core.backend == RocksDbConfig(Path("data/events"))
    assert conf.clients[0].subscriptions == (("a", "*"),)
    assert conf.clients[0].register_events[0].schema_id == "urn:x"
    assert conf.http is None
    assert conf.mariner.tls is None


def test_defaults() -> None:
    conf = config_file.parse({**without("schemas"), "clients": [], "http": {}}, "test")
    assert conf.schemas == ()
    assert conf.http == config.HttpConfig("127.0.0.1", 23080)


@pytest.mark.parametrize(
    ("backend", "expected"), [("memory", MemoryConfig()), ("dummy", DummyConfig())]
)
def test_backends_without_settings(backend: str, expected: Any) -> None:
    conf = config_file.parse(changed("event_core", "backend", to={"type": backend}), "test")
    assert conf.event_core is not None
    assert conf.event_core.backend == expected


def test_retention() -> None:
    first = {"subscriptions": [["a", "*"]], "max_entries": 5, "duration": 3600}
    second = {"subscriptions": [["b"], ["c"]], "min_entries": 1, "duration": 0.5, "size": 10}
    rules = (
        RetentionRule((("a", "*"),), 0, 5, 3600),
        RetentionRule((("b",), ("c",)), 1, None, 0.5, 10),
    )
    conf = config_file.parse(with_retention(first, second), "test")
    assert conf.event_core is not None
    assert conf.event_core.backend == RocksDbConfig(Path("data/events"), retention=rules)
    memory = {"type": "memory", "retention": [first, second]}
    conf = config_file.parse(changed("event_core", "backend", to=memory), "test")
    assert conf.event_core is not None
    assert conf.event_core.backend == MemoryConfig(retention=rules)


RSB = {"host": "127.0.0.1", "port": 55555, "mode": "server"}


def test_rsb() -> None:
    keys = {**RSB, "scopes_in": ["/", "/a/"]}
    core = config_file.parse(changed("event_core", "rsb", to=keys), "test").event_core
    assert core is not None
    expected = config.RsbConfig("127.0.0.1", 55555, "server", ("/", "/a/"), (), ("rsb",))
    assert core.rsb == expected


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        (changed("mariner", "port", to="abc"), "mariner.port: 'abc': expected an integer"),
        (changed("mariner", "port", to=True), "mariner.port: True: expected an integer"),
        (changed("mariner", "port", to=70000), "mariner.port: 70000: expected at most 65535"),
        (changed("mariner", "port", to=-1), "mariner.port: -1: expected at least 0"),
        (changed("mariner", "hots", to=1), "mariner.hots: unknown key, expected one of host, por"),
        (
            without("event_core"),
            "event_core: missing, expected either event_core, the embedded event server, or"
            " eventer, the remote one that everything is relayed to",
        ),
        (without("name"), "name: missing, expected name of the gateway"),
        (without("mariner", "host"), "mariner.host: missing, expected string"),
        (changed("type", to="event"), "type: 'event': expected 'mariner'"),
        (
            changed("event_core", "backend", to={"type": "lmdb", "path": "x"}),
            "event_core.backend.type: 'lmdb': expected one of rocksdb, memory, dummy",
        ),
        (
            changed("event_core", "backend", to={"type": "rocksdb"}),
            "event_core.backend.path: missing, expected directory of the store",
        ),
        (
            changed("event_core", "backend", to={"type": "memory", "path": "x"}),
            "event_core.backend.path: unknown key, expected one of type",
        ),
        (
            changed("event_core", "backend", to={"type": "dummy", "path": "x"}),
            "event_core.backend.path: unknown key, expected one of type",
        ),
        (
            changed("event_core", "backend", to={"type": "dummy", "retention": []}),
            "event_core.backend.retention: unknown key, expected one of type",
        ),
        (
            with_retention({"subscriptions": [["*"]]}),
            "event_core.backend.retention[0]: expected at least one of min_entries, max_entries,",
        ),
        (
            with_retention({"size": 5}),
            "event_core.backend.retention[0].subscriptions: missing, expected query types of",
        ),
        (
            with_retention({"subscriptions": [["*", "a"]], "size": 5}),
            "event_core.backend.retention[0].subscriptions[0]: query type '*/a': '*' is allowed",
        ),
        (
            with_retention({"subscriptions": [], "max_entries": 1.5}),
            "event_core.backend.retention[0].max_entries: 1.5: expected an integer",
        ),
        (
            with_retention({"subscriptions": [], "min_entries": -1}),
            "event_core.backend.retention[0].min_entries: -1: expected at least 0",
        ),
        (
            with_retention({"subscriptions": [], "duration": math.inf}),
            "event_core.backend.retention[0].duration: inf: expected at most 1000000000000.0",
        ),
        (
            with_retention({"subscriptions": [], "duration": math.nan}),
            "event_core.backend.retention[0].duration: nan: expected a number",
        ),
        (
            with_retention({"subscriptions": [], "days": 5}),
            "event_core.backend.retention[0].days: unknown key, expected one of subscriptions, min",
        ),
        (changed("event_core", "server_id", to=-1), "event_core.server_id: -1: expected at least"),
        (changed("clients", to={}), "clients: an object: expected an array"),
        (
            changed("clients", 0, "token", to=5),
            "clients[0].token: ***: expected string or null or object or array",
        ),
        (
            changed("clients", 0, "subscriptions", to=[["*", "a"]]),
            "clients[0].subscriptions[0]: query type '*/a': '*' is allowed only as the last",
        ),
        (
            changed("clients", 0, "register_events", 0, "schema_id", to="urn:y"),
            "clients[0].register_events[0].schema_id: 'urn:y': expected the $id of one of schemas",
        ),
        (
            changed("clients", to=GOOD["clients"] * 2),
            "clients[1].name: 'app': expected a name that no other client has",
        ),
        (
            changed("clients", 0, "certificate", to="app"),
            "clients[0].certificate: requires mariner.tls.client_ca",
        ),
        (
            changed("schemas", to=[{"$id": "urn:x", "type": "nothing"}]),
            "schemas[0]: 'urn:x': expected a JSON Schema of draft 2020-12: schema/type: value is ",
        ),
        (
            changed("schemas", 0, to={**DRAFT_07, "items": [{"type": "string"}]}),
            "schemas[0]: 'urn:x': expected a JSON Schema of draft 2020-12: schema/items: value is ",
        ),
        (
            changed("schemas", to=[*GOOD["schemas"], {"$id": "urn:y", "$ref": "urn:z"}]),
            "schemas[1]: 'urn:y': expected a JSON Schema of draft 2020-12: Resource 'urn:z' is not",
        ),
        (
            changed("schemas", to=[*GOOD["schemas"], {"$id": "not: a uri"}]),
            "schemas[1]: 'not: a uri': expected a JSON Schema of draft 2020-12: Invalid URI",
        ),
        (
            changed("schemas", to=GOOD["schemas"] * 2),
            "schemas[1]: 'urn:x': expected an $id that no other schema has",
        ),
        (changed("mariner", "port", to=23014.0), "mariner.port: 23014.0: expected an integer"),
        (changed("mariner", "host", to="a..b"), "mariner.host: 'a..b': expected a name or an addr"),
        (
            changed("mariner", "host", to="a\0"),
            "mariner.host: 'a\\x00': expected a name or an",
        ),
        (
            {**GOOD, "http": {"host": "127.0.0.1", "port": 23014}},
            "http.port: 23014: expected another port than mariner has",
        ),
        (
            changed("event_core", "backend", "path", to="a\0"),
            "expected a path without the character U+0000 - at `$.event_core.backend.path`",
        ),
        (changed("schemas", 0, "$id", to=1), "schemas[0].$id: missing, expected the identifier"),
        (
            changed("event_core", "rsb", to={"host": "::1", "port": 0, "mode": "auto"}),
            "event_core.rsb.mode: 'auto': expected one of server, client",
        ),
        (
            changed("event_core", "rsb", to={**RSB, "scopes_in": ["/a/", "/a"]}),
            "event_core.rsb.scopes_in[1]: scope '/a': expected '/', or '/a/b/' of letters",
        ),
        (
            changed("event_core", "rsb", to={**RSB, "scopes_out": ["/a b/"]}),
            "event_core.rsb.scopes_out[0]: scope '/a b/': expected '/'",
        ),
        (
            changed("event_core", "rsb", to={**RSB, "prefix": ["a", "*"]}),
            "event_core.rsb.prefix: event type 'a/*': '?' and '*' are for queries only",
        ),
        (changed("log", to=[]), "log: an array: expected an object"),
        ([], "(root): an array: expected an object"),
        (None, "(root): None: expected an object"),
    ],
)
def test_errors(conf: Any, problem: str) -> None:
    found = problems(conf)
    assert any(line.startswith(f"gateway.yaml: {problem}") for line in found), found
    assert "hunter2" not in "".join(found)


MONITOR = {"host": "127.0.0.1", "port": 23010, "group": "gateways"}


def with_monitor(monitor: object = MONITOR, **eventer_server: object) -> dict[str, Any]:
    server = {"eventer_server": {"port": 23012, **eventer_server}} if eventer_server else {}
    return changed("event_core", to={**GOOD["event_core"], "monitor": monitor, **server})


def test_monitor() -> None:
    conf = config_file.parse(with_monitor(host="gateway-1"), "test")
    assert conf.event_core is not None
    assert conf.event_core.monitor == config.MonitorConfig("127.0.0.1", 23010, "gateways")
    tls = {"cert": "server.pem", "key": "server.key"}
    config_file.parse(with_monitor(host="::", tls=tls), "test")  # the address is not told


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        (with_monitor(), "event_core.eventer_server: missing, required with monitor"),
        (
            with_monitor(host="::"),
            "event_core.eventer_server.host: '::': expected the name or address at which",
        ),
        (
            with_monitor({"host": "127.0.0.1", "port": 23010}, host="gateway-1"),
            "event_core.monitor.group: missing, expected name of the group",
        ),
    ],
)
def test_errors_about_the_monitor(conf: Any, problem: str) -> None:
    [found] = problems(conf)
    assert found.startswith(f"gateway.yaml: {problem}")


def test_all_errors_are_told_at_once() -> None:
    conf = {**changed("mariner", "port", to="x"), "foo": 1, "clients": 5}
    assert len(problems(conf)) == 3


def test_so_many_errors_are_told() -> None:
    found = problems({**GOOD, "clients": [1] * 1_000})
    assert len(found) == limits.MAX_CONFIGURATION_ERRORS + 1
    assert found[-1] == "gateway.yaml: and maybe more"


def test_what_the_schema_cannot_tell_is_told_beside_what_it_can() -> None:
    clients = [GOOD["clients"][0], GOOD["clients"][0]]
    assert len(problems({**changed("mariner", "port", to="x"), "clients": clients})) == 1
    conf = {**changed("mariner", "port", to=0), "clients": clients, "foo": 1}
    twice, unknown = problems(conf)
    assert "foo: unknown key" in unknown
    assert "clients[1].name: 'app'" in twice
    assert len(problems({**GOOD, "schemas": 5})) == 1  # that no schema_id is known follows from it


@pytest.mark.parametrize("ending", ["yaml", "yml", "json", "toml"])
def test_formats(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"gateway.{ending}"
    if ending == "toml":
        path.write_text(
            'name = "gateway"\nclients = []\n[mariner]\nhost = "127.0.0.1"\nport = 0\n'
            '[event_core]\nserver_id = 1\nbackend = {type = "memory"}\n'
        )
    else:
        path.write_text(json.dumps(GOOD))  # JSON is YAML
    assert config_file.load(path).name == "gateway"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "a: [1,\nb: 2", "line 3, column 1: "),
        ("a.json", '{"a": }', "line 1 column 7"),
        ("a.toml", "a = b\n", "line 1, column 5"),
        ("a.ini", "", "expected a file ending in .yaml, .yml, .toml, .json"),
        (
            "a.yaml",
            "expires: 2026-02-30",
            ": a date or number is not valid: day is out of range",
        ),
        ("a.yaml", "# nothing", ": empty, expected an object"),
        ("a.yaml", None, "No such file or directory"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, text: str | None, problem: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        config_file.load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert problem in str(raised.value)


def test_check_looks_at_certificates(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    keys = {"cert": str(made.server_cert), "key": str(made.server_key)}
    conf = config_file.parse(changed("mariner", "tls", to=keys), "test")
    config_check.check(conf)
    config_check.check(config_file.parse(GOOD, "test"))
    made.server_key.unlink()
    with pytest.raises(ConfigurationError, match=f"{made.server_key}: No such file"):
        config_check.check(conf)


def test_all_files_that_are_missing_are_told_at_once(tmp_path: Path) -> None:
    tls = {"cert": "no.pem", "key": "no.key"}
    conf = changed("mariner", "tls", to=tls)
    client = {**GOOD["clients"][0], "token": {"file": str(tmp_path / "token")}}
    conf = {**conf, "clients": [client], "audit": {"file": str(tmp_path / "no" / "audit")}}
    with pytest.raises(ConfigurationError) as raised:
        config_check.check(config_file.parse(conf, "test"))
    assert str(raised.value).splitlines() == [
        "mariner.tls: no.pem: No such file or directory",
        f"audit.file: {tmp_path}/no/audit: expected a file in an existing directory",
        f"clients[0].token.file: {tmp_path}/token: No such file or directory",
    ]
