"""The driver process that owns snapshots: whether it still runs, and removing them at its exit.

The process that plans a read takes a snapshot (``snapshots``), which must last as long as the
driver may execute that read, any number of times. So it is named after the driver process, and
linked in a folder of the driver, which removes the linked snapshots when it exits. Snapshots of a
killed driver are removed when the next one is taken.
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
    """A driver process.

    Attributes:
        node: name of its machine (or container).
        pid: process id.
        started: when the process started, in the kernel's ticks: distinguishes it from a
            later process with the same pid.
        folder: folder of the links to its snapshots.
    """

    node: str
    pid: int
    started: int
    folder: Path

    def remove_at_exit(self, snapshot: Path) -> None:
        """Have a snapshot removed when the driver exits, if it runs on this machine."""
        if self.folder.is_dir():
            (self.folder / snapshot.name).symlink_to(snapshot)


@cache
def of_this_process() -> DriverProcess:
    """This process, as a driver; its snapshots are removed when it exits."""
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="mariner-spark-"))
    atexit.register(_remove_linked, folder, pid)
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


def _remove_linked(folder: Path, pid: int) -> None:
    if os.getpid() != pid:
        return  # a child by fork
    for link in folder.iterdir():
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
