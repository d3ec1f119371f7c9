"""Errors of the event core; :class:`EventerBridgeError` is the root of all."""

import asyncio
import enum
from typing import Final


class EventerBridgeError(Exception):
    """Root of the tree."""


class InvalidEventError(EventerBridgeError, ValueError):
    """An event, a timestamp or a type is not what the specification allows."""


class InvalidSubscriptionError(InvalidEventError):
    """A query type has ``*`` in a place other than the last."""


class ConditionError(InvalidEventError):
    """An event may not be stored; the message says which, which condition, and why."""


class ConfigurationError(EventerBridgeError):
    """A configuration or a file that it names cannot be used: key, value, what was expected."""


class ControlError(EventerBridgeError):
    """A running process did not do what its operator requested."""


class ProtocolError(EventerBridgeError):
    """A wire protocol was not kept."""


class LocalProtocolError(ProtocolError):
    """What we were about to send is not allowed now: a mistake of ours."""


class RemoteProtocolError(ProtocolError):
    """What the peer sent is not allowed; the connection is to be closed."""


class FrameError(RemoteProtocolError):
    """The peer's framing is wrong or announces more than is allowed."""


class InvalidMessageError(RemoteProtocolError):
    """A message that cannot be decoded; the text says which part, and what was expected."""


class ConnectError(EventerBridgeError):
    """No connection to the server, or TLS was refused; the message says why."""


class InitError(EventerBridgeError):
    """A server declined the client; the message is its reason, ``address`` who it is, if known."""

    def __init__(self, text: str, address: str | None = None) -> None:
        super().__init__(text)
        self.address = address


class RightsError(EventerBridgeError):
    """A client may not do what it asked for, or a schema of its rights does not hold."""


class RegisterError(EventerBridgeError):
    """A server refused a registration, with its reason if it gave one: nothing of it is stored."""


class OutcomeUnknownError(EventerBridgeError):
    """Whether the events of a registration are stored, or will be, is not known.

    A sync failed, or an answer was lost on its way. Registering them again may store them twice:
    that is the caller's decision. ``decided`` is done when the store itself has found out, with
    whether they are stored; cancelled if it closes before.
    """

    def __init__(self, text: str, decided: asyncio.Future[bool] | None = None) -> None:
        super().__init__(text)
        self.decided = decided

    def is_stored(self) -> bool | None:
        """What was decided; None: nothing, yet or ever."""
        decided = self.decided
        if decided is None or not decided.done() or decided.cancelled():
            return None
        return decided.result()


class CoreError(EventerBridgeError):
    """The core cannot do what was asked."""


class NotOperationalError(CoreError):
    """Registration while the server is not OPERATIONAL."""


class LimitError(CoreError):
    """A limit would be exceeded; the message names it."""


class QuotaError(LimitError):
    """A client would exceed its quota; ``name`` is that of the bound."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


class RequestKeyError(CoreError):
    """A request key cannot be used; nothing is stored. The message says why."""


class RequestOrderError(CoreError):
    """The registration that a keyed one comes after is not stored; nor is this one."""


class ModuleError(CoreError):
    """A module failed the registration; the message names it, the log says why."""


class ClosedError(CoreError):
    """The resource is closed, or was while the request was under way."""


class StorageError(CoreError):
    """The store failed; the message says where and why."""


class StoreLockedError(StorageError):
    """Another process has the store open."""


class StoreFormatError(StorageError):
    """The store has a format that this version does not know."""


class StoreDamagedError(StorageError):
    """The files of the store are not as they were written."""


class StoreLossError(StoreDamagedError):
    """The log misses what was acknowledged; the store can be opened without it.

    The log cannot be used from file ``log_number`` on, of which ``good_bytes`` can be.
    """

    def __init__(self, text: str, log_number: int, good_bytes: int) -> None:
        super().__init__(text)
        self.log_number = log_number
        self.good_bytes = good_bytes


class Refusal(enum.StrEnum):
    """Why a registration was refused, as metrics name it."""

    RIGHTS = "rights or schema"
    INVALID_MESSAGE = "invalid message"
    INVALID_EVENT = "invalid event"
    CONDITION = "condition"
    LIMIT = "limit"
    REQUEST_KEY = "request key"
    NOT_OPERATIONAL = "not operational"
    MODULE = "module"
    STORAGE = "storage"
    CLOSED = "closed"
    REMOTE = "remote server"
    OTHER = "internal error"


_REFUSALS: Final[dict[type[BaseException], Refusal]] = {
    RightsError: Refusal.RIGHTS,
    InvalidMessageError: Refusal.INVALID_MESSAGE,
    ConditionError: Refusal.CONDITION,
    InvalidEventError: Refusal.INVALID_EVENT,
    LimitError: Refusal.LIMIT,
    RequestKeyError: Refusal.REQUEST_KEY,
    RequestOrderError: Refusal.REQUEST_KEY,
    NotOperationalError: Refusal.NOT_OPERATIONAL,
    ModuleError: Refusal.MODULE,
    StorageError: Refusal.STORAGE,
    ClosedError: Refusal.CLOSED,
    RegisterError: Refusal.REMOTE,
}


def refusal_of(error: BaseException) -> Refusal:
    """What an error counts as."""
    found = (_REFUSALS[i] for i in type(error).__mro__ if i in _REFUSALS)
    return next(found, Refusal.OTHER)


class Outcome(enum.StrEnum):
    """What became of a registration that failed."""

    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    """It is not stored, for a reason that may pass."""
    UNKNOWN = "unknown"


_UNAVAILABLE: Final = (NotOperationalError, StorageError, ClosedError, RequestOrderError)


def outcome_of(error: BaseException) -> Outcome:
    """What became of a registration that failed with this error."""
    if isinstance(error, OutcomeUnknownError):
        return Outcome.UNKNOWN
    return Outcome.UNAVAILABLE if isinstance(error, _UNAVAILABLE) else Outcome.REFUSED
