"""The storage thread does one thing after the other, and tells what came of each."""

import asyncio
import threading
import weakref

from eventer_bridge.backends.rocksdb.storage_thread import StorageThread
from eventer_bridge.errors import StorageError


class Panic(BaseException):
    """What RocksDB's binding raises for its own mistakes."""


async def test_outcomes_come_in_order_on_the_loop() -> None:
    here = threading.get_ident()
    outcomes: list[object] = []
    told_on: set[int] = set()
    ended = asyncio.Event()

    def tell(outcome: object) -> None:
        told_on.add(threading.get_ident())
        outcomes.append(outcome)

    def refuse() -> None:
        raise StorageError("refused")

    def panic() -> None:
        raise Panic("a mistake")

    thread = StorageThread(ended.set)
    thread.run(threading.get_ident, tell)
    thread.run(refuse, tell)
    thread.run(panic, tell)
    thread.run(lambda: "went on", tell)
    was_alive = thread.is_alive
    thread.stop(lambda: outcomes.append("last"))
    await ended.wait()
    thread.join()
    assert (was_alive, thread.is_alive) == (True, False)
    assert told_on == {here}
    there = [i for i in outcomes if isinstance(i, int)]
    assert len(there) == 1
    assert there != [here]
    errors = [str(i) for i in outcomes if isinstance(i, StorageError)]
    assert errors == ["refused", "the event store failed unexpectedly: Panic: a mistake"]
    assert sorted(i for i in outcomes if isinstance(i, str)) == ["last", "went on"]


async def test_it_holds_nothing_while_it_waits() -> None:
    class Result:
        """Something large."""

    ended = asyncio.Event()
    found: list[weakref.ref[Result]] = []
    is_gone: list[object] = []

    def make() -> Result:
        result = Result()
        found.append(weakref.ref(result))
        return result

    thread = StorageThread(ended.set)
    told = asyncio.Event()
    thread.run(make, lambda _: told.set())
    await told.wait()
    await asyncio.sleep(0)  # the loop lets go of it, too
    thread.run(lambda: found[0]() is None, is_gone.append)
    thread.stop(lambda: None)
    await ended.wait()
    thread.join()
    assert is_gone == [True]
