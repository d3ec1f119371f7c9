"""``mariner`` in which something breaks or hangs, as soon as an event ``fault/<what>`` comes.

Everything else is as in ``python -m mariner``, except that a stop may take a second only where
something hangs.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from eventer_bridge.backends.rocksdb import storage_thread
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core.engine import Engine
from eventer_bridge.packed import Batch
from mariner import limits
from mariner.cli import main

PATCH: Final = pytest.MonkeyPatch()

STOP_S: Final = 1.0

BEGINS: Final = "the fault begins"
"""Line on standard error."""


def _raise(*_: object) -> None:
    raise ValueError("what nobody thought of")


def _block(*_: object) -> None:
    pipe = os.pipe()
    os.read(pipe[0], 1)  # a system call that does not return


def _sync_hangs() -> None:
    PATCH.setattr(Store, "ext_sync", _block)


def _storage_thread_dies() -> None:
    PATCH.setattr(Store, "ext_sync", _raise)
    PATCH.setattr(storage_thread, "unexpected", _raise)


def _thread_dies() -> None:
    threading.Thread(target=_raise, name="of-a-module").start()


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "loop-sleeps": lambda: time.sleep(3600),
    "sync-hangs": _sync_hangs,
    "storage-thread-dies": _storage_thread_dies,
    "thread-dies": _thread_dies,
}

HANGING: Final = frozenset({"loop-sleeps", "sync-hangs"})


def _install() -> None:
    submit = Engine.submit

    def faulty(self: Engine, batches: list[Batch]) -> None:
        for event_type in (i for batch in batches for i in batch.event_types[:1]):
            first, *rest = event_type
            if first == "fault":
                sys.stderr.write(f"{BEGINS}\n")
                if rest[0] in HANGING:
                    PATCH.setattr(limits, "MAX_STOP_S", STOP_S)
                FAULTS[rest[0]]()
        submit(self, batches)

    PATCH.setattr(Engine, "submit", faulty)


if __name__ == "__main__":
    _install()
    main()
