"""The storage thread: runs blocking jobs one after the other, and notifies the event loop."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from eventer_bridge.backends.rocksdb.opening import unexpected
from eventer_bridge.errors import StorageError

T = TypeVar("T")


class StorageThread:
    """See the module. On the loop's thread; ``on_ended`` is called when it ends, even by a bug."""

    def __init__(self, on_ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_ended = on_ended
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._ext_run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def run(self, ext_job: Callable[[], T], on_done: Callable[[T | StorageError], None]) -> None:
        """Run a job after earlier ones; ``on_done`` gets its result or error on the loop."""
        self._jobs.put((ext_job, on_done))

    def stop(self, ext_last: Callable[[], None]) -> None:
        """Run this job last, and end."""
        self.run(ext_last, lambda _: None)
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _ext_run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                ext_job, on_done = job
                try:
                    outcome = ext_job()
                except StorageError as e:
                    outcome = e
                except BaseException as e:
                    outcome = unexpected(e)
                self._ext_notify(on_done, outcome)
                del job, ext_job, on_done, outcome  # while it waits, it holds nothing
        finally:
            self._ext_notify(self._on_ended)

    def _ext_notify(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)
