"""``mariner status``: the status of a gateway, as JSON or as tables for a terminal.

Names of clients and texts of errors come from outside: nothing in them can control the terminal.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from eventer_bridge import limits as core_limits
from eventer_bridge.control.client import Addressee
from eventer_bridge.model import printable
from mariner import limits
from mariner.cli import connections, output
from mariner.cli.run import errors
from mariner.cli.target import find_gateway, gateway_option
from mariner.cli.values import duration, plural
from mariner.gateway import connection_requests
from mariner.gateway import status as gateway


@click.command()
@gateway_option
@click.option("--json", "is_json", is_flag=True, help="Print JSON, a line for each status.")
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two statuses of --watch.",
)
@click.option(
    "--connections",
    "is_of_connections",
    is_flag=True,
    help="Show the connections, and nothing else; `mariner disconnect` closes one.",
)
def status(
    *, path: Path, is_json: bool, watch: bool, interval_s: float, is_of_connections: bool
) -> None:
    """Show what a running gateway is doing.

    Its state, store, group and its members, connections, clients with their rates and how much of
    their quotas they use, the connections that read too slowly, cursors, remote servers, modules,
    days that certificates are valid, and the last errors. At most 1,000 clients and 1,000 cursors,
    those that are furthest behind first. Rates are measured for a second.

    With --connections, each connection in place of that: its client and address, for how long it is
    connected, version of TLS and certificate, what it subscribed to, bytes it sends and is sent a
    second, memory held for it, for how long it has been too slow, and why it is not read from. At
    most 1,000: those furthest behind, then those with most memory, then the newest.

    Nothing is measured while nobody asks. Only the user of the gateway (and root) may ask.

    Exit code 0: shown; 1: there is no gateway, or it did not answer; 2: the configuration
    cannot be read, or has neither a store nor `control`.
    """
    about = _CONNECTIONS if is_of_connections else _GATEWAY
    with errors(), _screen(is_live=watch and not is_json and sys.stdout.isatty()) as show:
        socket, to = find_gateway(path)
        before = about.ask(socket, to)
        wait_s = limits.FIRST_RATES_S
        while True:
            time.sleep(wait_s)
            after = about.ask(socket, to)
            rated = about.with_rates(before, after)
            if is_json:
                output.write_json(rated)
            else:
                show(about.render(rated))
            if not watch:
                return
            before, wait_s = after, interval_s


@contextlib.contextmanager
def _screen(*, is_live: bool) -> Iterator[Callable[[RenderableType], None]]:
    """Where it is shown: line by line, or on a page of a terminal that is renewed."""
    if not is_live:
        yield output.write_rich
        return
    with Live(screen=True, auto_refresh=False) as live:
        yield lambda tables: live.update(tables, refresh=True)


def render(status: gateway.GatewayStatus) -> RenderableType:
    """The status, the most important first."""
    parts: list[RenderableType] = [_summary(status)]
    if status.group is not None and status.group.members:
        parts += ["", members(status.group.members)]
    parts += ["", _wires(status.wires)]
    if status.clients:
        parts += ["", _clients(status.clients, status.clients_left_out)]
    if status.slowest:
        parts += ["", _slowest(status.slowest)]
    if status.cursors:
        parts += ["", _cursors(status.cursors)]
    if status.remotes:
        parts += ["", _remotes(status.remotes)]
    if status.errors:
        parts += ["", Text("last errors", "bold"), *[_error(i) for i in status.errors]]
    return Group(*parts)


class _About(NamedTuple):
    """What is shown: how to ask for it, get rates from two answers, and show it."""

    ask: Callable[[Path, Addressee], Any]
    with_rates: Callable[[Any, Any], Any]
    render: Callable[[Any], RenderableType]


_GATEWAY: Final = _About(gateway.ask, gateway.with_rates, render)
_CONNECTIONS: Final = _About(connections.ask, connection_requests.with_rates, connections.render)


def _summary(status: gateway.GatewayStatus) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    color = "green" if status.not_ready is None else "red"
    name, rest = f"{printable(status.name)} {status.version}, ", f", pid {status.pid}"
    up = f", up {duration(status.uptime_s)}"
    table.add_row("gateway", Text.assemble(name, (status.status, color), up, rest))
    if status.not_ready is not None:
        table.add_row("not ready", Text(printable(status.not_ready), "red"))
    if not status.is_reloaded:
        text = "failed: the configuration in use is not that of the file"
        table.add_row("reload", Text(text, "red"))
    if status.store is not None:
        for key, text in _store(status.store):
            table.add_row(key, Text(printable(text)))
    if status.group is not None:
        for key, text in _group(status.group):
            table.add_row(key, Text(printable(text)))
    if status.modules:
        table.add_row("modules", Text(printable(", ".join(status.modules))))
    for key, days in sorted(status.days_left.items(), key=lambda i: i[1]):
        text = f"{key}: {days:.1f} days left"
        table.add_row("certificate", Text(text, "red" if days < limits.MIN_DAYS_LEFT else ""))
    return table


def _store(store: gateway.StoreStatus) -> Iterator[tuple[str, str]]:
    since = "" if store.oldest is None else f" since {store.oldest}"
    path = "" if store.path is None else f" {store.path}"
    yield "store", f"{store.backend}{path}: {store.events:,} {plural(store.events, 'event')}{since}"
    disk = "" if store.free_bytes is None else f", {decimal(store.free_bytes)} free"
    types = f"{store.event_types:,} {plural(store.event_types, 'type')}"
    to_compact = decimal(store.compaction_bytes)
    yield "", f"{types}, {decimal(store.size_bytes)}{disk}, {to_compact} to compact"
    ago_s, waiting = store.since_commit_s, f"events waiting for one: {store.pending_events:,}"
    commit = "no commit yet" if ago_s is None else f"last commit {duration(ago_s)} ago"
    queries = f"{store.queries_running} running, {store.queries_waiting} waiting"
    yield "", f"{commit}, {waiting}; queries: {queries}"


def _group(group: gateway.GroupStatus) -> Iterator[tuple[str, str]]:
    since = "" if group.since is None else f" since {group.since}"
    if group.epoch is None:
        active = "its log was not read yet"
    elif group.active is None:
        active = f"no member is active{since}"
    else:
        active = f"member {group.active} is active{since}"
    epoch = "" if group.epoch is None else f", epoch {group.epoch:,}"
    yield "group", f"{group.name}: this is member {group.member}; {active}{epoch}"
    position = f"position {group.position:,}"
    if group.acknowledged is not None:
        position += f" of {group.acknowledged:,}"
    behind = f", {duration(group.lag_s)} behind" if group.lag_s else ""
    kept = "" if group.log_records is None else f"; records in its log: {group.log_records:,}"
    yield "", f"{position}{behind}{kept}; its log changed {duration(group.silent_s)} ago"


def members(found: list[gateway.MemberStatus]) -> Table:
    """The members of a group."""
    names = "MEMBER", "STATE", "POSITION", "RECORDS BEHIND", "BEHIND", "LAST SEEN"
    table = output.table(*names, left=2)
    for i in found:
        table.add_row(
            Text(printable(i.name)),
            Text("active", "green") if i.is_active else Text("follower"),
            f"{i.position:,}",
            f"{i.lag_records:,}",
            duration(i.lag_s) if i.lag_s else "",
            f"{duration(i.seen_s)} ago",
        )
    return table


def _wires(wires: dict[str, gateway.WireStatus]) -> Table:
    names = "WIRE", "CONNECTIONS", "CLIENTS", "REGISTERED/S", "NOTIFIED/S", "REGISTERED", "NOTIFIED"
    table = output.table(*names, "REFUSED", "DECLINED", left=1)
    for name, wire in wires.items():
        rates = _rate(wire.registered_per_s), _rate(wire.notified_per_s)
        counts = wire.events_registered, wire.events_notified, wire.rejected, wire.declined
        numbers = [f"{i:,}" for i in (wire.connections, wire.clients)]
        table.add_row(name, *numbers, *rates, *[f"{i:,}" for i in counts])
    return table


def _clients(clients: list[gateway.ClientStatus], n_left_out: int) -> Table:
    names = "CLIENT", "WIRE", "CONNECTIONS", "REGISTERED/S", "NOTIFIED/S", "UNREAD", "BEHIND"
    table = output.table(*names, left=2)
    table.add_column("QUOTA", overflow="fold")
    for client in clients:
        table.add_row(
            Text(printable(client.name)),
            client.wire,
            f"{client.connections:,}",
            _rate(client.registered_per_s),
            _rate(client.notified_per_s),
            *_lag(client.unread_bytes, client.behind_s),
            _quota(client),
        )
    if n_left_out:
        table.add_row(f"and {n_left_out:,} more")
    return table


def _quota(client: gateway.ClientStatus) -> Text:
    text = Text()
    if client.is_held:
        text.append("held", "yellow")
    elif client.held_s:
        text.append(f"was held for {duration(client.held_s)}")
    for name, use in client.quota.items():
        share = limits.NOTEWORTHY_SHARE
        if use.hits > 0 or (use.used is not None and use.used > share * use.limit):
            used = "" if use.used is None else f"{use.used:,.0f}/"
            text.append(f"{', ' if text else ''}{name} {used}{use.limit:,}")
    return text


def _slowest(slowest: list[gateway.ConnectionStatus]) -> Table:
    table = output.table("SLOWEST", "WIRE", "PEER", "UNREAD", "BEHIND", left=3)
    for i in slowest:
        client = Text(printable(i.client or ""))
        table.add_row(client, i.wire, i.peer, *_lag(i.unread_bytes, i.behind_s))
    return table


def _cursors(cursors: list[gateway.CursorStatus]) -> Table:
    table = output.table(
        "CURSOR", "CLIENT", "CONNECTED", "EVENTS BEHIND", "BEHIND", "PARKED", left=3
    )
    for i in cursors:
        more = "+" if i.lag_events >= core_limits.MAX_LAG_EVENTS else ""
        table.add_row(
            Text(printable(i.name)),
            Text(printable(i.client)),
            "yes" if i.is_connected else "no",
            f"{i.lag_events:,}{more}",
            duration(i.lag_s) if i.lag_s else "",
            f"{i.n_parked:,}",
        )
    return table


def _remotes(remotes: list[gateway.RemoteStatus]) -> Table:
    table = output.table("REMOTE SERVER", "STATE", "LAG", "EVENTS BEHIND", "LEFT OUT", left=2)
    for i in remotes:
        if not i.is_connected:
            state = Text("not connected", "red")
        elif i.is_synced is None:
            state = Text("connected", "green")
        else:
            state = Text("synced", "green") if i.is_synced else Text("catching up", "yellow")
        lag = "" if i.lag_s is None else duration(i.lag_s)
        events = "" if i.lag_events is None else f"{i.lag_events:,}"
        table.add_row(Text(printable(i.name)), state, lag, events, f"{i.refused_events:,}")
    return table


def _error(error: dict[str, Any]) -> Text:
    known = "time", "level", "logger", "message"
    fields = "".join(f", {name}: {i}" for name, i in error.items() if name not in known)
    return Text(printable(f"{error['time']} {error['message']}{fields}"))


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:,.0f}"


def _lag(unread_bytes: int, behind_s: float) -> tuple[str, str]:
    return decimal(unread_bytes) if unread_bytes else "", duration(behind_s) if behind_s else ""
