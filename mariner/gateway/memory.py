"""Memory: what was freed goes back to the system, and what is there for good is left alone."""

import contextlib
import ctypes
import gc
from typing import Final

from mariner import limits

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def configure() -> None:
    """Have glibc return what was freed; to be called before there are threads.

    Otherwise it keeps for each thread about as much as the largest block that was ever freed
    there: 400 MB after fifty answers of 15 MB. Where there is another C library, it stays as
    it is.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, limits.OWN_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, limits.MAX_FREE_BYTES)
        mallopt(_M_ARENA_MAX, limits.MAX_ARENAS)


def freeze() -> None:
    """Have the garbage collector pass over everything that is there by now.

    What was imported makes 70,000 objects, which it would look at again and again: 20 to 80 ms
    in which nobody else can run. Full collections are a fifth as frequent as by default, because
    each connection is 27 objects more to look at.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, limits.YOUNG_COLLECTIONS)
