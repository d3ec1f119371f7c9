"""Memory: freed memory goes back to the system, and collecting garbage holds nobody up.

Python's collector visits all objects at once, at about 1 us each, while nothing else can run. But
hardly any garbage waits for it: only what refers to itself does.
"""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Mapping
from typing import Any, Final

from mariner import limits

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def configure() -> None:
    """Make glibc return freed memory; call it before there are threads.

    Otherwise glibc keeps for each thread about as much as the largest block ever freed there:
    400 MB after fifty answers of 15 MB. Does nothing with another C library.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, limits.OWN_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, limits.MAX_FREE_BYTES)
        mallopt(_M_ARENA_MAX, limits.MAX_ARENAS)


def freeze() -> None:
    """Make the garbage collector visit each object in one full collection only.

    It skips the 70,000 objects that imports created before this call, and what later full
    collections found alive: 27 objects of each connection. Garbage among these is found when
    memory has doubled (see :class:`_Freezer`).
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, limits.YOUNG_COLLECTIONS)
    gc.callbacks.append(_Freezer())


class _Freezer:
    """Called by the collector: freezes what a full collection has left.

    When the number of allocated blocks has doubled since all objects were visited, the next full
    collection visits all of them again. Garbage thus takes no more than the rest does.
    """

    def __init__(self) -> None:
        self._is_thawed = False
        self._max_blocks = self._twice(sys.getallocatedblocks())

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase != "stop" or info["generation"] < 2:
            return
        n_blocks = sys.getallocatedblocks()
        if self._is_thawed:
            self._max_blocks = self._twice(n_blocks)
        self._is_thawed = n_blocks > self._max_blocks
        if self._is_thawed:
            gc.unfreeze()
        else:
            gc.freeze()

    @staticmethod
    def _twice(n_blocks: int) -> int:
        return n_blocks + max(n_blocks, limits.MIN_GROWTH_BLOCKS)
