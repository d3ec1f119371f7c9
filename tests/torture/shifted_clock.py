"""``mariner`` with a clock that somebody else shifts, while it runs.

The file named by ``CLOCK_FILE`` holds nanoseconds that are added to the time of day, nanoseconds
that passed besides, by all clocks but ``time.monotonic``, and the number of the machine's start:
eight bytes each, little-endian, signed. Everything else is as in ``python -m mariner``.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

CLOCK_FILE: Final = "MARINER_TESTS_CLOCK_FILE"

_OFFSET: Final = struct.Struct("<qqq")


def write_offset(file: Path, seconds: float, passed_s: float = 0.0, start: int = 0) -> None:
    """Shift the clock of whoever reads this file.

    Args:
        file: which is made if it is not there.
        seconds: by how much the time of day is wrong.
        passed_s: how much more time passed.
        start: of the machine: another number, another start; the process that runs does not
            notice.
    """
    with file.open("r+b" if file.exists() else "w+b") as stream:
        stream.write(_OFFSET.pack(round(seconds * 1e9), round(passed_s * 1e9), start))


def _install(file: Path) -> None:
    with file.open("rb") as stream:
        offset = mmap.mmap(stream.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    real, of_clock = time.time_ns, time.clock_gettime_ns

    def time_ns() -> int:
        shift, passed, _ = _OFFSET.unpack(offset)
        return real() + int(shift) + int(passed)

    def clock_gettime_ns(clock: int) -> int:
        return of_clock(clock) + int(_OFFSET.unpack(offset)[1])

    time.time_ns, time.clock_gettime_ns = time_ns, clock_gettime_ns
    time.time = lambda: time_ns() / 1e9
    if start := _OFFSET.unpack(offset)[2]:
        from eventer_bridge.backends import passed_time

        passed_time._read_boot_id = lambda: f"start {start}"


def main() -> None:
    """Shift the clock, then be ``mariner``."""
    _install(Path(os.environ[CLOCK_FILE]))
    from mariner.cli import main as mariner

    mariner()


if __name__ == "__main__":
    main()
