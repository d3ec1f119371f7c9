"""Event Servers of Hat as a target of the client commands. On the event loop's thread."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import click
from typing_extensions import override

from eventer_bridge import chatter, model
from eventer_bridge.core import paging
from eventer_bridge.eventer.client import EventerClient, connect
from eventer_bridge.model import Event
from eventer_bridge.remote.relay import is_conditional, matching
from eventer_bridge.resources import Resource, Tasks, call_on_cancel
from mariner.cli import client as commands
from mariner.cli.target import Target, TargetClient, TargetWire, command_of, server_options
from mariner.client import connection
from mariner.client.notifications import Notifications, size_of
from mariner.errors import ClosedError, ConnectError


@dataclass(frozen=True)
class EventerTarget(Target):
    """A server that speaks Eventer over chatter."""

    dialect: str

    @override
    async def connect(
        self,
        *,
        subscriptions: Iterable[model.EventType] = (),
        server_id: int | None = None,
        persisted: bool = False,
        timeout_s: float = 10,
    ) -> TargetClient:
        context = self.ssl_context()
        address = chatter.Address(self.host, self.port, context is not None)
        it = _Client(str(address))
        try:
            it.client = await connect(
                address,
                self.name,
                client_token=self.token,
                subscriptions=subscriptions,
                server_id=server_id,
                persisted=persisted,
                on_events=it.on_events,
                tls=context,
                dialect=chatter.Dialect(self.dialect),
                connect_timeout_s=timeout_s,
            )
        except ClosedError as e:
            text = connection.lost_before_init(str(e), "MsgInitReq", address.is_tls)
            raise ConnectError(f"{text} or another dialect") from e
        it.pause_when_full()
        it.async_group.spawn(call_on_cancel, it.notifications.end)
        return it


class _Client(Resource):
    """An Eventer client as a ``TargetClient``; :meth:`EventerTarget.connect` sets ``client``."""

    client: EventerClient

    def __init__(self, address: str) -> None:
        self.address = address
        self.notifications: Notifications[Sequence[Event]] = Notifications(self._resume_reading)

    @property
    def async_group(self) -> Tasks:
        return self.client.async_group

    @property
    def status(self) -> model.Status:
        return self.client.status

    @property
    def close_reason(self) -> str | None:
        return self.client.close_reason

    async def register(self, events: Sequence[model.RegisterEvent]) -> Sequence[Event]:
        await self.client.drain()
        return await self.client.register(events)

    async def query_all(
        self, params: model.QueryParams, *, limit: int | None = None
    ) -> AsyncIterator[Event]:
        """Conditions that Eventer cannot express are filtered from a wider query."""
        if isinstance(params, model.QueryTimeseriesParams) and is_conditional(params):
            events = matching(self.client.query, params)
        else:
            events = paging.query_all(self.client.query, params, limit)
        count = 0
        async with contextlib.aclosing(events):
            while count != limit and (event := await anext(events, None)) is not None:
                yield event
                count += 1

    def events(self) -> AsyncIterator[Sequence[Event]]:
        return self.notifications

    async def ping(self) -> float:
        return await self.client.ping()

    def on_events(self, events: Sequence[Event]) -> None:
        """Handle a notification."""
        self.notifications.put(events, size_of(events))
        self.pause_when_full()

    def pause_when_full(self) -> None:
        """Pause reading while notifications are waiting to be printed."""
        if self.notifications.is_full and "client" in vars(self):  # else it is not connected yet
            self.client.set_reading(False)

    def _resume_reading(self) -> None:
        self.client.set_reading(True)


EVENTER: Final = TargetWire(
    EventerTarget,
    [
        *server_options("MARINER_EVENTER", 23012),
        click.Option(
            ["--dialect"],
            envvar="MARINER_EVENTER_DIALECT",
            type=click.Choice([i.value for i in chatter.Dialect]),
            default=chatter.Dialect.CURRENT.value,
            show_default=True,
            show_envvar=True,
            help="Dialect of chatter; today's Hat components speak current.",
        ),
    ],
    {
        "ping": "Pings are those of chatter: the server's connection answers them, and they need"
        " no right.",
        "register": "Eventer does not say why a registration is refused; the server's log may.",
        "query": "Eventer cannot express --id, --payload and --unique-type: the command picks the"
        " events out of the answer to the query without them, which costs as much.",
    },
)

ping, register, query, subscribe = (command_of(EVENTER, i) for i in commands.COMMANDS)
