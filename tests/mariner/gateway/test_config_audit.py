"""What of a configuration lets in strangers; and that no token is ever told."""

import asyncio
import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eventer_bridge.core import tokens
from mariner.cli import main
from tests.support.certificates import issue_client, make_certificates, postpone, write_crl
from tests.support.inprocess import running_gateway

SECRET = "hunter2"
HASH = tokens.sha256_text(SECRET)

CLIENT: dict[str, Any] = {
    "name": "app",
    "token": HASH,
    "subscriptions": [["*"]],
    "register_events": [],
}
GOOD: dict[str, Any] = {
    "name": "gateway",
    "mariner": {"host": "127.0.0.1", "port": 0},
    "event_core": {
        "server_id": 1,
        "backend": {"type": "memory"},
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": HASH},
    },
    "clients": [CLIENT],
}


def check(path: Path, conf: Any, mode: int = 0o600) -> Result:
    """Run ``mariner check``; tells no token, whatever it says."""
    path.write_text(conf if isinstance(conf, str) else json.dumps(conf))
    path.chmod(mode)
    result = CliRunner().invoke(main, ["check", "--conf", str(path)])
    assert SECRET not in result.output
    return result


def findings(path: Path, conf: Any, mode: int = 0o600) -> list[str]:
    """Its warnings, without their beginning."""
    result = check(path, conf, mode)
    assert (result.exit_code, result.stdout) == (0, f"{path}: ok\n"), result.output
    begin = f"mariner: warning: {path}: "
    lines = result.stderr.splitlines()
    assert all(line.startswith(begin) for line in lines), lines
    return [line.removeprefix(begin) for line in lines]


