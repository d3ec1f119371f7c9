"""Sessions of other servers, kept as they are, beside those that are registered here.

They have their ids and timestamps, were checked there, and modules do not look at them. Observers
are notified as of any other session. The last one that is kept of a server says where to go on:
behind one that failed, none is kept until that was asked for (:meth:`ReplicaCore.replicated`).

Everything here runs on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import HighWaterMark, failed
from eventer_bridge.backends.rocksdb.member import AppliedBlock
from eventer_bridge.core.session import REMOTE_SOURCE, is_large, payload_bytes, resolve
from eventer_bridge.core.session_core import SessionCore
from eventer_bridge.errors import EventerBridgeError, InvalidEventError, StorageError
from eventer_bridge.model import Event, EventId
from eventer_bridge.packed import stored_batch, stored_in_steps
from eventer_bridge.resources import in_time
from eventer_bridge.slices import Steps, at_once, next_turn

mlog = logging.getLogger(__name__)


class ReplicaCore(SessionCore):
    """A core that keeps sessions of other servers, too."""

    def replicated(self, server_id: int) -> HighWaterMark:
        """The last session of another server that is kept; ``timestamp`` is None where none is.

        From here on :meth:`replicate` goes on. ``StorageError``: that is not known: what failed to
        be stored may be found all the same.
        """
        if self._backend.failure is not None:
            raise StorageError(self._backend.failure)
        self._last_replicated.pop(server_id, None)
        return self._backend.last_session(server_id)

    def replicate(self, events: Sequence[Event]) -> asyncio.Future[None]:
        """Keep a session of another server as it is, and notify observers, whatever the status is.

        Sessions of this one are taken only while it :attr:`is_regaining`. The events are of one
        session, as ``Backend.register`` asks for: later than everything that was handed over of
        that server before.

        Returns a future that is done when they are durable; never to be cancelled. It fails if that
        of an earlier session of the server did, until :meth:`replicated`.
        """
        server_id = events[0].id.server
        before = self._last_replicated.get(server_id)
        self._last_replicated[server_id] = future = self._replicate(events, before)
        return future

    def _replicate(
        self, events: Sequence[Event], before: asyncio.Future[None] | None
    ) -> asyncio.Future[None]:
        server_id = events[0].id.server
        error = _error_of(before)
        if server_id == self._server_id and not self.is_regaining:
            error = InvalidEventError(f"events of server {server_id}, which is this one")
        if error is not None:
            return failed(self._loop.create_future(), error)
        n_bytes = payload_bytes(events)
        self._note_history(events)
        if self._is_in_pair:
            self._session_ids.see(events[0].timestamp)
        if is_large(len(events), n_bytes) or self._handing_over.is_busy:
            committed: asyncio.Future[None] = self._loop.create_future()
            self._add_pending(len(events), n_bytes)
            work = partial(self._take_over_replicated, events, n_bytes, committed, before)
            self._handing_over.add(work)
            return committed
        try:
            self._backend.check_types({event.type for event in events})
            batch = stored_batch(events, self.types)
        except EventerBridgeError as e:
            return failed(self._loop.create_future(), e)
        batch.source = REMOTE_SOURCE
        batch.committed = commit = at_once(self._backend.register([batch]))
        if commit.done() and commit.exception():
            return commit
        self._add_pending(len(events), n_bytes)
        self._track([batch], commit)
        return commit

    async def note_applied(self, blocks: Sequence[AppliedBlock]) -> None:
        """Notify observers of what another member of the group registered; it is stored here.

        Returns when they are, so that there is never much to be notified.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self._notifying.add(partial(self._notify_applied, blocks, done))
        await done

    def _notify_applied(
        self, blocks: Sequence[AppliedBlock], done: asyncio.Future[None]
    ) -> Steps[None]:
        try:
            for block in blocks:
                self._persisted[block.server] = block.last_session
                if block.has_type(history.type_of(block.server)):
                    for events in (yield from block.sessions()):
                        self._note_history(events)
                if not any(self._hearing.values()):
                    continue
                for events in (yield from block.sessions()):
                    batch = yield from stored_in_steps(events, self.types)
                    batch.source, batch.committed = REMOTE_SOURCE, self._loop.create_future()
                    batch.committed.set_result(None)
                    batch.is_large = batch.is_stepwise = is_large(len(batch), batch.payload_bytes)
                    for persisted in False, True:
                        yield from self._notify_in_turn(batch, persisted=persisted)
        except Exception as e:
            self._on_unnotified(e, persisted=True)
        finally:
            if not done.done():
                done.set_result(None)

    def _note_history(self, events: Sequence[Event]) -> None:
        """Note the history that a session announces, if it does."""
        server_id, found = events[0].id.server, history.of_session(events)
        if found is not None and found != self.histories.get(server_id):
            self.histories = {**self.histories, server_id: found}
            self._notify_other_history(server_id)

    def note_missing(self, last: EventId) -> None:
        """Note that events of a server up to this one will never come.

        Readers from before are notified of each gap once. ``StorageError``: it cannot be kept now.
        """
        known = self.missing.get(last.server)
        if known is None or known < last:
            self._backend.note_missing(last)
            self.missing[last.server] = last

    async def give_way(self) -> None:
        """Let local registrations precede replicated ones, for a bounded time."""
        await next_turn()
        if self._n_own:
            await in_time(self._own_ended.wait(), limits.GIVE_WAY_S)

    def _take_over_replicated(
        self,
        events: Sequence[Event],
        n_bytes: int,
        committed: asyncio.Future[None],
        before: asyncio.Future[None] | None,
    ) -> Steps[None]:
        """Hand a session over in its turn, a large one in steps."""
        try:
            if error := _error_of(before):
                raise error
            batch = yield from stored_in_steps(events, self.types)
            batch.source, batch.committed = REMOTE_SOURCE, committed
            batch.is_large = batch.is_stepwise = is_large(len(events), n_bytes)
            commit = yield from self._backend.register([batch])
            if error := _error_of(commit):
                raise error
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # a panic of RocksDB's binding is no Exception
            if not isinstance(e, EventerBridgeError):
                mlog.exception("replicated session failed")
                e = StorageError(f"it failed: {e!r}")
            self._end_pending(1, len(events), n_bytes)
            resolve(committed, e)
            self._notify_drained()
        else:
            self._track([batch], commit)


def _error_of(commit: asyncio.Future[None] | None) -> EventerBridgeError | None:
    error = None if commit is None or not commit.done() else commit.exception()
    assert error is None or isinstance(error, EventerBridgeError)
    return error
