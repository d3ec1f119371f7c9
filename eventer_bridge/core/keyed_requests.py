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
from itertools import repeat
from typing import NamedTuple, TypeAlias, cast

from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.request_keys import KeptRequest, RequestKey, events_of
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.session import PackedSessions, Repeated, Session, payload_bytes
from eventer_bridge.errors import EventerBridgeError, RequestKeyError, RequestOrderError
from eventer_bridge.model import Event, RegisterEvent, Source
from eventer_bridge.slices import at_once

mlog = logging.getLogger(__name__)

Requests: TypeAlias = Sequence[Sequence[RegisterEvent]]
Outcome: TypeAlias = Session | Repeated | EventerBridgeError

RegisterAllCb: TypeAlias = Callable[
    [Source, Requests, TypeQuota | None, Sequence[RequestKey]],
    "Sequence[Session | EventerBridgeError]",
]
"""Registers requests that were not registered before, under these keys; empty: without."""


class _Turn(NamedTuple):
    """Requests of a client that were registered together, each with another key.

    Attributes:
        names: what the client calls each.
        keys: the keys of each.
        outcomes: what became of each.
    """

    names: Sequence[str]
    keys: Sequence[RequestKey]
    outcomes: Sequence[Session | EventerBridgeError]


class KeyedRequests:
    """See the module.

    Args:
        backend: knows what is stored.
        register_all: see :data:`RegisterAllCb`.
    """

    def __init__(self, backend: Backend, register_all: RegisterAllCb) -> None:
        self._backend = backend
        self._register_all = register_all
        # the last turn of each request, by client and what it calls it
        self._under_way: dict[str, dict[str, _Turn]] = {}
        # the same turns, by the next outcome that each waits for
        self._turns: dict[asyncio.Future[None], list[_Turn]] = {}

    def register(
        self,
        source: Source,
        requests: Requests,
        quota: TypeQuota | None,
        keys: Sequence[RequestKey | None],
    ) -> Sequence[Outcome]:
        """See ``EventCore.register_keyed``; the keys are of one client."""
        if all(keys) and all(requests):
            named = cast(Sequence[RequestKey], keys)
            names = [key.key for key in named]
            if len({*names}) == len(names) and self._are_new(named, names):
                found = self._register_all(source, requests, quota, named)
                self._note(_Turn(names, named, found))
                return found
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

    def check_order(self, key: RequestKey | None) -> None:
        """Check that the request that a request comes after, if any, is stored or under way.

        Raises:
            RequestOrderError: it is not: it may have failed since.
            EventerBridgeError: as ``Backend.find_requests``.
        """
        if key is None or key.after is None or self._find_under_way(key.owner, key.after):
            return
        (before,) = self._backend.find_requests(key.owner, [key.after])
        if before is None:
            raise order_error(key.after)

    def _are_new(self, keys: Sequence[RequestKey], names: Sequence[str]) -> bool:
        """Whether none was used before, and each comes after the one before it, if after any."""
        owner = keys[0].owner
        others = [key.after for key in keys[1:]]
        if others != names[:-1] and any(i is not None for i in others):
            return False
        under_way = self._under_way.get(owner)
        if under_way and not under_way.keys().isdisjoint(names):
            return False
        try:
            self.check_order(keys[0])
            return not any(self._backend.find_requests(owner, names))
        except EventerBridgeError:
            return False

    def _find_under_way(self, owner: str, name: str) -> tuple[RequestKey, Session] | None:
        turn = self._under_way.get(owner, {}).get(name)
        if turn is None:
            return None
        i = turn.names.index(name)
        outcome = turn.outcomes[i]
        if isinstance(outcome, Session) and not outcome.has_failed:
            return turn.keys[i], outcome
        return None

    def _register_one(
        self,
        source: Source,
        events: Sequence[RegisterEvent],
        quota: TypeQuota | None,
        key: RequestKey,
    ) -> Outcome:
        owner, name, digest = key.owner, key.key, key.digest
        if under_way := self._find_under_way(owner, name):
            known, first = under_way
            return Repeated(first) if known.digest == digest else _other_content(name)
        try:
            (kept,) = self._backend.find_requests(owner, [name])
            if kept is not None and kept.digest == digest:
                return _repeated(source, events, kept)
            if kept is not None:
                return _other_content(name)
            self.check_order(key)
        except EventerBridgeError as e:
            return e.with_traceback(None)
        found = self._register_all(source, [events], quota, [key])
        self._note(_Turn([name], [key], found))
        return found[0]

    def _note(self, turn: _Turn) -> None:
        """Note what is under way, until all its outcomes are known."""
        if self._await_one(turn):
            under_way = self._under_way.setdefault(turn.keys[0].owner, {})
            under_way.update(zip(turn.names, repeat(turn), strict=False))

    def _await_one(self, turn: _Turn) -> bool:
        """Await the last session of a turn that is under way; False: there is none."""
        for committed in reversed(_commits(turn.outcomes)):
            # those before it are mostly known by then; but it may fail before they are stored
            if not committed.done():
                turns = self._turns.get(committed)
                if turns is None:
                    self._turns[committed] = [turn]
                    committed.add_done_callback(self._on_done)
                else:
                    turns.append(turn)
                return True
        return False

    def _on_done(self, committed: asyncio.Future[None]) -> None:
        for turn in self._turns.pop(committed):
            # commits keep their order: usually the first session is in that of the last
            if _commits(turn.outcomes)[0] is committed or not self._await_one(turn):
                self._forget(turn)

    def _forget(self, turn: _Turn) -> None:
        owner = turn.keys[0].owner
        under_way = self._under_way.get(owner, {})
        found = [*map(under_way.pop, turn.names, repeat(None))]
        if found.count(turn) < len(found):  # some were registered again
            again = zip(turn.names, found, strict=True)
            under_way.update((name, i) for name, i in again if i is not None and i is not turn)
        if not under_way:
            self._under_way.pop(owner, None)


def _commits(outcomes: Sequence[Outcome]) -> Sequence[asyncio.Future[None]]:
    """Those of the sessions, in their order; one, if they share it."""
    if isinstance(outcomes, PackedSessions):  # which are not to be made for that
        return [outcomes.committed]
    return [i.committed for i in outcomes if isinstance(i, Session)]


def order_error(after: str) -> RequestOrderError:
    """Why a request is refused that comes after one that is not stored."""
    return RequestOrderError(f"request_key {after!r}, its after_key, is not stored")


def _repeated(source: Source, events: Sequence[RegisterEvent], kept: KeptRequest) -> Repeated:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    n_bytes = payload_bytes(events)
    session = Session.sized(source, len(events), n_bytes, done)
    making = events_of(kept, events)
    if session.is_large:
        return Repeated(session, making)
    session.events = at_once(making)
    return Repeated(session)


def _other_content(key: str) -> RequestKeyError:
    return RequestKeyError(
        f"request_key {key!r} was used before, with other events"
        " (JSON payloads are compared as they were written)"
    )
