"""Registrations with a request key: stored once, however often they are sent (``request_keys``).

What is under way is known here, what is stored the backend knows. So a request that is sent again
while the first one waits for its commit, over the same connection or another one, shares its
outcome.

A request may name another one that must be stored first. So a client that has many under way need
not wait for each to keep their order: when one fails, those that come after it fail with it.

Belongs to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.request_keys import KeptRequest, RequestKey, events_of
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.session import Repeated, Session, payload_bytes
from eventer_bridge.errors import EventerBridgeError, RequestKeyError, RequestOrderError
from eventer_bridge.model import Event, RegisterEvent, Source
from eventer_bridge.slices import at_once

mlog = logging.getLogger(__name__)

Requests: TypeAlias = Sequence[Sequence[RegisterEvent]]
Outcome: TypeAlias = Session | Repeated | EventerBridgeError

RegisterAllCb: TypeAlias = Callable[
    [Source, Requests, TypeQuota | None, Sequence[RequestKey | None]],
    "list[Session | EventerBridgeError]",
]
"""Registers requests that were not registered before."""


class KeyedRequests:
    """See the module.

    Args:
        backend: knows what is stored.
        register_all: see :data:`RegisterAllCb`.
    """

    def __init__(self, backend: Backend, register_all: RegisterAllCb) -> None:
        self._backend = backend
        self._register_all = register_all
        self._under_way: dict[str, dict[str, tuple[RequestKey, Session]]] = {}  # by client, key

    def register(
        self,
        source: Source,
        requests: Requests,
        quota: TypeQuota | None,
        keys: Sequence[RequestKey | None],
    ) -> list[Outcome]:
        """See ``EventCore.register_keyed``; the keys are of one client."""
        named = [key for key in keys if key is not None]
        if len(named) == len(keys) and all(requests) and self._are_new(named):
            found = self._register_all(source, requests, quota, named)
            self._note(named, found)
            return [*found]
        outcomes: list[Outcome] = []
        for events, key in zip(requests, keys, strict=True):
            if key is None or not events:  # of no events, nothing is stored
                outcomes += self._register_all(source, [events], quota, ())
            else:
                outcomes.append(self._register_one(source, events, quota, key))
        return outcomes

    def take_over(self, key: RequestKey, first: Event) -> RequestKey | None:
        """What to keep of a request that another server stored.

        Args:
            key: its key.
            first: an event of its session.

        Returns:
            The key; None: it is not kept, as it is known here, with other events.

        Raises:
            EventerBridgeError: as ``Backend.find_requests``.
        """
        (kept,) = self._backend.find_requests(key.owner, [key.key])
        if kept is None:
            return key
        if (kept.server, kept.session) != (first.id.server, first.id.session):
            extra = {
                "client": key.owner,
                "request_key": key.key,
                "stored": f"{kept.server}/{kept.session}",
                "again": f"{first.id.server}/{first.id.session}",
            }
            mlog.warning("a request is stored twice, by two servers", extra=extra)
        return None

    def _are_new(self, keys: Sequence[RequestKey]) -> bool:
        """Whether none of them was used before, and each comes after the one before it, if any."""
        owner, names, afters = keys[0].owner, [i.key for i in keys], [i.after for i in keys]
        under_way = self._under_way.get(owner, {})
        first, *others = afters
        if others != names[:-1] and any(i is not None for i in others):
            return False
        if len({*names}) < len(names) or not under_way.keys().isdisjoint(names):
            return False
        try:
            if first is not None and first not in under_way:
                [before] = self._backend.find_requests(owner, [first])
                if before is None:
                    return False
            return not any(self._backend.find_requests(owner, names))
        except EventerBridgeError:
            return False

    def _register_one(
        self,
        source: Source,
        events: Sequence[RegisterEvent],
        quota: TypeQuota | None,
        key: RequestKey,
    ) -> Outcome:
        owner, name, digest = key.owner, key.key, key.digest
        under_way = self._under_way.get(owner, {})
        if name in under_way:
            known, first = under_way[name]
            return Repeated(first) if known.digest == digest else _other_content(name)
        try:
            (kept,) = self._backend.find_requests(owner, [name])
            if kept is not None and kept.digest == digest:
                return _repeated(source, events, kept)
            if kept is not None:
                return _other_content(name)
            if key.after is not None and key.after not in under_way:
                (before,) = self._backend.find_requests(owner, [key.after])
                if before is None:
                    return RequestOrderError(
                        f"request_key {key.after!r}, its after_key, is not stored"
                    )
        except EventerBridgeError as e:
            return e.with_traceback(None)
        found = self._register_all(source, [events], quota, [key])
        self._note([key], found)
        return found[0]

    def _note(
        self, keys: Sequence[RequestKey], outcomes: Sequence[Session | EventerBridgeError]
    ) -> None:
        """Note what is under way, until its outcome is known."""
        owner = keys[0].owner
        begun = {
            key.key: (key, outcome)
            for key, outcome in zip(keys, outcomes, strict=True)
            if isinstance(outcome, Session)
        }
        self._under_way.setdefault(owner, {}).update(begun)
        by_commit: dict[asyncio.Future[None], list[str]] = {}
        for name, (_, session) in begun.items():
            by_commit.setdefault(session.committed, []).append(name)
        for commit, names in by_commit.items():
            commit.add_done_callback(partial(self._forget, owner, names))

    def _forget(self, owner: str, names: Sequence[str], _: object) -> None:
        under_way = self._under_way[owner]
        for name in names:
            del under_way[name]


def _repeated(source: Source, events: Sequence[RegisterEvent], kept: KeptRequest) -> Repeated:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    n_bytes = payload_bytes(events)
    session = Session(source, len(events), n_bytes, done)
    making = events_of(kept, events)
    if session.is_large:
        return Repeated(session, making)
    session.events = at_once(making)
    return Repeated(session)


def _other_content(key: str) -> RequestKeyError:
    return RequestKeyError(f"request_key {key!r} was used before, with other events")
