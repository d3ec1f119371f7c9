"""The answer to ``mariner status``: what a gateway is doing, at one moment.

The request ``status`` of the control socket has :class:`GatewayStatus` as its result. Fields are
places in the tree of ``counts``. Counts are since the start of the gateway; rates come from two
answers (:func:`with_rates`), so that nothing is measured while nobody asks.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from eventer_bridge.control import client
from eventer_bridge.control.client import ANY, Addressee
from mariner import limits


class QuotaUse(msgspec.Struct, frozen=True):
    """A bound of a client's quota, and how often it was met (``hits``).

    Of rates, ``used`` is the rate, once it is known, and ``spent`` all since it was set.
    """

    limit: int
    used: float | None = None
    spent: float | None = None
    hits: int = 0


class ClientStatus(msgspec.Struct, frozen=True):
    """A configured client, with all its connections; those that share a token are one.

    ``subscriptions`` are query types of its connections, ``events_notified`` counted on each.
    ``unread_bytes`` wait for its slowest connection, which is ``behind_s`` (0: it is not too slow).
    ``is_held``, ``held_s``: whether it is held back to its quota, and for how long it was.
    """

    wire: str
    name: str
    connections: int
    subscriptions: int
    events_registered: int
    events_notified: int
    unread_bytes: int
    behind_s: float
    is_held: bool
    held_s: float
    quota: dict[str, QuotaUse]
    registered_per_s: float | None = None
    notified_per_s: float | None = None


class ConnectionStatus(msgspec.Struct, frozen=True):
    """A connection that does not read what is sent to it; ``client`` as it called itself."""

    wire: str
    client: str | None
    peer: str
    unread_bytes: int
    behind_s: float


class WireStatus(msgspec.Struct, frozen=True):
    """All connections of a kind; attributes as of :class:`ClientStatus` and ``ServerStats``."""

    connections: int
    clients: int
    events_registered: int
    events_notified: int
    declined: int
    rejected: int
    registered_per_s: float | None = None
    notified_per_s: float | None = None


class StoreStatus(msgspec.Struct, frozen=True):
    """The store of a gateway; see ``StoreStats``. ``path``: its directory, if it has one.

    ``oldest``: timestamp of its oldest event; None: there is none, or finding it took too long.
    """

    backend: str
    path: str | None
    history: str
    events: int
    event_types: int
    size_bytes: int
    free_bytes: int | None
    compaction_bytes: int
    since_commit_s: float | None
    oldest: str | None
    pending_events: int
    queries_running: int
    queries_waiting: int


class CursorStatus(msgspec.Struct, frozen=True):
    """A cursor of a client (``CursorInfo``); its lag is measured every 10 s."""

    client: str
    name: str
    lag_events: int
    lag_s: float
    is_connected: bool
    n_parked: int


class RemoteStatus(msgspec.Struct, frozen=True):
    """A remote Event Server; a relay has no lag, and events that it left out are refused."""

    name: str
    is_connected: bool
    refused_events: int
    is_synced: bool | None = None
    lag_s: float | None = None
    lag_events: int | None = None


class MemberStatus(msgspec.Struct, frozen=True):
    """A member of a group, as it told of itself ``seen_s`` ago, each second.

    ``position`` is of the last record of the group's log that its store has, ``lag_records`` are
    acknowledged ones behind that, ``lag_s`` the age of the first of them.
    """

    name: str
    is_active: bool
    position: int
    lag_records: int
    lag_s: float
    seen_s: float


class GroupStatus(msgspec.Struct, frozen=True):
    """The group of a gateway, as its ``member`` knows it; lags as of :class:`MemberStatus`.

    ``active``: the member that is, ``since`` (ISO 8601) it claimed ``epoch``; None: none is, since
    then. ``log_records``: that its log holds for members that may not have them. ``silent_s``: for
    how long the log has not changed, as it does several times within ``takeover_s`` while it can be
    used and a member is active. ``takeovers``: claims of this member after another active one, or
    itself, ended without a release. Members come with those that are furthest behind first.
    """

    name: str
    member: str
    is_active: bool
    active: str | None
    since: str | None
    epoch: int | None
    position: int
    acknowledged: int | None
    log_records: int | None
    lag_records: int
    lag_s: float
    silent_s: float
    takeovers: int
    members: list[MemberStatus]


class GatewayStatus(msgspec.Struct, frozen=True):
    """See the module. ``status``: OPERATIONAL or why not; ``not_ready``: why it could not serve.

    ``started`` is in ISO 8601, ``uptime_s`` ago. ``store``: None in relay mode. ``group``: None if
    it belongs to none. Clients, slowest
    connections and cursors (at most ``limits.MAX_CURSORS``) come with those that are furthest
    behind first, then the busiest; so many clients are left out. ``days_left`` are of certificates
    and revocation lists, by their keys. ``is_reloaded``: whether the last reload, if any,
    succeeded. ``errors``: the last lines of the log that are errors, oldest first.
    """

    name: str
    version: str
    pid: int
    status: str
    not_ready: str | None
    started: str
    uptime_s: float
    store: StoreStatus | None
    wires: dict[str, WireStatus]
    clients: list[ClientStatus]
    clients_left_out: int
    slowest: list[ConnectionStatus]
    cursors: list[CursorStatus]
    remotes: list[RemoteStatus]
    group: GroupStatus | None
    modules: list[str]
    days_left: dict[str, float]
    is_reloaded: bool
    errors: list[dict[str, Any]]


def ask(socket: Path, to: Addressee = ANY) -> GatewayStatus:
    """Ask a running gateway through its control socket; blocks. Raises ControlError."""
    what = f"{socket}: the gateway"
    timeout_s = limits.STATUS_TIMEOUT_S
    return client.request(
        socket, "status", None, GatewayStatus, to=to, what=what, timeout_s=timeout_s
    )


def with_rates(before: GatewayStatus, after: GatewayStatus) -> GatewayStatus:
    """The later status with the rates between the two; none if the gateway was restarted."""
    seconds = after.uptime_s - before.uptime_s
    if before.started != after.started or seconds <= 0:
        return after
    clients = {(i.wire, i.name): i for i in before.clients}
    return replace(
        after,
        wires={name: _rated(before.wires.get(name), i, seconds) for name, i in after.wires.items()},
        clients=[_rated(clients.get((i.wire, i.name)), i, seconds) for i in after.clients],
    )


def _rated(before: Any, after: Any, seconds: float) -> Any:
    if before is None:
        return after
    rated = replace(
        after,
        registered_per_s=(after.events_registered - before.events_registered) / seconds,
        notified_per_s=(after.events_notified - before.events_notified) / seconds,
    )
    if not isinstance(after, ClientStatus):
        return rated
    old = before.quota
    uses = {i: _quota_rate(old.get(i), use, seconds) for i, use in after.quota.items()}
    return replace(rated, quota=uses)


def _quota_rate(before: QuotaUse | None, after: QuotaUse, seconds: float) -> QuotaUse:
    if before is None or before.spent is None or after.spent is None:
        return after
    return replace(after, used=max(0.0, after.spent - before.spent) / seconds)
