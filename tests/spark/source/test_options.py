"""Options: what is wrong is named."""

import inspect
from pathlib import Path

import msgspec
import pytest

from mariner_spark import times
from mariner_spark.errors import OptionError
from mariner_spark.reader import read
from mariner_spark.source import options
from mariner_spark.times import Interval
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
            "token: is for a gateway, not for a store",
        ),
        ({"host": "h"}, "client_name: is needed for a gateway: the name of a configured client"),
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
            "from: 'soon': expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since 1970-01-01,"
            " not a year alone",
        ),
        ({"path": "p", "from": "2", "to": "1"}, "from: is later than to"),
        (
            {"path": "p", "source_to": "soon"},
            "source_to: 'soon': expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since"
            " 1970-01-01, not a year alone",
        ),
        (
            {"path": "p", "source_from": "2", "source_to": "1"},
            "source_from: is later than source_to",
        ),
        (
            {**GATEWAY, "host": "a,,b"},
            "host: 'a,,b': expected HOST or HOST:PORT, separated by commas",
        ),
        ({**GATEWAY, "host": "a:0"}, "host: 'a:0': expected a number from 1 to 65535"),
        ({**GATEWAY, "host": "a, a"}, "host: 'a, a': names a gateway twice"),
        (
            {**GATEWAY, "servers": "1,x"},
            "servers: '1,x': expected ids of servers, separated by commas",
        ),
        ({**GATEWAY, "servers": str(2**63)}, f"servers: '{2**63}': ids of servers have 64 bits"),
        (
            {**GATEWAY, "maxEventsPerBatch": "0"},
            "maxEventsPerBatch: '0': expected a number from 1 to 9223372036854775807",
        ),
        ({**GATEWAY, "failondataloss": "no"}, "failOnDataLoss: 'no': expected true or false"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as info:
        options.parse(given)
    assert str(info.value) == message


@pytest.mark.parametrize(
    "text",
    ["soon", "[]", "{", '{"1": 5}', '{"1": {"session": 1}}', '{"x": {"session": 1, "instance": 1}}',
     '{"1": {"session": -1, "instance": 1}}', '{"1": {"session": 1, "instance": 1, "more": 1}}'],
)  # fmt: skip
def test_wrong_offsets_are_told(text: str) -> None:
    with pytest.raises(OptionError) as info:
        options.parse({**GATEWAY, "startingOffsets": text})
    assert str(info.value).startswith(f"startingOffsets: {text!r}: expected ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**GATEWAY, "startingOffsets": "latest"}, "startingOffsets: is for streams"),
        ({**GATEWAY, "host": "a,b"}, "host: expected one gateway; several are for streams"),
    ],
)
def test_what_is_for_streams_is_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as info:
        options.parse(given).check_batch()
    assert str(info.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "p"}, "path: is for batch reads; a stream reads from a gateway (host)"),
        ({**GATEWAY, "to": "2024-01-01"}, "to: is for batch reads; see startingOffsets"),
        (
            {**GATEWAY, "source_from": "1"},
            "source_from: is for batch reads; filter the stream by source_timestamp",
        ),
    ],
)
def test_what_is_for_batch_reads_is_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as info:
        options.parse(given).check_stream()
    assert str(info.value) == message


def test_all_options_of_a_stream() -> None:
    starting = '{"7": {"session": 1207, "instance": 3}}'
    parsed = options.parse(
        {
            **GATEWAY,
            "host": "a, b:1234,[::1]:5,fe80::1,[::2]",
            "port": "99",
            "servers": "1, -2",
            "startingoffsets": starting,
            "MAXEVENTSPERBATCH": "10",
            "failOnDataLoss": "false",
        }
    )
    parsed.check_stream()
    addresses = [("a", 99), ("b", 1234), ("::1", 5), ("fe80::1", 99), ("::2", 99)]
    assert [(i.host, i.port) for i in parsed.gateways] == addresses
    assert parsed.selection.servers == frozenset((1, -2))
    assert parsed.starting_offsets == msgspec.json.decode(starting)
    assert (parsed.max_events, parsed.fails_on_loss) == (10, False)


def test_the_last_day_is_a_whole_one() -> None:
    given = {"from": "1970-01-02", "to": "1970-01-02", "source_to": "1970-01-02"}
    selection = options.parse({"path": "p", **given}).selection
    assert selection.time == Interval(86_400_000_000, 2 * 86_400_000_000 - 1)
    assert selection.source == Interval(None, 2 * 86_400_000_000 - 1)


def test_an_unknown_option_and_what_there_is() -> None:
    with pytest.raises(OptionError, match=r"^x: no such option, expected some of cert, client_n"):
        options.parse({"path": "p", "x": "a"})


@pytest.mark.parametrize(
    ("name", "meant"), [("name", "client_name"), ("Typ", "types"), ("TLSCA", "tls_ca")]
)
def test_an_unknown_option_and_what_may_be_meant(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}: no such option, maybe {meant}\?"):
        options.parse({"path": "p", name: "a"})


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
    assert options.parse({"path": "p", "types": text}).selection.types == types


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
    assert (gateway.host, gateway.port, gateway.client_name) == ("gateway", 1234, "app")
    assert gateway.tls
    assert gateway.context() is not None
    assert parsed.selection.time == times.Interval(1_000_000, 2_000_000)
    assert parsed.partitions == 3
    assert "secret" not in repr(parsed)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates")


def test_the_tables_of_the_readme() -> None:
    text = (Path(__file__).parents[3] / "spark" / "README.md").read_text(encoding="utf-8")
    for of_streams in False, True:
        rows = options.table(of_streams=of_streams)
        assert len(rows) > 2
        assert [row for row in rows if row not in text.splitlines()] == []


def test_the_arguments_of_read() -> None:
    others = {"spark", "lake", "version", "as_of", "columns", "every"}
    assert inspect.signature(read).parameters.keys() - others == options.ARGUMENTS.keys()
    assert read.__doc__ is not None
    for name in options.ARGUMENTS:
        assert f"\n    {name}: " in read.__doc__
