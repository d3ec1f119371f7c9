"""Calls of modules: which are under way, since when, and what becomes of what they raise.

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
        """Look for a module that goes on although it was interrupted; None: there is none.

        To be called every ``limits.SWEEP_PERIOD_S``. It is the calls that are counted, not the
        seconds: while the event loop stands still, nobody can be interrupted.
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
            function: what is called.
            args: its arguments.

        Raises:
            ModuleError: it raised, whatever that was.
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
    """Whether the current task ends with this because it was cancelled.

    Everything else that a module raises is a failure of it: also ``SystemExit``, what extension
    modules derive from ``BaseException``, and that something of its own was cancelled.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def failure(name: str, error: BaseException) -> ModuleError:
    """What the registration fails with; the log says more."""
    mlog.error("module failed", extra={"module_name": name}, exc_info=error)
    reason = f"module {name} failed: {type(error).__name__}"
    if isinstance(error, InvalidEventError):  # a reason of ours
        reason += f": {cut(str(error))}"
    return ModuleError(reason)
