"""Registrations with a request key: stored once, however often they are sent (``request_keys``).

Batches under way are known here, stored ones the backend knows. So a request that is sent again
while the first one waits for its commit, over the same connection or another one, shares its
outcome.

A request may name another one that must be stored first. So a client that has many under way need
not wait for each to keep their order: when one fails, those that come after it fail with it.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Sequence

from eventer_bridge.backends.base import Backend, failed
from eventer_bridge.backends.request_keys import KeptRequest, RequestKey
from eventer_bridge.core.session import is_large
from eventer_bridge.errors import EventerBridgeError, RequestKeyError, RequestOrderError
from eventer_bridge.packed import Batch, assign

RegisterCb = Callable[[list[Batch]], None]
"""Registers batches: each has ``committed`` afterwards."""


class KeyedRequests:
    """See the module."""

    def __init__(self, backend: Backend, register: RegisterCb) -> None:
        self._backend = backend
        self._register = register
        # the last batch of each key under way, by client and key
        self._under_way: dict[str, dict[str, Batch]] = {}
        # the same batches, by what they wait for
        self._by_commit: dict[asyncio.Future[None], list[Batch]] = {}

    def register(self, batches: list[Batch]) -> None:
        """Register batches of one client, of which some have a key.

        Those that are new and follow each other are registered together.
        """
        keyed = [i for i in batches if i.key is not None and len(i)]
        if len(keyed) == len(batches) and self._are_new(batches):
            self._register_new(batches)
            return
        for batch in batches:
            if batch.key is None or not len(batch):  # of no events, nothing is stored
                self._register([batch])
            elif not self._find(batch, batch.key):
                self._register_new([batch])

    def check_order(self, key: RequestKey | None) -> None:
        """Raise ``RequestOrderError`` if the request that comes before failed.

        May raise as ``Backend.find_requests``.
        """
        if key is None or key.after is None or self._find_under_way(key.owner, key.after):
            return
        (before,) = self._backend.find_requests(key.owner, [key.after])
        if before is None:
            raise order_error(key.after)

    def _are_new(self, batches: Sequence[Batch]) -> bool:
        """Whether no key was used before, and each comes after the one before it, if after any."""
        keys = [batch.key for batch in batches if batch.key is not None]
        owner, names = keys[0].owner, [key.key for key in keys]
        afters = [key.after for key in keys[1:]]
        if len({*names}) < len(names) or (afters != names[:-1] and any(i for i in afters)):
            return False
        under_way = self._under_way.get(owner)
        if under_way and not under_way.keys().isdisjoint(names):
            return False
        try:
            self.check_order(keys[0])
            return not any(self._backend.find_requests(owner, names))
        except EventerBridgeError:
            return False

    def _find_under_way(self, owner: str, name: str) -> Batch | None:
        batch = self._under_way.get(owner, {}).get(name)
        return None if batch is None or batch.has_failed else batch

    def _find(self, batch: Batch, key: RequestKey) -> bool:
        """Set the outcome of a batch that is a repetition or refused; whether it was one."""
        try:
            if first := self._find_under_way(key.owner, key.key):
                assert first.key is not None
                _check_content(key, first.key.digest)
                batch.first, batch.committed = first, first.committed
                batch.is_large = is_large(len(batch), batch.payload_bytes)
                return True
            (kept,) = self._backend.find_requests(key.owner, [key.key])
            if kept is not None:
                _check_content(key, kept.digest)
                _repeat(batch, kept)
                return True
            self.check_order(key)
        except EventerBridgeError as e:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.committed = failed(future, e)
            return True
        return False

    def _register_new(self, batches: list[Batch]) -> None:
        """Register batches, and note what is under way until its outcome is known."""
        self._register(batches)
        for batch in batches:
            commit = batch.committed
            if commit.done():
                continue
            assert batch.key is not None
            self._under_way.setdefault(batch.key.owner, {})[batch.key.key] = batch
            waiting = self._by_commit.get(commit)
            if waiting is None:
                self._by_commit[commit] = [batch]
                commit.add_done_callback(self._on_done)
            else:
                waiting.append(batch)

    def _on_done(self, committed: asyncio.Future[None]) -> None:
        for batch in self._by_commit.pop(committed):
            assert batch.key is not None
            owner, name = batch.key.owner, batch.key.key
            under_way = self._under_way.get(owner, {})
            if under_way.get(name) is batch:  # else it was registered again
                del under_way[name]
                if not under_way:
                    del self._under_way[owner]


def order_error(after: str) -> RequestOrderError:
    """Why a request is refused that comes after one that is not stored."""
    return RequestOrderError(f"request_key {after!r}, its after_key, is not stored")


def _check_content(key: RequestKey, digest: bytes) -> None:
    if key.digest != digest:
        raise RequestKeyError(
            f"request_key {key.key!r} was used before, with other events"
            " (JSON payloads are compared as they were written)"
        )


def _repeat(batch: Batch, kept: KeptRequest) -> None:
    """Have a batch answered as the one that is stored: with the same events."""
    batch.committed = asyncio.get_running_loop().create_future()
    batch.committed.set_result(None)
    batch.first, batch.is_large = batch, is_large(len(batch), batch.payload_bytes)
    assign([batch], kept.server, kept.session, kept.timestamp.s, kept.timestamp.us)
