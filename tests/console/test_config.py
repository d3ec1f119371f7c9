"""Configurations of the console, and what is said of wrong ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError
from mariner_console import config
from tests.console.support import GUEST, OPERATOR

GATEWAY = {"name": "a", "host": "127.0.0.1", "client": "console", "token": "secret"}


def write(path: Path, **keys: Any) -> Path:
    data = {"users": [OPERATOR], "gateways": [GATEWAY], **keys}
    path = path / "console.json"
    path.write_text(json.dumps(data))
    return path


def test_what_need_not_be_said(tmp_path: Path) -> None:
    conf = config.load(write(tmp_path))
    assert (conf.listen.host, conf.listen.port, conf.listen.tls) == ("127.0.0.1", 23081, None)
    assert conf.gateways[0].port == 23014
    assert conf.gateways[0].alarms == (("alarm", "*"),)
    assert "secret" not in repr(conf)


def test_the_console_of_make_is_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = Path("deploy/development-console.yaml").resolve()
    text = path.read_text()
    assert "var/certs/ca.pem" in text
    copy = tmp_path / "console.yaml"
    copy.write_text(text.replace("      tls: {ca: var/certs/ca.pem}\n", ""))
    [user] = config.load(copy).users
    [known] = config.passwords(user, "password")
    assert known.hash.salt is not None
    assert tokens.scrypt("development", known.hash.salt) == known.hash.digest


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"users": []}, "users: expected at least one"),
        ({"gateways": []}, "gateways: expected at least one"),
        ({"others": 1}, "Object contains unknown field `others`"),
        ({"listen": {"port": "1"}}, "Expected `int`, got `str` - at `$.listen.port`"),
        ({"listen": {"port": -1}}, "listen.port: -1: expected 0 to 65535"),
        (
            {"listen": {"host": "192.0.2.1"}},
            "listen.host: '192.0.2.1': expected a loopback address, as there is no listen.tls",
        ),
        ({"listen": {"tls": {"cert": "no.pem", "key": "no.key"}}}, "listen.tls: no.pem: No such"),
        (
            {"users": [OPERATOR, OPERATOR]},
            "users[1].name: 'operator': expected a name that no other one has",
        ),
        (
            {"users": [{"name": "a" * 257, "password": "plain"}]},
            "Expected `str` of length <= 256 - at `$.users[0].name`",
        ),
        (
            {"users": [{"name": "a", "password": "plain"}]},
            "users[0].password: ***: expected the hash that `mariner token hash` prints",
        ),
        (
            {"users": [{"name": "a", "password": None}]},
            "users[0].password: ***: expected the hash that `mariner token hash` prints",
        ),
        (
            {"gateways": [{**GATEWAY, "port": 0}]},
            "gateways[0].port: 0: expected 1 to 65535",
        ),
        (
            {"gateways": [{**GATEWAY, "metrics": "file:///etc/passwd"}]},
            "gateways[0].metrics: 'file:///etc/passwd': expected a URL",
        ),
        (
            {"gateways": [{**GATEWAY, "token": tokens.sha256_text("a")}]},
            "gateways[0].token: ***: expected the token itself",
        ),
        ({"gateways": [{**GATEWAY, "tls": {"ca": "no.pem"}}]}, "gateways[0].tls: no.pem: No such"),
        ({"gateways": [{**GATEWAY, "alarms": [["*", "a"]]}]}, "gateways[0].alarms: "),
    ],
)
def test_errors_name_the_key(tmp_path: Path, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)) as caught:
        config.load(write(tmp_path, **keys))
    assert str(tmp_path) in str(caught.value)
    assert "plain" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.ini", "", "expected a file ending in .yaml, .yml, .toml, .json"),
        ("a.yaml", "a: [token-of-someone\n", "line 2, column 1: did not find expected"),
        ("a.json", "token-of-someone", "Expecting value: line 1 column 1"),
        ("a.yaml", "users: []\nusers: []\n", "line 2, column 1: users: the key is there twice"),
        ("a.json", "[]", "Expected `object`, got `array`"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(expected)) as caught:
        config.load(path)
    assert "someone" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        config.load(tmp_path / "a.yaml")


def test_a_user_may_have_two_passwords(tmp_path: Path) -> None:
    both = [OPERATOR["password"], {"value": GUEST["password"], "expires": "2020-01-01"}]
    conf = config.load(write(tmp_path, users=[{"name": "a", "password": both}]))
    assert [i.is_expired for i in config.passwords(conf.users[0], "")] == [False, True]
