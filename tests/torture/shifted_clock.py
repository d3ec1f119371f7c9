"""``mariner`` with a clock that somebody else shifts, while it runs.

The file named by ``CLOCK_FILE`` holds nanoseconds that are added to the time of day: eight
bytes, little-endian, signed. Everything else is as in ``python -m mariner``.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

CLOCK_FILE: Final = "MARINER_TESTS_CLOCK_FILE"

_OFFSET: Final = struct.Struct("<q")


def write_offset(file: Path, seconds: float) -> None:
    """Shift the clock of whoever reads this file."""
    with file.open("r+b" if file.exists() else "w+b") as stream:
        stream.write(_OFFSET.pack(round(seconds * 1e9)))


def _install(file: Path) -> None:
    with file.open("rb") as stream:
        offset = mmap.mmap(stream.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    real = time.time_ns

    def time_ns() -> int:
        shift: int = _OFFSET.unpack(offset)[0]
        return real() + shift

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def main() -> None:
    """Shift the clock, then be ``mariner``."""
    _install(Path(os.environ[CLOCK_FILE]))
    from mariner.cli import main as mariner

    mariner()


if __name__ == "__main__":
    main()
