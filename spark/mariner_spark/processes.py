"""Work in parts, done by this process and by others beside it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from mariner_spark.errors import ProcessKilledError

P = TypeVar("P")
R = TypeVar("R")

_N_OTHERS = max((os.cpu_count() or 1) - 1, 1)


@contextlib.contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """Processes beside this one, started on demand, each with its own Python.

    They end with the block, or when this process is killed, whatever they do.
    """
    # not by fork: deltalake has threads
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    with reader, ProcessPoolExecutor(_N_OTHERS, context, _end_with, (reader,)) as pool, writer:
        yield pool


def do_all(
    pool: ProcessPoolExecutor,
    work: Callable[[P], R],
    parts: Sequence[P],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[R]:
    """Do work for each part, in this process and others: one part starts none.

    Args:
        pool: the other processes.
        work: what to do; it must be picklable.
        parts: the parts.
        on_progress: called with the number of parts done, and of all.

    Returns:
        The results, in any order.

    Raises:
        ProcessKilledError: one of the processes was killed.
    """
    results: list[R] = []

    def add(result: R) -> None:
        results.append(result)
        on_progress(len(results), len(parts))

    todo, running = [*parts], set[Future[R]]()
    try:
        while todo or running:
            # no more: a future that is cancelled breaks a pool that breaks (Python 3.11)
            while len(todo) > 1 and len(running) < 2 * _N_OTHERS:
                running.add(pool.submit(work, todo.pop()))
            if todo:
                add(work(todo.pop()))
            done, running = wait(running, 0 if todo else None, FIRST_COMPLETED)
            for future in done:
                add(future.result())
    except BrokenProcessPool as e:
        reason = "one of the processes was killed, perhaps for lack of memory"
        raise ProcessKilledError(f"{reason}; nothing was added: start again") from e
    return results


def _end_with(other: Connection) -> None:
    """Have this process end when the other end of a connection is closed, and only then."""

    def wait_for_end() -> None:
        with contextlib.suppress(EOFError):
            other.recv_bytes()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_end, daemon=True).start()
