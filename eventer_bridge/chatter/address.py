"""Addresses of chatter end-points: ``<scheme>://<host>:<port>`` (003)."""

import re
from typing import Final, NamedTuple

from eventer_bridge.errors import ConfigurationError

_FORM: Final = re.compile(
    r"(?P<scheme>tcp|ssl)\+sbs://(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s/?#@:\[\]]+))"
    r":(?P<port>[0-9]{1,5})"
)


class Address(NamedTuple):
    """Address of a chatter end-point.

    Attributes:
        host: name or address.
        port: TCP port; 0, only to listen on, takes a free one.
        is_tls: ``ssl+sbs``; else ``tcp+sbs``.
    """

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'ssl' if self.is_tls else 'tcp'}+sbs://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        ConfigurationError: the text is no such address.
    """
    match = _FORM.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ConfigurationError(
            f"address {text!r}: expected tcp+sbs://<host>:<port> or ssl+sbs://<host>:<port>,"
            " with a port up to 65535 and an IPv6 address in brackets"
        )
    return Address(match["v6"] or match["host"], int(match["port"]), match["scheme"] == "ssl")
