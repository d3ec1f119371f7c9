"""Why a client has no connection any more, in plain words."""

from typing import Final

from mariner.errors import RemoteProtocolError

CLOSED_BY_CLIENT: Final = "closed by this client"


def lost_before_init(reason: str, request: str, is_tls: bool) -> str:
    """Why the connection was lost before the server even answered the first ``request``."""
    # most servers do not say so when they refuse a client's certificate or plain TCP
    hint = "a client certificate that it accepts" if is_tls else "TLS"
    return f"{reason}, before it answered {request}; it may require {hint}"


def broken_protocol(error: RemoteProtocolError) -> str:
    """What the server did that the protocol does not allow."""
    return f"the server did not keep to the protocol: {error}"
