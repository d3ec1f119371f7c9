"""Options: what is wrong is named."""

from pathlib import Path

import pytest

from mariner_spark import times
from mariner_spark.errors import OptionError
from mariner_spark.source import options
from tests.support.certificates import Certificates, make_certificates

GATEWAY = {"host": "gateway", "client_name": "app"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "path, host: expected one of them: a store, or a gateway"),
        ({"path": "p", **GATEWAY}, "path, host: expected one of them: a store, or a gateway"),
        ({"path": ""}, "path: '': is empty"),
        (
            {"path": "p", "token": "secret"},
            "token: is for a gateway (host), but path names a store",
        ),
        ({"host": "h"}, "client_name: is needed with host: the name of a configured client"),
        ({**GATEWAY, "host": ""}, "host: '': is empty"),
        ({**GATEWAY, "port": "70000"}, "port: '70000': expected a number from 1 to 65535"),
        ({**GATEWAY, "port": "x"}, "port: 'x': expected a number from 1 to 65535"),
        ({**GATEWAY, "tls": "yes"}, "tls: 'yes': expected true or false"),
        ({**GATEWAY, "tls": "false", "tls_ca": "f"}, "tls: is false, but there are files for it"),
        ({**GATEWAY, "cert": "c"}, "key: is needed with cert"),
        ({**GATEWAY, "key": "k"}, "cert: is needed with key"),
        ({"path": "p", "partitions": "0"}, "partitions: '0': expected a number from 1 to 10000"),
        ({"path": "p", "partitions": "²"}, "partitions: '²': expected a number from 1 to 10000"),
        ({"path": "p", "types": ""}, "types: '': is empty"),
        ({"path": "p", "types": "[]"}, "types: '[]': expected an event type"),
        (
            {"path": "p", "types": "a/*/b"},
            "types: 'a/*/b': query type 'a/*/b': '*' is allowed only as the last segment",
        ),
        (
            {"path": "p", "types": "a~"},
            "types: 'a~': after '~' expected 0 (for '~') or 1 (for '/')",
        ),
        (
            {"path": "p", "from": "soon"},
            "from: 'soon': expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since 1970-01-01",
        ),
        ({"path": "p", "from": "2", "to": "1"}, "from: is later than to"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as info:
        options.parse(given)
    assert str(info.value) == message


def test_an_unknown_option_and_what_there_is() -> None:
    with pytest.raises(OptionError, match=r"^typ: no such option, expected some of cert, client"):
        options.parse({"path": "p", "typ": "a"})


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(OptionError, match=r"^tls_ca, cert, key: .*ca\.pem: No such file"):
        options.parse({**GATEWAY, "tls_ca": str(missing)})


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("a/b/*", (("a", "b", "*"),)),
        ("a, b/?", (("a",), ("b", "?"))),
        ("a~1b", (("a/b",),)),
        ('["a,b/*", ["c/d", "*"], []]', (("a,b", "*"), ("c/d", "*"), ())),
    ],
)
def test_types(text: str, types: tuple[tuple[str, ...], ...]) -> None:
    assert options.parse({"path": "p", "types": text}).types == types


def test_all_options_of_a_gateway(certificates: Certificates) -> None:
    parsed = options.parse(
        {
            "HOST": "gateway",
            "Port": "1234",
            "client_name": "app",
            "token": "secret",
            "tls_ca": str(certificates.ca),
            "cert": str(certificates.client_cert),
            "key": str(certificates.client_key),
            "from": "1",
            "to": "2",
            "partitions": "3",
        }
    )
    gateway = parsed.gateway
    assert gateway is not None
    assert (gateway.host, gateway.port, gateway.client_name) == ("gateway", 1234, "app")
    assert gateway.tls
    assert gateway.context() is not None
    assert parsed.time == times.Interval(1_000_000, 2_000_000)
    assert parsed.partitions == 3
    assert "secret" not in repr(parsed)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates")
