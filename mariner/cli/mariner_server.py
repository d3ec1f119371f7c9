"""Mariner servers as a target of the client commands."""

from collections.abc import Iterable
from typing import Final

from eventer_bridge.model import EventType
from mariner import client
from mariner.cli import client as commands
from mariner.cli.target import Target, TargetWire, command_of, server_options


class MarinerTarget(Target):
    """A server that speaks Mariner (002)."""

    async def connect(
        self,
        *,
        subscriptions: Iterable[EventType] = (),
        server_id: int | None = None,
        persisted: bool = False,
        timeout_s: float = 10,
    ) -> client.Client:
        """See :meth:`Target.connect`."""
        return await client.connect(
            self.host,
            self.port,
            client_name=self.name,
            client_token=self.token,
            subscriptions=subscriptions,
            server_id=server_id,
            persisted=persisted,
            ssl=self.ssl_context(),
            connect_timeout_s=timeout_s,
        )


MARINER: Final = TargetWire(
    MarinerTarget,
    server_options("MARINER", 23014),
    {"query": "Only this gateway's server understands --id, --payload and --unique-type."},
)

ping, register, query, subscribe = (command_of(MARINER, i) for i in commands.COMMANDS)
