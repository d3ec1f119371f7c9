"""Reasons for the end of a client's connection, in plain words."""

from typing import Final

from mariner.errors import RemoteProtocolError

CLOSED_BY_CLIENT: Final = "closed by this client"


def lost_before_init(reason: str, request: str, is_tls: bool) -> str:
    """Text for a connection lost before the server answered the first ``request``."""
    # most servers give no reason when they refuse a client's certificate or plain TCP
    hint = "a client certificate that it accepts" if is_tls else "TLS"
    return f"{reason}, before it answered {request}; it may require {hint}"


def broken_protocol(error: RemoteProtocolError) -> str:
    """Text for a violation of the protocol by the server."""
    return f"the server violated the protocol: {error}"
