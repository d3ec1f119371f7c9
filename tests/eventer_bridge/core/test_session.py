"""Session ids are given when they are reserved on disk, and not before."""

import asyncio
from collections.abc import Sequence

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.dummy import DummyBackend
from eventer_bridge.core.session import SessionIdAllocator, payload_bytes
from eventer_bridge.errors import LimitError, StorageError
from eventer_bridge.model import Event, EventId, JsonPayload, RegisterEvent, Timestamp
from eventer_bridge.packed import batch_of, stored_batch
from tests.eventer_bridge.backends.putting import TYPES


class SlowDisk(DummyBackend):
    """Reserves when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, asyncio.Future[None]]] = []

    def reserve(self, server_id: int, session: int) -> asyncio.Future[None]:
        assert server_id == 7
        self.asked.append((session, asyncio.get_running_loop().create_future()))
        return self.asked[-1][1]


async def test_no_id_is_given_before_it_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESERVED_SESSIONS", 10)
    async with SlowDisk() as backend:
        allocator = SessionIdAllocator(backend, 7)

        def is_refused() -> bool:
            with pytest.raises(LimitError, match=r"^session ids are not reserved on disk yet"):
                allocator.next_sessions()
            return True

        assert is_refused()
        assert [i for i, _ in backend.asked] == [10]
        backend.asked[0][1].set_result(None)
        await asyncio.sleep(0)  # callbacks of the future
        assert [allocator.next_sessions() for _ in range(5)] == [1, 2, 3, 4, 5]
        assert len(backend.asked) == 1
        # half of them are left: more are asked for
        assert [allocator.next_sessions() for _ in range(5)] == [6, 7, 8, 9, 10]
        assert [i for i, _ in backend.asked] == [10, 15]
        assert is_refused()
        # those that could not be reserved are not given, but asked for again
        for _, future in backend.asked[1:]:
            future.set_exception(StorageError("full"))
        await asyncio.sleep(0)
        n_asked = len(backend.asked)
        assert is_refused()
        assert len(backend.asked) == n_asked + 1
        ceiling, future = backend.asked[-1]
        future.set_result(None)
        await asyncio.sleep(0)
        assert [allocator.next_sessions() for _ in range(ceiling - 10)] == list(
            range(11, ceiling + 1)
        )
        for _, future in backend.asked:
            if not future.done():
                future.set_result(None)


async def test_ids_that_could_not_be_reserved_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RESERVED_SESSIONS", 10)
    async with SlowDisk() as backend:
        allocator = SessionIdAllocator(backend, 7)
        allocator.reserve()
        with pytest.raises(LimitError):
            allocator.next_sessions()
        assert [i for i, _ in backend.asked] == [10]  # which is under way
        backend.asked[0][1].set_exception(StorageError("full"))
        await asyncio.sleep(0)
        with pytest.raises(LimitError):
            allocator.next_sessions()
        assert [i for i, _ in backend.asked] == [10, 10]
        backend.asked[1][1].set_result(None)


async def test_no_id_is_given_after_they_were_given_back() -> None:
    async with DummyBackend() as backend:
        allocator = SessionIdAllocator(backend, 7)
        await allocator.reserve()
        assert allocator.next_sessions() == 1
        await allocator.release()
        assert backend.high_water_mark(7).session == 1
        with pytest.raises(LimitError):
            allocator.next_sessions()


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1), (2, 0, 3), (130,)])
async def test_batches_get_consecutive_sessions_of_one_moment(
    sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timestamp, "now", lambda: Timestamp(5, 6))
    requests = [
        [RegisterEvent((f"{i}",), Timestamp(i, 0), JsonPayload.of(n)) for i in range(n)]
        for n in sizes
    ]
    batches = [batch_of(events, TYPES) for events in requests]
    assert not any(batch.events for batch in batches)  # they have no ids yet
    async with DummyBackend() as backend:
        allocator = SessionIdAllocator(backend, 7)
        allocator.assign(batches, 3)
    moment = Timestamp(5, 6)
    assert [[*batch.events] for batch in batches] == [
        [
            Event(EventId(7, session, instance), i.type, moment, i.source_timestamp, i.payload)
            for instance, i in enumerate(events, 1)
        ]
        for session, events in enumerate(requests, 3)
    ]
    assert [batch.payload_bytes for batch in batches] == [*map(payload_bytes, requests)]


async def test_its_text_does_not_have_its_events() -> None:
    """It is in the text of callbacks, which asyncio logs."""
    events = [Event(EventId(1, 1, 1), ("a",), Timestamp(1, 0), None, None)] * 1_000
    assert len(repr(stored_batch(events, TYPES))) < 100
