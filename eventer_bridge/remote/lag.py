"""How far a replication is behind: what *synced* means.

Every ``limits.LAG_PERIOD_S`` it queries the remote server for durable events behind the last one
received. If there are none, and everything received is durable here, all that the server had at
the time of the query is kept. Two figures follow:

- **seconds**: since the last time that was so. Events stored there longer ago are kept here, or
  were left out for good (``Replication.refused_events``).
- **events**: those that came between the last query and its answer, and so were on their way, and
  those that are not durable here yet. There may be more while it catches up: nobody knows how many
  the remote server has before they come.

It is synced once it has caught up, while both are within ``limits.MAX_SYNCED_LAG_S`` and
``MAX_SYNCED_LAG_EVENTS``; after that, it is synced again at half of them.

Belongs to the event loop's thread.
"""

import asyncio
from collections.abc import Callable

from eventer_bridge.eventer.client import EventerClient
from eventer_bridge.model import QueryServerParams
from eventer_bridge.remote import limits
from eventer_bridge.remote.feed import Feed


class Lag:
    """See the module.

    Args:
        feed: follows the server.
        server_id: its identifier.
        on_looked: called after each query.
    """

    def __init__(self, feed: Feed, server_id: int, on_looked: Callable[[], None]) -> None:
        self._feed = feed
        self._server_id = server_id
        self._on_looked = on_looked
        self._loop = asyncio.get_running_loop()
        self._complete_at_s = self._loop.time()
        self._n_under_way = 0

    @property
    def seconds(self) -> float:
        """See the module; since its creation, if nothing is known yet."""
        return self._loop.time() - self._complete_at_s

    @property
    def events(self) -> int:
        """See the module."""
        return self._n_under_way + self._feed.pending_events

    def is_within(self, share: float = 1) -> bool:
        """Whether both are within this share of their bounds."""
        return (
            self.seconds <= share * limits.MAX_SYNCED_LAG_S
            and self.events <= share * limits.MAX_SYNCED_LAG_EVENTS
        )

    def note_complete(self) -> None:
        """Note that all events of the server are kept."""
        self._complete_at_s = self._loop.time()
        self._n_under_way = 0

    async def watch(self, client: EventerClient) -> None:
        """Query the server, again and again.

        Raises:
            EventerBridgeError: it does not answer, or the connection is lost.
        """
        while True:
            asked_at_s = self._loop.time()
            n_received = self._feed.n_received
            last = self._feed.last_received(self._server_id)
            params = QueryServerParams(
                self._server_id, persisted=True, max_results=1, last_event_id=last
            )
            found = (await client.query(params)).events
            last = self._feed.last_received(self._server_id)
            self._n_under_way = self._feed.n_received - n_received
            await self._feed.wait_delivered()
            if not found or (last is not None and found[0].id <= last):
                self._complete_at_s = asked_at_s
            self._on_looked()
            await asyncio.sleep(limits.LAG_PERIOD_S)
