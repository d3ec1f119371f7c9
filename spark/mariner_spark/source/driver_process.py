"""The driver that snapshots are made for: whether it still lives, and removing them at its end.

A snapshot (``snapshots``) is made by a process that plans a read, and has to last as long as
the driver may execute that read, again and again. So it is named after the driver's process;
a link to it is put into a folder of the driver, who removes what is linked there when it
ends. What a driver leaves that was killed is removed when the next snapshot is made.
"""

import atexit
import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple


class DriverProcess(NamedTuple):
    """A driver.

    Attributes:
        node: name of its machine (or container).
        pid: of its process.
        started: when the process started, in the kernel's ticks, so that another process
            that gets the same pid is not taken for it.
        folder: folder of the links to its snapshots.
    """

    node: str
    pid: int
    started: int
    folder: Path

    def note(self, snapshot: Path) -> None:
        """Have a snapshot removed when the driver ends, if it is on this machine."""
        if self.folder.is_dir():
            (self.folder / snapshot.name).symlink_to(snapshot)


@cache
def of_this_process() -> DriverProcess:
    """This process, as a driver; what is noted for it is removed when it ends."""
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="mariner-spark-"))
    atexit.register(_remove_noted, folder, pid)
    return DriverProcess(node_name(), pid, start_ticks(pid) or 0, folder)


def node_name() -> str:
    """Name of this machine, fit for the name of a file."""
    return platform.node().replace("/", "_") or "localhost"


def start_ticks(pid: int) -> int | None:
    """When a process of this machine started, in the kernel's ticks; None: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the second field is the name, in parentheses, and may hold anything
    fields = stat.rpartition(b")")[2].split()
    return int(fields[19])


def _remove_noted(folder: Path, pid: int) -> None:
    if os.getpid() != pid:
        return  # a child by fork
    for link in folder.iterdir():
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
