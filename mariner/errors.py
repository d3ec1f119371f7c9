"""Errors of the Mariner side: those of ``eventer_bridge.errors``, and some of its own.

::

    EventerBridgeError (MarinerError)
    ├── ProtocolError
    │   ├── LocalProtocolError       what we were about to send is not allowed now
    │   └── RemoteProtocolError      what the peer sent is not allowed
    │       ├── FrameError           its framing (size of the header or of the message)
    │       └── InvalidMessageError  its message
    │           └── ContractError    the contract rejects it: JSON pointer, reason
    ├── ConnectError                 no connection, or TLS refused
    │   └── UnknownHostError         the name of the host cannot be resolved
    ├── InvalidEventError            an event type, moment or payload is none (also a ValueError)
    ├── InitError                    the server declined: name, token, …
    │   └── BusyError                for a reason that may pass: too many connections, say
    ├── RegisterError                the server refused a registration: nothing of it is stored
    │   └── UnavailableError         for a reason that may pass: it is not OPERATIONAL, say
    ├── OutcomeUnknownError          whether a registration is stored is not known
    ├── UnsupportedError             the server does not know an extension of ours
    ├── BufferUnusableError          a buffer on this machine's disk is damaged, locked, …
    ├── BufferFullError              it has no room for a registration
    ├── GapError                     retention deleted events that were not seen
    │   └── OtherHistoryError        what was seen is not what the server has
    └── ClosedError
        ├── CursorLostError          another connection has the cursor now
        └── ConnectionLostError      closed, or was while a request was under way (also a
                                     ConnectionError)
"""

from eventer_bridge.errors import (
    ClosedError,
    ConnectError,
    EventerBridgeError,
    FrameError,
    InitError,
    InvalidEventError,
    InvalidMessageError,
    LocalProtocolError,
    OutcomeUnknownError,
    ProtocolError,
    RegisterError,
    RemoteProtocolError,
)
from eventer_bridge.model import EventId

__all__ = [
    "BufferFullError",
    "BufferUnusableError",
    "BusyError",
    "ClosedError",
    "ConnectError",
    "ConnectionLostError",
    "ContractError",
    "CursorLostError",
    "FrameError",
    "GapError",
    "InitError",
    "InvalidEventError",
    "InvalidMessageError",
    "LocalProtocolError",
    "MarinerError",
    "OtherHistoryError",
    "OutcomeUnknownError",
    "ProtocolError",
    "RegisterError",
    "RemoteProtocolError",
    "UnavailableError",
    "UnknownHostError",
    "UnsupportedError",
]

MarinerError = EventerBridgeError
"""Root of the tree, as users of the Mariner client know it."""


class ContractError(InvalidMessageError):
    """A message that the contract (``schemas/mariner.yaml``) rejects, at a JSON pointer.

    ``msg_type`` is as far as it could be read, ``register_id`` that of a ``register_req``, so that
    it can be answered.
    """

    def __init__(
        self,
        reason: str,
        *,
        pointer: str = "",
        msg_type: str | None = None,
        register_id: int | None = None,
    ) -> None:
        super().__init__(f"{msg_type or 'message'}: {pointer or '(root)'}: {reason}")
        self.reason = reason
        self.pointer = pointer
        self.msg_type = msg_type
        self.register_id = register_id

    def of_registration(self, register_id: int) -> "ContractError":
        """The same about a ``register_req`` of which the identifier is known."""
        return ContractError(
            self.reason, pointer=self.pointer, msg_type="register_req", register_id=register_id
        )


class UnknownHostError(ConnectError):
    """No connection to the server: the name of its host cannot be resolved."""


class BusyError(InitError):
    """A server declined the client for a reason that may pass; it may be tried again."""


class UnavailableError(RegisterError):
    """A server cannot store a registration now; nothing of it is stored. It may be repeated."""


class BufferUnusableError(EventerBridgeError):
    """A buffer on the local disk cannot be used; the text says where and why."""


class BufferFullError(EventerBridgeError):
    """A buffer on the local disk has no room for a registration; nothing of it is queued."""


class UnsupportedError(EventerBridgeError):
    """The server does not know an extension of the protocol; nothing was sent."""


class GapError(EventerBridgeError):
    """Retention deleted events of a server that the client did not see.

    ``oldest`` is the next one that there is; None: there is none.
    """

    def __init__(self, server_id: int, oldest: EventId | None) -> None:
        text = f"events of server {server_id} were deleted before they were seen"
        super().__init__(
            text if oldest is None else f"{text}; the next is {oldest.session}/{oldest.instance}"
        )
        self.server_id = server_id
        self.oldest = oldest


class OtherHistoryError(GapError):
    """What was seen of a server is not what is stored there: its store was restored, or made anew.

    Its events up to the session ``last`` (0: none) are the same. Later ones with the ids of those
    that were seen are others, and those that were not seen of these are lost.
    """

    def __init__(
        self, server_id: int, reason: str, *, last: int = 0, oldest: EventId | None = None
    ) -> None:
        super().__init__(server_id, oldest)
        self.args = (reason,)
        self.last = last


class CursorLostError(ClosedError):
    """The client has its cursor no more: another connection has it, or an operator took it."""


class ConnectionLostError(ClosedError, ConnectionError):
    """The connection is closed, or was while a request waited for its answer.

    A registration was not sent: one that was is an :class:`OutcomeUnknownError`.
    """
