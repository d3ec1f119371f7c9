"""Store, remote servers, certificates: what ``/metrics`` tells of them."""

import time
from datetime import UTC, datetime

from nicegui import ui

from mariner_console import texts
from mariner_console.metrics import Scrape
from mariner_console.page.parts import Figure, TextTable, card
from mariner_console.view import GatewayView


class StorePanel:
    """The panel."""

    def __init__(self, view: GatewayView) -> None:
        self._view = view
        with card("Store"), ui.element("div").classes("console-figures"):
            self._figures = {title: Figure(title) for title in _figures(view.scrape)}
        with card("Replication and relay"):
            columns = {
                "server": "Server", "connected": "Connected", "synced": "Synced",
                "lag": "Lag", "events": "Events on their way", "refused": "Left out",
            }  # fmt: skip
            empty = "It follows no other server."
            self._remotes = TextTable(columns, key="server", empty=empty)
        with card("Certificates and revocation lists"):
            columns = {"key": "Configured as", "expires": "Expires (UTC)", "left": "Left"}
            self._expiries = TextTable(columns, key="key", empty="It has none.")

    async def refresh(self) -> None:
        """Show what was told last."""
        scrape = self._view.scrape
        for title, text in _figures(scrape).items():
            self._figures[title].set(text)
        self._remotes.set(_remotes(scrape) if scrape else [])
        self._expiries.set(_expiries(scrape) if scrape else [])


def _figures(scrape: Scrape | None) -> dict[str, str]:
    def value(name: str, unit: str = "") -> str:
        return texts.of_number(scrape and scrape.value(f"mariner_{name}"), unit)

    writable = scrape and scrape.value("mariner_store_writable")
    return {
        "can be written": texts.UNKNOWN if writable is None else ("yes" if writable else "NO"),
        "events": value("store_events"),
        "event types": value("store_event_types"),
        "on disk": value("store_bytes", "B"),
        "disk free": value("store_free_bytes", "B"),
        "to be compacted": value("store_compaction_bytes", "B"),
        "events to be committed": value("pending_events"),
        "queries running": value("queries_running"),
        "queries waiting": value("queries_waiting"),
    }


def _remotes(scrape: Scrape) -> list[dict[str, str]]:
    synced = scrape.by("mariner_replication_synced", "server")
    lag_s = scrape.by("mariner_replication_lag_seconds", "server")
    lag_events = scrape.by("mariner_replication_lag_events", "server")
    refused = scrape.by("mariner_remote_events_refused_total", "server")
    return [
        {
            "server": texts.shown(server),
            "connected": _yes(is_connected),
            "synced": _yes(synced.get(server)),
            "lag": texts.of_seconds(lag_s.get(server)),
            "events": texts.of_number(lag_events.get(server)),
            "refused": texts.of_number(refused.get(server)),
        }
        for server, is_connected in scrape.by("mariner_remote_connected", "server").items()
    ]


def _expiries(scrape: Scrape) -> list[dict[str, str]]:
    moments = scrape.by("mariner_tls_expiry_timestamp_seconds", "key")
    return [
        {
            "key": texts.shown(key),
            "expires": datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M"),
            "left": texts.of_seconds(max(0.0, moment_s - time.time())),
        }
        for key, moment_s in sorted(moments.items(), key=lambda i: i[1])
    ]


def _yes(value: float | None) -> str:
    return texts.UNKNOWN if value is None else "yes" if value else "NO"
