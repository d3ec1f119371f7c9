"""What scenarios have in common: a coroutine that returns what was done and counted."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the rounds that are done, and all."""


class UnavailableError(Exception):
    """This machine does not allow a scenario; the text says what is missing."""


def no_progress(done: int, total: int) -> None:
    """For who does not look."""