def changed(conf: dict[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    conf = copy.deepcopy(conf)
    target: Any = conf
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = to
    return conf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.json"


def test_nothing_is_said_of_what_is_well(path: Path) -> None:
    assert findings(path, GOOD) == []


def test_clients_that_need_to_prove_nothing(path: Path) -> None:
    conf = changed(GOOD, "clients", 0, "token", to=None)
    assert findings(path, conf) == [
        "clients[0].token: null, and no certificate: whoever gives the name 'app' has its rights"
    ]
    server = {"host": "127.0.0.1", "port": 0}
    conf = changed(GOOD, "event_core", "eventer_server", to=server)
    assert findings(path, conf) == [
        "event_core.eventer_server.token: null: whoever connects may do everything"
    ]
    of_server = {**server, "clients": [{**CLIENT, "token": None, "name": "gui"}]}
    conf = changed(GOOD, "event_core", "eventer_server", to=of_server)
    assert findings(path, conf) == [
        "event_core.eventer_server.clients[0].token: null, and no certificate: whoever gives the"
        " name 'gui' has its rights"
    ]


def test_certificates_are_a_proof(tmp_path: Path, path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    tls = {
        "cert": str(made.server_cert),
        "key": str(made.server_key),
        "client_ca": str(made.ca),
    }
    conf = changed(GOOD, "mariner", "tls", to=tls)
    conf = changed(conf, "clients", 0, "token", to=None)
    made.server_key.chmod(0o600)
    assert findings(path, conf) == [
        "clients[0].token: null, and no certificate: whoever gives the name 'app', with any"
        " certificate of client_ca, has its rights"
    ]
    conf = changed(conf, "clients", 0, "certificate", to="app")
    assert findings(path, conf) == []
    made.server_key.chmod(0o640)
    assert findings(path, conf) == [
        f"mariner.tls.key: {made.server_key}: users other than its owner can read it: mode 0640"
    ]


PLAIN = "is a plain token, its hash is enough: mariner token hash"


def test_tokens_where_their_hashes_suffice(path: Path) -> None:
    conf = changed(GOOD, "clients", 0, "token", to=SECRET)
    assert findings(path, conf) == [f"clients[0].token: {PLAIN}"]
    conf = changed(GOOD, "clients", 0, "token", to=[HASH, {"value": SECRET}])
    assert findings(path, conf) == [f"clients[0].token[1]: {PLAIN}"]
    conf = changed(GOOD, "event_core", "eventer_server", "token", to=SECRET)
    assert findings(path, conf) == [f"event_core.eventer_server.token: {PLAIN}"]


def test_tokens_of_files_and_of_the_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    assert findings(path, changed(GOOD, "clients", 0, "token", to={"environment": "TOKEN"})) == []
    file = path.parent / "token"
    file.write_text(SECRET)
    file.chmod(0o600)
    conf = changed(GOOD, "clients", 0, "token", to={"file": str(file)})
    assert findings(path, conf, 0o644) == []
    file.chmod(0o644)
    told = f"clients[0].token.file: {file}: users other than its owner can read it: mode 0644"
    assert findings(path, conf) == [told]
    file.unlink()
    result = check(path, conf)
    assert result.exit_code == 2
    assert f"clients[0].token.file: {file}: No such file or directory" in result.stderr


def test_tokens_that_have_expired(path: Path) -> None:
    several = [{"value": HASH, "expires": "2020-01-31"}, {"value": HASH, "expires": "2999-01-01"}]
    conf = changed(GOOD, "clients", 0, "token", to=several)
    assert findings(path, conf) == ["clients[0].token[0]: expired: 2020-01-31"]


def test_moments_of_yaml_and_toml(tmp_path: Path) -> None:
    text = f"""
name: x
mariner: {{host: 127.0.0.1, port: 0}}
event_core: {{server_id: 1, backend: {{type: memory}}}}
clients:
  - name: app
    token: {{value: "{HASH}", expires: MOMENT}}
    subscriptions: []
    register_events: []
"""
    for moment, shown in (
        ("2020-01-31", "2020-01-31"),
        ("2020-01-31T12:00:00Z", "2020-01-31T12:00:00+00:00"),
    ):
        found = findings(tmp_path / "gateway.yaml", text.replace("MOMENT", moment))
        assert found == [f"clients[0].token: expired: {shown}"]


@pytest.mark.parametrize(
    ("token", "error"),
    [
        ({"expires": "2030-01-01"}, "token: expected one of value, file and environment"),
        ({"value": HASH, "file": "x"}, "token: expected one of value, file and environment"),
        ({"value": HASH, "expires": "soon"}, "token.expires: ***: expected ISO 8601"),
        (["a", "b", "c"], "token: ***: expected at most 2 in it"),
        ([], "token: ***: expected at least 1 in it"),
        (f"sha256:{SECRET}", "token: ***: expected a hash of `mariner token hash`"),
        (["a", f"scrypt:{SECRET}"], "token[1]: ***: expected a hash of `mariner token hash`"),
        ([None], "token[0]: ***: expected string or object"),
    ],
)
def test_wrong_tokens(path: Path, token: Any, error: str) -> None:
    for keys in (("clients", 0), ("event_core", "eventer_server")):
        result = check(path, changed(GOOD, *keys, "token", to=token))
        assert result.exit_code == 2
        assert error in result.stderr


def test_a_hash_is_not_sent(path: Path) -> None:
    remote = {"server_id": 2, "host": "a", "port": 1, "token": HASH}
    result = check(path, changed(GOOD, "event_core", "replication", to=[remote]))
    assert result.exit_code == 2
    expected = "expected the token itself, not its hash: it is sent"
    assert f"event_core.replication[0].token: ***: {expected}" in result.stderr
    monitor = {"host": "127.0.0.1", "port": 1, "group": "g"}
    result = check(path, changed(GOOD, "event_core", "monitor", to=monitor))
    assert result.exit_code == 2
    assert f"event_core.eventer_server.token: ***: {expected}" in result.stderr


def test_what_expires_soon(tmp_path: Path, path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    folder = made.ca.parent
    write_crl(folder, days=7)
    tls = {
        "cert": str(made.server_cert),
        "key": str(made.server_key),
        "client_ca": str(made.ca),
        "crl": str(folder / "crl.pem"),
    }
    issue_client(folder, "gateway", days=29)
    ours = {"ca": str(made.ca), "cert": f"{folder}/gateway.pem", "key": f"{folder}/gateway.key"}
    remote = {"server_id": 2, "host": "a", "port": 1, "tls": ours}
    conf = changed(GOOD, "mariner", "tls", to=tls)
    conf = changed(conf, "event_core", "replication", to=[remote])
    [crl, cert] = findings(path, conf)
    assert crl.startswith("mariner.tls.crl: 6 days left: good until 2")
    assert cert.startswith("event_core.replication[0].tls.cert: 28 days left: good until 2")
    issue_client(folder, "gateway", days=31)
    write_crl(folder, days=31)
    assert findings(path, conf) == []
    (folder / "gateway.key").chmod(0o644)
    key = f"event_core.replication[0].tls.key: {folder}/gateway.key"
    assert findings(path, conf) == [f"{key}: users other than its owner can read it: mode 0644"]
    (folder / "gateway.key").chmod(0o600)
    del tls["client_ca"]
    result = check(path, changed(conf, "mariner", "tls", to=tls))
    assert result.exit_code == 2
    assert "mariner.tls.crl: requires mariner.tls.client_ca" in result.stderr


NOBODY = "clients: none: nobody can connect"
NO_EVENTER_CLIENT = "event_core.eventer_server.clients: none: no Eventer client can connect"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_tokens_in_a_file_that_others_can_read(path: Path, mode: int) -> None:
    told = f"has tokens, and users other than its owner can read it: mode {mode:04o}"
    assert findings(path, GOOD, mode) == []  # who reads a hash knows no token
    plain = changed(GOOD, "clients", 0, "token", to=SECRET)
    assert findings(path, plain, mode) == [told, f"clients[0].token: {PLAIN}"]
    chosen = changed(GOOD, "clients", 0, "token", to=tokens.scrypt_text(SECRET))
    assert findings(path, chosen, mode) == [told]  # but may guess a chosen one
    without = changed(GOOD, "clients", to=[])
    without = changed(without, "event_core", "eventer_server", "clients", to=[])
    without = changed(without, "event_core", "eventer_server", "token", to=None)
    assert findings(path, without, mode) == [NO_EVENTER_CLIENT]
    remote = {"host": "127.0.0.1", "port": 1, "token": SECRET}
    relay = {**without, "eventer": remote}
    del relay["event_core"]
    assert findings(path, relay, mode) == [NOBODY, told]
    replicating = changed(without, "event_core", "replication", to=[{**remote, "server_id": 2}])
    assert findings(path, replicating, mode) == [NO_EVENTER_CLIENT, told]


@pytest.mark.parametrize(
    "keys", [("clients", 0, "token"), ("event_core", "eventer_server", "token")]
)
def test_an_empty_token_is_an_error(path: Path, keys: tuple[str | int, ...]) -> None:
    result = check(path, changed(GOOD, *keys, to=""))
    assert result.exit_code == 2
    key = "clients[0]" if keys[0] == "clients" else ".".join(map(str, keys[:-1]))
    line = f"mariner: error: {path}: {key}.token: ***: expected a text that is not empty\n"
    assert result.stderr == line


@pytest.mark.parametrize(
    "wrong", [[[SECRET]], {SECRET: SECRET}, {"a": [SECRET]}, {"value": [SECRET]}, 5]
)
@pytest.mark.parametrize(
    "keys",
    [
        ("clients", 0, "token"),
        ("event_core", "eventer_server", "token"),
        ("event_core", "eventer_server", "clients", 0, "token"),
        ("event_core", "replication", 0, "token"),
        ("eventer", "token"),
    ],
)
def test_errors_of_a_token_do_not_tell_it(
    path: Path, keys: tuple[str | int, ...], wrong: Any
) -> None:
    conf = copy.deepcopy(GOOD)
    conf["event_core"]["replication"] = [{"server_id": 2, "host": "a", "port": 1}]
    conf["event_core"]["eventer_server"]["clients"] = [copy.deepcopy(CLIENT)]
    conf["eventer"] = {"host": "a", "port": 1}
    result = check(path, changed(conf, *keys, to=wrong))
    assert result.exit_code == 2
    places = ("token: ***", "token.***: unknown key", "token[0]: ***", "token.value: ***")
    assert any(place in result.stderr for place in places)


@pytest.mark.parametrize(
    "token",
    [
        f"!{SECRET}",  # a tag
        f"!a!{SECRET}",  # with a handle
        f"!!{SECRET}",
        f"*{SECRET}",  # an alias
        f"&{SECRET}",  # an anchor
        f"[{SECRET}",
        f"{{{SECRET}",
        f"%{SECRET}",
        f"@{SECRET}",
        f"'{SECRET}",
        f'"{SECRET}\\q"',
        f"a: {SECRET}",
        f"| {SECRET}",
    ],
)
@pytest.mark.parametrize("key", ["token: ", "token:"])
def test_errors_of_a_file_do_not_tell_a_token(tmp_path: Path, token: str, key: str) -> None:
    text = f"name: x\nmariner: {{host: a, port: 1}}\nclients:\n  - name: app\n    {key}{token}\n"
    assert check(tmp_path / "gateway.yaml", text).exit_code == 2
    text = f"name: x\nclients: [{{name: app, {key}{token}}}]\n"
    assert check(tmp_path / "gateway.yaml", text).exit_code == 2
    text = f"clients:\n  - {key}{token}\n"
    assert check(tmp_path / "gateway.yaml", text).exit_code == 2
    for ending, line in (("toml", f"token = {token}"), ("json", f'{{"token": {token}}}')):
        assert check(tmp_path / f"gateway.{ending}", line).exit_code == 2


@pytest.mark.parametrize(
    "token", ["yes", "no", "on", "true", "12", "-1", "1.5", "[yes]", "{value: yes}"]
)
def test_a_token_that_is_no_text_is_to_be_quoted(tmp_path: Path, token: str) -> None:
    text = f"""
name: x
mariner: {{host: 127.0.0.1, port: 0}}
event_core: {{server_id: 1, backend: {{type: memory}}}}
clients:
  - {{name: app, token: {token}, subscriptions: [], register_events: []}}
"""
    result = check(tmp_path / "gateway.yaml", text)
    assert result.exit_code == 2
    kind = "a number" if token[-1].isdigit() else "a boolean"
    assert result.stderr.endswith(f": put it in quotes, without them it is {kind}\n")
    assert "gateway.yaml: clients[0].token" in result.stderr
    assert ": ***: expected string" in result.stderr or ": ***: expected a string" in result.stderr


def test_a_segment_with_a_slash(path: Path) -> None:
    rights = [{"subscriptions": [["b"], ["b", "c/?"]]}]
    conf = changed(GOOD, "clients", 0, "subscriptions", to=[["app/*"], ["app", "*"]])
    conf = changed(conf, "clients", 0, "register_events", to=rights)
    rule = {"subscriptions": [["a/b/*"]], "max_entries": 1}
    conf = changed(conf, "event_core", "backend", "retention", to=[rule])
    gui = {**CLIENT, "name": "gui", "subscriptions": [["/a"]]}
    server = {"host": "127.0.0.1", "port": 0, "clients": [gui]}
    conf = changed(conf, "event_core", "eventer_server", to=server)
    threshold = {"subscriptions": [["t/*"]], "path": [], "limit": 1, "alarm_prefix": ["alarm"]}
    module = {"module": "eventer_bridge.modules.threshold", "thresholds": [threshold]}
    conf = changed(conf, "event_core", "modules", to=[module])

    def found(key: str, segment: str, several: str) -> str:
        return f"{key}: {segment!r}: is one segment of a type: several are written as {several}"

    assert set(findings(path, conf)) == {
        found("clients[0].subscriptions[0]", "app/*", '["app", "*"]'),
        found("clients[0].register_events[0].subscriptions[1]", "c/?", '["b", "c", "?"]'),
        found("event_core.backend.retention[0].subscriptions[0]", "a/b/*", '["a", "b", "*"]'),
        found("event_core.eventer_server.clients[0].subscriptions[0]", "/a", '["", "a"]'),
        found("event_core.modules[0].thresholds[0].subscriptions[0]", "t/*", '["t", "*"]'),
    }


def test_that_nobody_can_connect(path: Path) -> None:
    conf = changed(GOOD, "clients", to=[])
    assert findings(path, conf) == []  # Eventer clients can
    alone = copy.deepcopy(conf)
    del alone["event_core"]["eventer_server"]
    assert findings(path, alone) == [NOBODY]
    server = {"host": "127.0.0.1", "port": 0, "clients": []}
    conf = changed(GOOD, "event_core", "eventer_server", to=server)
    assert findings(path, conf) == [NO_EVENTER_CLIENT]


def test_certificates_that_are_not_valid_yet(tmp_path: Path, path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    folder = made.ca.parent
    begin = datetime.now(UTC) + timedelta(days=3)
    tls = {"cert": f"{folder}/later.pem", "key": f"{folder}/later.key", "client_ca": str(made.ca)}
    issue_client(folder, "later", days=60)
    conf = changed(GOOD, "mariner", "tls", to=tls)
    assert findings(path, conf) == []
    postpone(folder, "later", begin)
    assert findings(path, conf) == [
        f"mariner.tls.cert: not valid yet: good from {begin:%Y-%m-%d %H:%M} UTC on"
    ]


def test_authorities_without_their_root(tmp_path: Path, path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    folder = made.ca.parent
    made.server_key.chmod(0o600)
    issue_client(folder, "intermediate", days=60)
    intermediate = folder / "intermediate.pem"
    tls = {"cert": str(made.server_cert), "key": str(made.server_key)}
    conf = changed(GOOD, "mariner", "tls", to={**tls, "client_ca": str(intermediate)})
    remote = {"server_id": 2, "host": "a", "port": 1, "tls": {"ca": str(intermediate)}}
    conf = changed(conf, "event_core", "replication", to=[remote])
    without = "can be verified without the root, which is self-signed"
    assert findings(path, conf) == [
        f"mariner.tls.client_ca: {intermediate}: has only an intermediate authority: no client"
        f" {without}",
        f"event_core.replication[0].tls.ca: {intermediate}: has only an intermediate authority: no"
        f" server {without}",
    ]
    intermediate.write_bytes(intermediate.read_bytes() + made.ca.read_bytes())
    assert findings(path, conf) == []


def test_definitions_of_a_schema_that_cannot_be_used(path: Path) -> None:
    schema = {"$id": "urn:x", "$defs": {"a": {"pattern": "("}, "b": {"type": "string"}}}
    conf = changed(GOOD, "schemas", to=[schema, {"$id": "urn:y", "definitions": {"c/d": {}}}])
    assert findings(path, conf) == ["schemas[0]: 'urn:x': schema/$defs/a: value is not a \"regex\""]
    conf = changed(GOOD, "schemas", to=[{**schema, "$ref": "#/$defs/a"}])
    result = check(path, conf)
    assert result.exit_code == 2
    assert "schemas[0]: 'urn:x': expected a JSON Schema of draft 2020-12: " in result.stderr


async def test_the_store_of_another_server(tmp_path: Path, path: Path) -> None:
    store = tmp_path / "events"
    conf = changed(GOOD, "event_core", "backend", to={"type": "rocksdb", "path": str(store)})
    told = f"event_core.server_id: 7: the store {store} is of server 1"

    async def asked() -> list[list[str]]:
        """What it tells of server 1 and of server 7."""
        confs = [changed(conf, "event_core", "server_id", to=i) for i in (1, 7)]
        return [await asyncio.to_thread(findings, path, i) for i in confs]

    assert await asked() == [[], []]  # there is none yet
    async with running_gateway(path=store):
        assert await asked() == [[], [told]]
    before = sorted((i.name, i.read_bytes()) for i in store.iterdir())
    assert await asked() == [[], [told]]
    assert sorted((i.name, i.read_bytes()) for i in store.iterdir()) == before
    async with running_gateway(
        event_core={"server_id": 7, "backend": {"type": "rocksdb", "path": str(store)}}
    ):
        pass
    assert await asked() == [[], []]  # it has ids of both
