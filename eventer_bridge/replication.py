"""Replication: keeps the events of a remote Event Server (000, "Server - Server communication").

Events come as they are, with their ids and timestamps, session by session; what is stored
tells where to go on after a restart. The remote server is told how far this one is, by
events ``event/<server id>/synced/<remote id>`` that are registered there, as today's Hat
servers do: ``{"state": "CONNECTED"}``, ``SYNCING``, ``SYNCED`` with ``count``.

Belongs to the event loop's thread.
"""

import logging
from collections.abc import Callable
from typing import Any

from hat import aio, util

from eventer_bridge.engine import Engine
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.eventer.client import ConnectCb, EventerClient, EventsCb
from eventer_bridge.eventer.feed import Feed, FeedState
from eventer_bridge.model import EventId, JsonPayload, RegisterEvent, Status

mlog = logging.getLogger(__name__)


def create(engine: Engine, remote_id: int, connect: ConnectCb) -> "Replication":
    """Create the replication of a server, which goes on until it is closed.

    Args:
        engine: where its events are kept and told of.
        remote_id: the remote server's identifier.
        connect: connects to it.
    """
    return Replication(engine, remote_id, connect)


class Replication(aio.Resource):
    """See the module. Made by :func:`create`.

    Attributes:
        remote_id: whose events they are.
        state: how far it is; None while there is no connection.
    """

    def __init__(self, engine: Engine, remote_id: int, connect: ConnectCb) -> None:
        self.remote_id = remote_id
        self.state: FeedState | None = None
        self._engine = engine
        self._connect = connect
        self._client: EventerClient | None = None
        self._remote_status_cbs = util.CallbackRegistry()
        self._feed = Feed(
            f"server {remote_id}",
            self._connect_feed,
            self._known,
            engine.replicate,
            on_client=self._on_client,
            on_state=self._on_state,
        )

    @property
    def async_group(self) -> aio.Group:
        """Group of the replication's tasks."""
        return self._feed.async_group

    @property
    def remote_status(self) -> Status | None:
        """The remote server's status; None while there is no connection."""
        return None if self._client is None else self._client.status

    def register_remote_status_cb(self, cb: Callable[[], None]) -> util.RegisterCallbackHandle:
        """Have ``cb`` called whenever :attr:`remote_status` may have changed."""
        return self._remote_status_cbs.register(cb)

    async def _connect_feed(self, on_events: EventsCb) -> EventerClient:
        return await self._connect(
            subscriptions=[("*",)],
            server_id=self.remote_id,
            persisted=True,
            on_events=on_events,
            on_status=self._on_status,
        )

    def _known(self) -> dict[int, EventId | None]:
        return {self.remote_id: self._engine.last_event_id(self.remote_id)}

    def _on_client(self, client: EventerClient | None) -> None:
        self._client = client
        if client is None:
            self.state = None
        self._remote_status_cbs.notify()

    def _on_state(self, state: FeedState, count: int | None) -> None:
        self.state = state
        mlog.info(
            "replication", extra={"server": self.remote_id, "state": state.value, "events": count}
        )
        self._tell(count)

    def _on_status(self, status: Status) -> None:
        # while it was not OPERATIONAL it could not be told
        if status is Status.OPERATIONAL and self.state is not None:
            self._tell(None)
        self._remote_status_cbs.notify()

    def _tell(self, count: int | None) -> None:
        if self._client is None or self.state is None:
            return
        data: dict[str, Any] = {"state": self.state.value}
        if self.state is FeedState.SYNCED:
            data["count"] = count
        event_type = ("event", str(self._engine.server_id), "synced", str(self.remote_id))
        try:
            self._client.register_only([RegisterEvent(event_type, None, JsonPayload.of(data))])
        except EventerBridgeError as e:
            extra = {"server": self.remote_id, "reason": str(e)}
            mlog.debug("remote server is not told of the replication", extra=extra)
