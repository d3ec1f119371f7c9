"""Opening the file of a log anew, after it was moved away."""

import errno
import logging
import os
from pathlib import Path
from typing import TextIO

from mariner import limits


def ext_reopen(handler: logging.FileHandler) -> None:
    """Go on in a new file if the one that is open is not at its path any more; may block.

    Raises:
        OSError: it cannot be opened, or the thread of the log hangs; nothing is changed.
    """
    assert handler.lock is not None
    if not handler.lock.acquire(timeout=limits.LOG_CLOSE_TIMEOUT_S):
        raise OSError(errno.EBUSY, "writing to it hangs", handler.baseFilename)
    try:
        if handler.stream is None or _is_there(handler.baseFilename, handler.stream):
            return
        before = handler.setStream(handler._open())
        if before is not None:
            before.close()
    finally:
        handler.lock.release()


def _is_there(path: str, stream: TextIO) -> bool:
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False
