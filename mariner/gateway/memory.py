"""Memory: freed memory goes back to the system, and collecting garbage holds nobody up.

Python's collector visits all objects at once, and nothing else can run meanwhile: for 0.1 s and
more with thousands of connections. But only garbage that refers to itself waits for it.
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
    """Set up the allocator and the collector; call it once, before there are threads.

    By default, glibc keeps for each thread about as much as the largest block ever freed there:
    400 MB after fifty answers of 15 MB. Another C library is left as it is.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, limits.OWN_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, limits.MAX_FREE_BYTES)
        mallopt(_M_ARENA_MAX, limits.MAX_ARENAS)
    gc.set_threshold(*limits.COLLECTIONS)
    gc.callbacks.append(_freezer)


def collect() -> None:
    """Collect garbage now, and freeze the rest; call it after much was created.

    Imports create 70,000 objects, a large store its event types.
    """
    gc.collect()
    gc.freeze()
    _freezer.begin()
    gc.collect()  # visits nothing: the next one waits for a quarter of what this one visited


class _Freezer:
    """Called by the collector: freezes what a full collection has left, so that no other visits it.

    The number of allocated blocks is compared with its minimum since all objects were visited. When
    it has doubled, the next full collection visits all of them, and the one after that up to a
    quarter as many. So garbage takes no more blocks than the rest, or ``limits.MIN_GROWTH_BLOCKS``.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Take what is there now for visited."""
        self._is_thawed = False
        self._max_blocks = self._twice(sys.getallocatedblocks())

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase != "stop" or info["generation"] < 2:
            return
        n_blocks = sys.getallocatedblocks()
        max_blocks = self._twice(n_blocks)
        self._max_blocks = max_blocks if self._is_thawed else min(self._max_blocks, max_blocks)
        self._is_thawed = n_blocks > self._max_blocks
        if self._is_thawed:
            gc.unfreeze()
        else:
            gc.freeze()

    @staticmethod
    def _twice(n_blocks: int) -> int:
        return n_blocks + max(n_blocks, limits.MIN_GROWTH_BLOCKS)


_freezer: Final = _Freezer()
