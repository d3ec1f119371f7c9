"""What is wrong with a gateway, in words: the alerts for Prometheus that need no history.

The bounds are those of ``deploy/prometheus/alerts.yml``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from eventer_bridge.model import Status
from mariner_console.metrics import Scrape
from mariner_console.texts import of_number, of_seconds
from mariner_console.view import GatewayView


class Problem(NamedTuple):
    """Something that is wrong; ``is_critical`` if clients are not served."""

    is_critical: bool
    text: str


def find(view: GatewayView, now_s: float) -> list[Problem]:
    """What is wrong, the worst first.

    Args:
        view: what is known of the gateway.
        now_s: now, in seconds since 1970.
    """
    found = [*_of_connection(view)]
    if view.scrape is not None:
        found += _of_store(view.scrape)
        found += _of_load(view, view.scrape)
        found += _of_operation(view.scrape, now_s)
    return sorted(found, key=lambda i: not i.is_critical)


def _of_connection(view: GatewayView) -> Iterator[Problem]:
    if view.failure is not None:
        yield Problem(True, f"not connected: {view.failure}")
    elif view.status not in {None, Status.OPERATIONAL}:
        assert view.status is not None
        yield Problem(True, f"status {view.status.name}: nothing can be registered")
    if view.scrape_failure is not None:
        yield Problem(False, f"no metrics: {view.scrape_failure}")
    if len(view.alarms):
        yield Problem(False, f"alarms raised: {len(view.alarms) + view.alarms.left_out}")


def _of_store(scrape: Scrape) -> Iterator[Problem]:
    if scrape.value("mariner_store_writable") == 0:
        yield Problem(True, "the store cannot be written")
    free = scrape.value("mariner_store_free_bytes")
    if free is not None and free < 1e9:
        yield Problem(True, f"the disk of the store has only {of_number(free, 'B')} left")
    types = scrape.value("mariner_store_event_types") or 0
    if types > 900_000:
        yield Problem(False, f"{types:,.0f} event types of at most 1,000,000")


def _of_load(view: GatewayView, scrape: Scrape) -> Iterator[Problem]:
    for wire, lag_s in scrape.by("mariner_send_lag_seconds", "wire").items():
        if lag_s > 30:
            yield Problem(False, f"a client of {wire} is {of_seconds(lag_s)} behind")
    for client, held in scrape.by("mariner_client_held", "client").items():
        if held:
            yield Problem(False, f"client {client} is held back by its quota")
    waiting = scrape.value("mariner_queries_waiting") or 0
    if waiting > 50:
        yield Problem(False, f"{waiting:.0f} queries wait")
    late_s = view.point.loop_p99_s if view.point else None
    if late_s is not None and late_s > 0.1:
        yield Problem(False, f"the event loop is late by {of_seconds(late_s)} (p99)")
    used, most = scrape.value("process_open_fds"), scrape.value("process_max_fds")
    if used is not None and most and used / most > 0.8:
        yield Problem(False, f"{used:.0f} of {most:.0f} files are open")


def _of_operation(scrape: Scrape, now_s: float) -> Iterator[Problem]:
    if scrape.value("mariner_config_last_reload_successful") == 0:
        yield Problem(False, "the last reload of the configuration failed")
    for key, moment_s in scrape.by("mariner_tls_expiry_timestamp_seconds", "key").items():
        left_s = moment_s - now_s
        if left_s < 14 * 86_400:
            when = f"expires in {of_seconds(left_s)}" if left_s > 0 else "is expired"
            yield Problem(left_s < 3 * 86_400, f"{key} {when}")
    for server, is_connected in scrape.by("mariner_remote_connected", "server").items():
        if not is_connected:
            yield Problem(False, f"no connection to the remote server {server}")
    for server, lag_s in scrape.by("mariner_replication_lag_seconds", "server").items():
        if lag_s > 60:
            yield Problem(False, f"the replication of {server} is {of_seconds(lag_s)} behind")
    ahead_s = scrape.value("mariner_clock_ahead_seconds") or 0
    if ahead_s > 60:
        yield Problem(False, f"timestamps are {of_seconds(ahead_s)} ahead of the clock")
