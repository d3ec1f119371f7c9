"""Files that are read whole: those of ``schemas/``, and those that operators name."""

import errno
import importlib.resources
import os
import stat
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_schema(name: str) -> str:
    """Text of a file of ``schemas/``.

    Args:
        name: file name, for example ``mariner.yaml``.

    Raises:
        FileNotFoundError: there is no such file.
    """
    packaged = importlib.resources.files("eventer_bridge") / "schemas" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    # a checkout (even one installed in editable mode) has them at its top level
    checkout = Path(__file__).parent.parent / "schemas" / name
    return checkout.read_text(encoding="utf-8")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a regular file; any other may block for ever, or never end. Any thread; blocks.

    Args:
        path: the file, or a link to it.
        max_bytes: its maximum size.

    Raises:
        OSError: it cannot be read, is not regular or too large; ``strerror`` says why.
    """
    # opening a FIFO would wait for its writer
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special")
            raise OSError(errno.EINVAL, f"is {kind}, expected a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        n_bytes = max(status.st_size, len(data))  # one of /proc does not tell its size
        text = f"has {n_bytes} bytes, at most {max_bytes} are read"
        raise OSError(errno.EFBIG, text, str(path))
    return data
