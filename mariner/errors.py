"""Errors of the Mariner side.

::

    MarinerError
    ├── ProtocolError
    │   ├── LocalProtocolError       what we were about to send is not allowed now
    │   └── RemoteProtocolError      what the peer sent is not allowed
    │       ├── FrameError           its framing (size of the header or of the message)
    │       └── InvalidMessageError  its message: JSON pointer, reason
    ├── ConnectError                 no connection, or TLS refused
    ├── InitError                    the server declined: name, token, …
    ├── RegisterError                the server refused a registration: nothing of it is stored
    ├── OutcomeUnknownError          whether a registration is stored is not known
    └── ConnectionLostError          closed, or was while a request was under way (also a
                                     ConnectionError)
"""


class MarinerError(Exception):
    """Root of the tree."""


class ProtocolError(MarinerError):
    """The protocol (002) was not kept."""


class LocalProtocolError(ProtocolError):
    """What we were about to send is not allowed in this state: a mistake of ours."""


class RemoteProtocolError(ProtocolError):
    """What the peer sent is not allowed; the connection is to be closed."""


class FrameError(RemoteProtocolError):
    """The peer's framing is wrong or announces more than is allowed."""


class InvalidMessageError(RemoteProtocolError):
    """A message that the contract (``schemas/mariner.yaml``) rejects.

    Attributes:
        pointer: JSON pointer to the place in the message ("" is the whole message).
        reason: what is wrong there and what was expected.
        msg_type: the message's type, as far as it could be read.
        register_id: identifier of a ``register_req``, so that it can be answered.
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

    def of_registration(self, register_id: int) -> "InvalidMessageError":
        """The same about a ``register_req`` of which the identifier is known."""
        return InvalidMessageError(
            self.reason, pointer=self.pointer, msg_type="register_req", register_id=register_id
        )


class ConnectError(MarinerError):
    """No connection to the server, or TLS was refused; the message says why."""


class InitError(MarinerError):
    """The server declined the connection; the message is the server's reason."""


class RegisterError(MarinerError):
    """The server refused a registration: nothing of it is stored.

    The message is its reason, where it gave one.
    """


class OutcomeUnknownError(MarinerError):
    """Whether the events of a registration are stored, or will be, is not known.

    The server said so (its disk failed), or its answer was lost with the connection. Who
    registers them again may have them twice: that is its decision.
    """


class ConnectionLostError(MarinerError, ConnectionError):
    """The connection is closed, or was while a request waited for its answer.

    Of a registration: it was not sent. One that was is an :class:`OutcomeUnknownError`.
    """
