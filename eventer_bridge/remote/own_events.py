"""What the other servers of a group have of this server's events: it is asked before it is active.

A server whose store is new, was restored, or is an earlier copy (``Backend.is_whole``) does not
know which ids it gave, and which request keys it took. The others have its events, and with them
the keys and cursors (``core.group_events``). So it first gets back what it has not, and goes on far
above that, with another history: clients may have seen more than anybody still has. It does not
become active without an answer, unless its operator says so.

A server whose store is whole asks as well, but does not wait for ever: the other one may be away.

Belongs to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from hat import aio

from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ClosedError
from eventer_bridge.eventer.client import EventerClient, EventsCb
from eventer_bridge.model import INT64_MAX, Event, EventId, QueryServerParams
from eventer_bridge.remote.feed import Feed, FeedState
from eventer_bridge.remote.following import Following
from eventer_bridge.remote.group import ServerGroup
from eventer_bridge.remote.replication import Replication

mlog = logging.getLogger(__name__)


async def regain(
    engine: Engine, group: ServerGroup, timeout_s: float, *, accepts_loss: bool
) -> set[int]:
    """Get back what the listed servers have of this server's events, and it has not.

    ``Engine.waits_for`` says for what it waits.

    Args:
        engine: of this server, STANDBY.
        group: the other servers.
        timeout_s: how long it waits for one if its store is whole, or a loss is accepted.
        accepts_loss: whether to go on without an answer, or without what cannot be had.

    Returns:
        The servers that answered.

    Raises:
        EventerBridgeError: the store failed.
    """
    needs_answer = not (engine.is_whole or accepts_loss)
    until_s = None if needs_answer else asyncio.get_running_loop().time() + timeout_s
    asking = _Asking(engine, group, until_s, accepts_loss)
    answered: set[int] = set()
    given_up: set[int] = set()
    while (left := group.listed.keys() - answered - given_up) or (needs_answer and not answered):
        if not left:
            asking.tell("another server of the group")
            await group.wait_changed()
            continue
        server_id = min(left)
        if await asking.ask(server_id):
            answered.add(server_id)
        elif server_id in group.listed:
            given_up.add(server_id)
    if accepts_loss and not answered and (given_up or not engine.is_whole):
        mlog.warning("this server goes on without what others may have, as its operator asked")
        await engine.begin_regaining()
    if engine.is_regaining:
        await engine.read_histories()
    return answered


class _Asking:
    """Asks one server after the other.

    Args:
        engine: of this server.
        group: the other ones.
        until_s: when one that did not answer is given up, by the loop's time; None: never.
        accepts_loss: whether one is given up whose events do not continue those here.
    """

    def __init__(
        self, engine: Engine, group: ServerGroup, until_s: float | None, accepts_loss: bool
    ) -> None:
        self._engine = engine
        self._group = group
        self._until_s = until_s
        self._accepts_loss = accepts_loss
        self._loop = asyncio.get_running_loop()

    @property
    def _is_over(self) -> bool:
        return self._until_s is not None and self._loop.time() >= self._until_s

    async def ask(self, server_id: int) -> bool:
        """Ask a server; false: it is given up, or is not listed any more."""
        while server_id in self._group.listed and not self._is_over:
            remote = self._group.listed[server_id]
            if remote is not None:
                async with _OwnEvents(self._engine, remote, self._group.note_changed) as own:
                    return await self._await_answer(server_id, own)
            await self._group.wait_changed(self._until_s)
        return False

    async def _await_answer(self, server_id: int, own: "_OwnEvents") -> bool:
        while server_id in self._group.listed and not own.is_done:
            if own.refusal is not None and self._accepts_loss:
                return False
            if own.refusal is not None:
                self._wait_for(
                    f"server {server_id} has events of this one that do not continue those here"
                    f" ({own.refusal}): start it with the store that they are of, with an empty"
                    " one, or with --accept-loss"
                )
            elif self._is_over:
                mlog.warning("server does not tell what it has", extra={"server": server_id})
                return False
            else:
                self.tell(f"server {server_id}")
            await self._group.wait_changed(None if own.refusal else self._until_s)
        return own.is_done

    def tell(self, who: str) -> None:
        """Tell that it waits for somebody's answer."""
        if self._until_s is not None:
            self._engine.waits_for = f"it asks {who} what that has of its events"
            return
        self._wait_for(
            f"its store is new, was restored or copied: it waits for {who} to tell what that has of"
            " its events, or to be started with --accept-loss"
        )

    def _wait_for(self, reason: str) -> None:
        if reason != self._engine.waits_for:
            self._engine.waits_for = reason
            mlog.warning("this server does not become active", extra={"reason": reason})


class _OwnEvents(aio.Resource):
    """Gets this server's events from another one.

    Args:
        engine: of this server.
        remote: the other one.
        on_changed: called when an attribute changes.

    Attributes:
        is_done: whether everything is here that it has.
        refusal: why its events do not continue those here; None: they do.
    """

    def __init__(self, engine: Engine, remote: Replication, on_changed: Callable[[], None]) -> None:
        self.is_done = False
        self.refusal: str | None = None
        self._engine = engine
        self._remote = remote
        self._on_changed = on_changed
        self._following = Following(engine, engine.server_id)
        self._feed = Feed(
            f"{remote.name}, for events of this one",
            self._connect,
            self._known,
            self._deliver,
            server_id=engine.server_id,
            on_state=self._on_state,
            on_missing=engine.note_missing,
            on_left_out=engine.note_missing,
            give_way=engine.give_way,
        )

    @property
    def async_group(self) -> aio.Group:
        """Group of the feed's tasks."""
        return self._feed.async_group

    async def _connect(self, on_events: EventsCb) -> EventerClient:
        return await self._remote.connect(persisted=True, on_events=on_events)

    async def _known(self, client: EventerClient) -> Mapping[int, EventId | None]:
        server_id = self._engine.server_id
        session_id, timestamp = self._engine.replicated(server_id)
        last = None if timestamp is None else EventId(server_id, session_id, INT64_MAX)
        params = QueryServerParams(server_id, persisted=True, max_results=1, last_event_id=last)
        if (await client.query(params)).events:
            self.refusal = await self._following.begin(client, session_id, timestamp)
            if self.refusal is not None:
                self._on_changed()
                await client.wait_closing()
                raise ClosedError(f"connection lost: {client.close_reason}")
            mlog.warning(
                "events of this server are not here, and come back from another one",
                extra={"server": self._remote.remote_id, "last_session": session_id},
            )
            await self._engine.begin_regaining()
        return {server_id: last}

    def _deliver(self, session: Sequence[Event]) -> asyncio.Future[None]:
        return self._engine.replicate(session)

    def _on_state(self, state: FeedState, n_events: int | None) -> None:
        if state is FeedState.SYNCED and not self.is_done:
            extra = {"server": self._remote.remote_id, "events": n_events}
            mlog.info("events of this server that another one has are here", extra=extra)
            self.is_done = True
            self._on_changed()
