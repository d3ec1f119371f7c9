"""Which process has a store open, by the kernel's list of locks; for people.

Any thread; reads a few small files of ``/proc``.
"""

import os
import re
from pathlib import Path
from typing import Final

from eventer_bridge.model import cut

_LOCK: Final = re.compile(
    r"^\d+: (?:FLOCK|POSIX|OFDLCK) +\w+ +WRITE (\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE
)
"""A lock that is held, not waited for: process, device (major, minor) and inode."""

_TOKEN: Final = re.compile(r"(--(?:client-)?token[= ])\S+")

_MAX_COMMAND_CHARACTERS: Final = 200
"""Of a command line: interpreter, command and configuration file."""


def holder(store: Path) -> str:
    """Who has a store open: ``process 12 (mariner serve)``, as far as that can be known.

    A process in another container cannot, for example.
    """
    pid = _holder_pid(store)
    if pid is None:
        return "another process"
    if pid == os.getpid():
        return "this process already"
    command = _command(pid)
    return f"process {pid} ({command})" if command else f"process {pid}"


def _holder_pid(store: Path) -> int | None:
    try:
        locks = Path("/proc/locks").read_text("ascii", "replace")
        files = {_identity(i) for i in (store, store / "LOCK") if i.exists()}
    except OSError:
        return None
    for pid, major, minor, inode in _LOCK.findall(locks):
        if (int(major, 16), int(minor, 16), int(inode)) in files and int(pid) > 0:
            return int(pid)
    return None


def _identity(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def _command(pid: int) -> str:
    """The command line of a process, on one line, without tokens and what cannot be printed."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    text = " ".join(data.decode(errors="replace").replace("\0", " ").split())
    text = _TOKEN.sub(r"\1***", text)
    return cut("".join(i if i.isprintable() else "?" for i in text), _MAX_COMMAND_CHARACTERS)
