"""Sessions that are put in a backend, or in its store, as events."""

import asyncio
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, find_type
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.model import Event, EventType
from eventer_bridge.packed import Batch, TypeTable, stored_batch
from eventer_bridge.slices import Steps, at_once

TYPES: Final = TypeTable(partial(find_type, lambda text: None), limits.CACHE_BYTES, {}, {})
"""Types of batches that do not belong to a backend."""


class _Everything(Container[EventType]):
    def __contains__(self, event_type: object) -> bool:
        return True


_tables: Final[WeakKeyDictionary[Backend, TypeTable]] = WeakKeyDictionary()


def batch(backend: Backend, events: Sequence[Event]) -> Batch:
    """A session with the types of a backend, all of which are checked."""
    table = _tables.get(backend)
    if table is None:
        table = _tables[backend] = backend.type_table(lambda text: None, _Everything())
    return stored_batch(events, table)


def put(
    backend: Backend,
    events: Sequence[Event],
    quota: TypeQuota | None = None,
    n_asked: int = 0,
    request: RequestKey | None = None,
) -> asyncio.Future[None]:
    """Register a session."""
    return at_once(put_in_steps(backend, events, quota, n_asked, request, is_stepwise=False))


def put_all(
    backend: Backend,
    sessions: Sequence[Sequence[Event]],
    requests: Sequence[RequestKey] = (),
) -> list[asyncio.Future[None]]:
    """Register sessions together."""
    batches = [batch(backend, events) for events in sessions]
    for registered, key in zip(batches, requests, strict=False):
        registered.key = key
    return [at_once(backend.register(batches))] * len(sessions)


def put_in_steps(
    backend: Backend,
    events: Sequence[Event],
    quota: TypeQuota | None = None,
    n_asked: int = 0,
    request: RequestKey | None = None,
    *,
    is_stepwise: bool = True,
) -> Steps[asyncio.Future[None]]:
    """Register a large session."""
    registered = batch(backend, events)
    registered.quota, registered.requested, registered.key = quota, n_asked, request
    registered.is_stepwise = is_stepwise
    return backend.register([registered])


def stage(
    store: Store,
    commit: Commit,
    sessions: Sequence[Sequence[Event]],
    ids: Mapping[EventType, TypeId],
) -> None:
    """Add sessions to a commit, as a block."""
    store.stage(commit, [stored_batch(events, TYPES) for events in sessions], ids)
