import pytest

from eventer_bridge.chatter.connection import Address, parse_address
from eventer_bridge.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp+sbs://127.0.0.1:23012", Address("127.0.0.1", 23012)),
        ("ssl+sbs://events.example.org:0", Address("events.example.org", 0, is_tls=True)),
        ("tcp+sbs://[::1]:65535", Address("::1", 65535)),
        ("ssl+sbs://a-b_c:1", Address("a-b_c", 1, is_tls=True)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:23012",
        "http://127.0.0.1:23012",
        "TCP+SBS://127.0.0.1:23012",
        "tcp+sbs://127.0.0.1",
        "tcp+sbs://:23012",
        "tcp+sbs://127.0.0.1:",
        "tcp+sbs://127.0.0.1:65536",
        "tcp+sbs://127.0.0.1:-1",
        "tcp+sbs://127.0.0.1:٢٣",
        "tcp+sbs://::1:23012",
        "tcp+sbs://[host]:23012",
        "tcp+sbs://user@host:23012",
        "tcp+sbs://host:23012/path",
        "tcp+sbs://ho st:23012",
        "tcp+sbs://host:23012\n",
    ],
)
def test_errors_tell_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigurationError) as e:
        parse_address(text)
    assert str(e.value) == (
        f"address {text!r}: expected tcp+sbs://<host>:<port> or ssl+sbs://<host>:<port>,"
        " with a port up to 65535 and an IPv6 address in brackets"
    )
