"""Calls of modules: which are under way, for how long, and how their exceptions are handled.

Belongs to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError, ModuleError
from eventer_bridge.excerpts import cut

mlog = logging.getLogger(__name__)

T = TypeVar("T")
Args = TypeVarTuple("Args")


class _Call:
    __slots__ = ("n_sweeps", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_sweeps = 0


class Calls:
    """Calls of module sessions; a task makes one at a time."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Task[Any] | None, _Call] = {}

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
        for call in self._under_way.values():
            call.n_sweeps += 1
            if call.n_sweeps * limits.SWEEP_PERIOD_S > allowed_s + limits.SWEEP_PERIOD_S:
                return call.name
        return None

    async def make(self, name: str, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Call code of a module.

        Args:
            name: of the module.
            function: the code.
            args: its arguments.

        Raises:
            ModuleError: it raised anything.
            asyncio.CancelledError: the task was cancelled.
        """
        task = asyncio.current_task()
        self._under_way[task] = _Call(name)
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
        reason += f": {cut(str(error))}"
    return ModuleError(reason)
