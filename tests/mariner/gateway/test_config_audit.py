"""What of a configuration lets in strangers; and that no token is ever told."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mariner.cli import main
from tests.support.certificates import make_certificates

SECRET = "hunter2"

CLIENT: dict[str, Any] = {
    "name": "app",
    "token": SECRET,
    "subscriptions": [["*"]],
    "register_events": [],
}
GOOD: dict[str, Any] = {
    "name": "gateway",
    "mariner": {"host": "127.0.0.1", "port": 0},
    "event_core": {
        "server_id": 1,
        "backend": {"type": "memory"},
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": SECRET},
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
        f"mariner.tls.key: {made.server_key}: others than its owner can read it: mode 0640"
    ]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_tokens_in_a_file_that_others_can_read(path: Path, mode: int) -> None:
    told = f"has tokens, and others than its owner can read it: mode {mode:04o}"
    assert findings(path, GOOD, mode) == [told]
    without = changed(GOOD, "clients", to=[])
    assert findings(path, without, mode) == [told]
    without = changed(without, "event_core", "eventer_server", "clients", to=[])
    without = changed(without, "event_core", "eventer_server", "token", to=None)
    assert findings(path, without, mode) == []
    remote = {"host": "127.0.0.1", "port": 1, "token": SECRET}
    relay = {**without, "eventer": remote}
    del relay["event_core"]
    assert findings(path, relay, mode) == [told]
    replicating = changed(without, "event_core", "replication", to=[{**remote, "server_id": 2}])
    assert findings(path, replicating, mode) == [told]


@pytest.mark.parametrize(
    "keys", [("clients", 0, "token"), ("event_core", "eventer_server", "token")]
)
def test_an_empty_token_is_an_error(path: Path, keys: tuple[str | int, ...]) -> None:
    result = check(path, changed(GOOD, *keys, to=""))
    assert result.exit_code == 2
    key = "clients[0]" if keys[0] == "clients" else ".".join(map(str, keys[:-1]))
    line = f"mariner: error: {path}: {key}.token: ***: expected a text that is not empty\n"
    assert result.stderr == line


@pytest.mark.parametrize("wrong", [[SECRET], {SECRET: SECRET}, {"a": [SECRET]}])
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
    assert "token: ***: expected string or null" in result.stderr


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
