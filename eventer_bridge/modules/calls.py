"""Calls of modules: which are under way, for how long, and how their exceptions are handled.

Belongs to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec

from eventer_bridge import limits, model, payloads
from eventer_bridge.core.validation import check_payload
from eventer_bridge.errors import InvalidEventError, ModuleError

mlog = logging.getLogger(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")


class Calls:
    """Calls of module sessions; a task makes one at a time."""

    def __init__(self) -> None:
        # names of modules, and how often they were swept
        self._under_way: dict[asyncio.Task[Any] | None, tuple[str, int]] = {}

    @property
    def is_in_one(self) -> bool:
        """Whether the current task makes one."""
        return asyncio.current_task() in self._under_way

    def sweep(self) -> str | None:
        """Find a module that keeps running although it was interrupted; None: there is none.

        Call it every ``limits.SWEEP_PERIOD_S``. It counts its calls, not seconds: while the event
        loop is blocked, nothing can be interrupted.
        """
        allowed_s = limits.MODULE_TIMEOUT_S + limits.INTERRUPTED_TIMEOUT_S
        for task, (name, n_sweeps) in self._under_way.items():
            self._under_way[task] = name, n_sweeps + 1
            if n_sweeps * limits.SWEEP_PERIOD_S > allowed_s:
                return name
        return None

    async def make(self, name: str, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Call code of a module. It raises ``ModuleError``, or that this task was cancelled."""
        task = asyncio.current_task()
        self._under_way[task] = name, 0
        try:
            return await function(*args)
        except BaseException as e:
            if is_cancellation(e):
                raise
            raise failure(name, e) from e
        finally:
            del self._under_way[task]


def is_cancellation(error: BaseException) -> bool:
    """Whether the current task ends with this error because it was cancelled.

    Everything else that a module raises is its failure, including ``SystemExit``, exceptions that
    extension modules derive from ``BaseException``, and the cancellation of a task of its own.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def failure(name: str, error: BaseException) -> ModuleError:
    """The error that the registration fails with; the log has more."""
    mlog.error("module failed", extra={"module_name": name}, exc_info=error)
    reason = f"module {name} failed: {type(error).__name__}"
    if isinstance(error, InvalidEventError):  # our own text
        reason += f": {model.cut(str(error))}"
    return ModuleError(reason)


_decode_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def check_made(event: model.RegisterEvent | model.ProcessEvent) -> None:
    """Refuse an event of a module that no client could register. Pure; any thread.

    ``TypeError``: the value of a field has another type than the model declares.
    ``InvalidEventError``: a source timestamp is out of range, a text has no UTF-8 form (a lone
    surrogate), or a payload is not JSON, is too large, or exceeds ``payloads.exceeded``.
    """
    _check_type(event.type)
    _check_timestamp(event.source_timestamp)
    payload: Any = event.payload
    if isinstance(payload, model.JsonPayload):
        _check_json(payload.data)
    elif isinstance(payload, model.BinaryPayload):
        _check_binary(payload.data_type, payload.data)
    elif payload is not None:
        raise TypeError(f"payload {payload!r}: expected JsonPayload, BinaryPayload or None")
    check_payload(event.payload)


def _check_type(event_type: model.EventType) -> None:
    given: Any = event_type
    if not isinstance(given, tuple) or not all(isinstance(i, str) for i in given):
        raise TypeError(f"type {given!r}: expected a tuple of str")
    if not all(map(_is_text, given)):
        raise InvalidEventError(f"type {given!a} has a lone surrogate, which is not Unicode text")


def _check_timestamp(source_timestamp: Any) -> None:
    if source_timestamp is None:
        return
    if not isinstance(source_timestamp, model.Timestamp):
        raise TypeError(f"source_timestamp {source_timestamp!r}: expected a Timestamp or None")
    if type(source_timestamp.s) is not int or type(source_timestamp.us) is not int:
        raise TypeError(f"source_timestamp {source_timestamp!r}: expected integers")
    model.Timestamp.checked(source_timestamp.s, source_timestamp.us)


def _check_json(data: Any) -> None:
    if not isinstance(data, msgspec.Raw):
        raise TypeError(
            f"data of a JsonPayload is {type(data).__name__}, expected msgspec.Raw:"
            " use JsonPayload.of(value)"
        )
    text = bytes(data)
    try:
        if payloads.is_too_deep(text):
            raise InvalidEventError("payload is nested too deeply")
        if not text.isascii():
            text.decode()  # msgspec does not check raw text
        _decode_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidEventError(f"payload is not JSON: {e}") from None


def _check_binary(data_type: Any, data: Any) -> None:
    if not isinstance(data_type, str) or not isinstance(data, bytes):
        raise TypeError(
            f"BinaryPayload of {type(data_type).__name__} and {type(data).__name__}, expected"
            " str and bytes"
        )
    if not _is_text(data_type):
        raise InvalidEventError(f"payload label {data_type[:40]!a} has a lone surrogate")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
