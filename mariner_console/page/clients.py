"""Clients, the slowest first: from the status of a gateway on this machine, or of all together.

Names and addresses of clients are told only by the control socket; ``/metrics`` has them together.
"""

from eventer_bridge.errors import ConfigurationError, ControlError
from mariner.gateway.status import ClientStatus, ConnectionStatus
from mariner_console import texts
from mariner_console.metrics import Scrape
from mariner_console.page.parts import TextTable, card, failure, note
from mariner_console.watcher import Watcher

_WIRE_COLUMNS = {
    "wire": "Wire", "clients": "Clients", "connections": "Connections", "unread": "Unread by all",
    "largest": "Unread by one", "lag": "Slowest behind",
}  # fmt: skip

_CLIENT_COLUMNS = {
    "client": "Client", "wire": "Wire", "behind": "Behind", "unread": "Unread",
    "registered": "Registered/s", "notified": "Notified/s", "connections": "Connections",
    "subscriptions": "Subscriptions", "quota": "Quota",
}  # fmt: skip

_SLOW_COLUMNS = {
    "number": "#", "client": "Client", "wire": "Wire", "peer": "Address", "behind": "Behind",
    "unread": "Unread",
}  # fmt: skip


class ClientsPanel:
    """The panel."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        with card("Clients by wire"):
            self._wires = TextTable(_WIRE_COLUMNS, key="wire", empty="Not known.")
        with card("Clients, those furthest behind first"):
            if watcher.config.control is None:
                note(
                    "Single clients are known only from the control socket of a gateway on this"
                    " machine: 'control' of this gateway in the configuration of the console."
                )
                return
            self._failure = failure()
            self._clients = TextTable(_CLIENT_COLUMNS, key="client", empty="There is none.")
            self._left_out = note("")
        with card("Connections that read too slowly"):
            self._slow = TextTable(_SLOW_COLUMNS, key="number", empty="No connection is too slow.")

    async def refresh(self) -> None:
        """Show what they do now."""
        scrape = self._watcher.view.scrape
        self._wires.set(_wires(scrape) if scrape else [])
        if self._watcher.config.control is None:
            return
        try:
            status = await self._watcher.status()
        except (ConfigurationError, ControlError) as e:
            self._failure.set_text(texts.shown(str(e), 400))
            return
        self._failure.set_text("")
        self._clients.set([_client(i) for i in status.clients])
        more = status.clients_left_out
        self._left_out.set_text(f"{more:,} more" if more else "")
        self._slow.set([_slow(number, i) for number, i in enumerate(status.slowest, 1)])


def _wires(scrape: Scrape) -> list[dict[str, str]]:
    found = {
        column: scrape.by(f"mariner_{name}", "wire")
        for column, name in (
            ("connections", "connections"),
            ("unread", "send_queue_bytes"),
            ("largest", "send_queue_largest_bytes"),
            ("lag", "send_lag_seconds"),
        )
    }
    return [
        {
            "wire": texts.shown(wire),
            "clients": texts.of_number(n_clients),
            "connections": texts.of_number(found["connections"].get(wire)),
            "unread": texts.of_number(found["unread"].get(wire), "B"),
            "largest": texts.of_number(found["largest"].get(wire), "B"),
            "lag": texts.of_seconds(found["lag"].get(wire)),
        }
        for wire, n_clients in scrape.by("mariner_clients", "wire").items()
    ]


def _client(client: ClientStatus) -> dict[str, str]:
    met = [name for name, use in client.quota.items() if use.hits]
    held = ["held back now"] if client.is_held else []
    return {
        "client": texts.shown(client.name),
        "wire": texts.shown(client.wire),
        "behind": texts.of_seconds(client.behind_s) if client.behind_s else "no",
        "unread": texts.of_number(client.unread_bytes, "B"),
        "registered": texts.of_number(client.registered_per_s),
        "notified": texts.of_number(client.notified_per_s),
        "connections": texts.of_number(client.connections),
        "subscriptions": texts.of_number(client.subscriptions),
        "quota": ", ".join([*held, *(f"met {name}" for name in met)]),
    }


def _slow(number: int, connection: ConnectionStatus) -> dict[str, str]:
    return {
        "number": str(number),
        "client": texts.shown(connection.client or texts.UNKNOWN),
        "wire": texts.shown(connection.wire),
        "peer": texts.shown(connection.peer),
        "behind": texts.of_seconds(connection.behind_s),
        "unread": texts.of_number(connection.unread_bytes, "B"),
    }
