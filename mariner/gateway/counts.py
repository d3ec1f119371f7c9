"""What a gateway counts, as one tree. Belongs to the event loop's thread.

Its parts count in plain attributes (``ServerStats``, accounts, cursors, the store). :func:`tree`
reads them when somebody asks: ``/metrics`` has a row for each place in it (``metrics.FAMILIES``),
``mariner status`` the fields that its structs name; the console reads both. The audit trail has the
registrations of the same accounts.
"""

import asyncio
import heapq
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge import slices
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.control.server import ControlServer
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.quotas import Account, Accounts
from eventer_bridge.errors import EventerBridgeError, Refusal
from eventer_bridge.group.member import GroupMember
from eventer_bridge.model import Order, QueryTimeseriesParams, Status
from eventer_bridge.net.stats import CloseReason, RefusedSlot, ServerStats
from eventer_bridge.net.stream import Stream
from eventer_bridge.remote.replication import Replication
from eventer_bridge.rsb.transport import RsbStats
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.gateway import logs
from mariner.gateway.access import Access
from mariner.gateway.config import GatewayConfig, RocksDbConfig
from mariner.gateway.status import ClientStatus, ConnectionStatus, GatewayStatus, QuotaUse
from mariner.version import __version__

audit = logging.getLogger("audit")

OTHER_CLIENTS: Final = "(not configured)"
"""Whose cursors are those of clients that are configured no longer, or by another server only."""

Node: TypeAlias = dict[str, Any]
"""Values and further nodes by name; None where a gateway has no such thing."""


class Wire(NamedTuple):
    """A kind of connections, the value of the label ``wire``.

    ``connections`` returns the open ones. ``has_clients``: its peers register and are notified.
    """

    stats: ServerStats
    connections: Callable[[], Collection[Stream[Any]]] = tuple
    has_clients: bool = True


class RemoteServer(Protocol):
    """A connection to a remote Event Server: a relay or a replication."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to it."""

    @property
    def refused_events(self) -> int:
        """Events that had to be left out, counted each time it sent them."""


class Counted(Protocol):
    """A gateway, as far as it is counted."""

    config: GatewayConfig
    access: Access
    core: EventCore
    backend: Backend | None
    member: GroupMember | None
    is_reloaded: bool

    @property
    def wires(self) -> Mapping[str, Wire]:
        """All kinds of connections, by the label of their metrics."""

    @property
    def accounts(self) -> Mapping[str, Accounts]:
        """What clients use, by wire."""

    @property
    def remote_servers(self) -> Collection[RemoteServer]:
        """The remote Event Servers that are relayed to, or followed."""

    @property
    def controls(self) -> Collection[ControlServer]:
        """Where requests of operators are answered."""


def tree(gateway: Counted) -> Node:
    """All counts now, except for those of single clients, cursors and connections."""
    core, wires = gateway.core, gateway.wires
    return {
        "core": {
            "is_operational": core.status is Status.OPERATIONAL,
            "pending_events": core.pending_events,
            "sessions": core.n_ended,
            "clock_ahead_s": core.clock_ahead_s if isinstance(core, Engine) else None,
        },
        "store": None if gateway.backend is None else _store(gateway.backend),
        "groups": _groups(gateway),
        "cursors": None
        if core.cursors is None
        else _cursors_by_client(core.cursors, gateway.access.authenticators["mariner"].names),
        "log": logs.counts()._asdict(),
        "wires": {name: _wire(wire) for name, wire in wires.items()},
        "rsb": {
            "relayed": rsb.relayed,
            "unsent": {"nobody there": 0, "invalid": 0, **rsb.unsent},
        }
        if "rsb" in wires and isinstance(rsb := wires["rsb"].stats, RsbStats)
        else None,
        "quotas": {
            wire: {account.name: _met(account) for account in accounts if account.hits}
            for wire, accounts in gateway.accounts.items()
        },
        "remotes": {i.name: _remote(i) for i in gateway.remote_servers},
        "is_reloaded": gateway.is_reloaded,
        "expiries": {key: i.timestamp() for key, i in gateway.access.expiries.items()},
    }


def _store(backend: Backend) -> Node:
    control = backend.control if isinstance(backend, RocksDbBackend) else None
    load = backend.query_load
    return {
        **backend.stats()._asdict(),
        "is_writable": backend.failure is None,
        "backed_up_s": None if control is None else control.backed_up_s,
        "drilled_s": None if control is None else control.drilled_s,
        "queries_running": load.running,
        "queries_waiting": load.waiting,
    }


def _groups(gateway: Counted) -> Node | None:
    member, core = gateway.member, gateway.config.event_core
    if member is None or core is None or core.group is None:
        return None
    return {core.group.name: _group(member)}


def _group(member: GroupMember) -> Node:
    """Of the group of a member, as this one knows it; None: it has not read the log yet."""
    state, now_s = member.state, time.monotonic()
    acknowledged, active = (0, None) if state is None else (state.acknowledged, state.active)
    node: Node = {
        "is_active": member.is_active,
        "position": member.position,
        "lag_records": member.lag_records,
        "lag_s": member.lag_s,
        "silent_s": now_s - member.changed_at_s,
        "takeovers": member.takeovers,
        "members": {
            i.name: {
                "is_active": i.name == active,
                "position": i.position,
                # the active one has what it wrote
                "lag_records": 0 if i.name == active else max(0, acknowledged - i.position),
                "lag_s": 0.0 if i.name == active else i.lag_s,
                "seen_s": i.seen_s + now_s - member.members_at_s,
            }
            for i in member.members
        },
    }
    if (own := node["members"].get(member.name)) is not None:  # it knows more than it told
        own |= {i: node[i] for i in ("position", "lag_records", "lag_s")}
    return node | {
        "n_members": len(member.members),
        "epoch": None if state is None else state.epoch,
        "since_s": None if state is None else state.since_s,
        "acknowledged": None if state is None else state.acknowledged,
        "log_records": None if state is None else state.position - state.trimmed,
    }


def _cursors_by_client(cursors: Cursors, clients: Collection[str]) -> Node:
    """By client, as clients choose the names of cursors; the lag is measured now and then."""
    of_clients: dict[str, list[Cursor]] = {}
    for cursor in cursors:
        client = cursor.client if cursor.client in clients else OTHER_CLIENTS
        of_clients.setdefault(client, []).append(cursor)
    return {
        client: {
            "cursors": len(found),
            "connected": sum(i.holder is not None for i in found),
            "lag_events": max(i.lag_events for i in found),
            "lag_s": max(i.lag_s for i in found),
            "parked": sum(i.n_parked for i in found),
        }
        for client, found in of_clients.items()
    }


_COUNTS: Final = "clients", "declined", "events_registered", "events_notified", "outcome_unknown"


def _wire(wire: Wire) -> Node:
    stats = wire.stats
    node: Node = {
        "connections": stats.connections,
        "accepted": stats.accepted,
        "refused": _of_all(RefusedSlot, stats.refused),
        "closed": _of_all(CloseReason, stats.closed),
    }
    if not wire.has_clients:
        return node
    connections = wire.connections()
    unread_bytes = [i.unread_bytes for i in connections]
    return node | {
        **{name: getattr(stats, name) for name in _COUNTS},
        "rejected": sum(stats.rejected.values()),
        "rejections": _of_all(Refusal, stats.rejected),
        "frames": {"in": stats.frames_in, "out": stats.frames_out},
        "bytes": {"in": stats.bytes_in, "out": stats.bytes_out},
        "unread_bytes": sum(unread_bytes),
        "unread_largest_bytes": max(unread_bytes, default=0),
        "behind_s": max((i.behind_s for i in connections if i.is_write_blocked), default=0),
    }


def _of_all(reasons: type[StrEnum], counts: Mapping[str, int]) -> Node:
    """The count of each reason, 0 included: else Prometheus would not see the first one."""
    return {reason.value: counts.get(reason, 0) for reason in reasons}


def _met(account: Account) -> Node:
    """Of a client that met its quota: others have none, so that peers cannot add series."""
    throttle = account.throttle
    return {
        "is_held": None if throttle is None else throttle.is_holding,
        "held_s": None if throttle is None else throttle.held_s,
        "hits": account.hits,
    }


def _remote(remote: RemoteServer) -> Node:
    names = ["name", "is_connected", "refused_events"]
    if isinstance(remote, Replication):
        names += ["is_synced", "lag_s", "lag_events", "ahead_s"]
    return {name: getattr(remote, name) for name in names}


# --- mariner status -------------------------------------------------------------------------


class StatusReport:
    """Answers the request ``status``: the tree, with single clients, cursors and connections.

    They are counted in slices: there may be thousands.
    """

    def __init__(self, gateway: Counted) -> None:
        self._gateway = gateway
        self._started = datetime.now(UTC)
        self._started_s = time.monotonic()
        for control in gateway.controls:
            control.handle("status", lambda _: self.collect(), is_for_any=True)

    async def collect(self) -> GatewayStatus:
        """The status now."""
        gateway, not_ready = self._gateway, None
        try:
            await gateway.core.check_ready()
        except EventerBridgeError as e:
            not_ready = str(e)
        oldest = None if gateway.backend is None else await _oldest(gateway.backend)
        slowest = await slices.run(self._slowest())
        clients = await slices.run(self._clients())
        counts, core, member = tree(gateway), gateway.config.event_core, gateway.member
        if gateway.backend is not None and core is not None:
            counts["store"] |= {
                "backend": type(core.backend).__struct_config__.tag,
                "path": str(core.backend.path) if isinstance(core.backend, RocksDbConfig) else None,
                "history": gateway.backend.history_id,
                "oldest": oldest,
                "pending_events": gateway.core.pending_events,
            }
        now_s = time.time()
        found = counts | {
            "name": gateway.config.name,
            "version": __version__,
            "pid": os.getpid(),
            "status": gateway.core.status.name,
            "not_ready": not_ready,
            "started": self._started.isoformat(timespec="seconds"),
            "uptime_s": time.monotonic() - self._started_s,
            "wires": {name: i for name, i in counts["wires"].items() if "clients" in i},
            "clients": clients[: limits.MAX_STATUS_CLIENTS],
            "clients_left_out": max(0, len(clients) - limits.MAX_STATUS_CLIENTS),
            "slowest": slowest,
            "cursors": [] if gateway.core.cursors is None else _cursors(gateway.core.cursors),
            "remotes": [_remote(i) for i in gateway.remote_servers],
            "group": None if member is None else _group_status(member, counts["groups"]),
            "modules": [] if core is None else [str(i["module"]) for i in core.modules],
            "days_left": {
                key: round((moment_s - now_s) / 86_400, 2)
                for key, moment_s in counts["expiries"].items()
            },
            "errors": logs.last_errors(),
        }
        return msgspec.convert(found, GatewayStatus)

    def _slowest(self) -> Steps[list[ConnectionStatus]]:
        found: list[tuple[float, int, int, ConnectionStatus]] = []
        for name, wire in self._gateway.wires.items():
            for i in wire.connections():
                if unread_bytes := i.unread_bytes:
                    of = ConnectionStatus(name, i.client, i.peer, unread_bytes, i.behind_s)
                    found.append((of.behind_s, unread_bytes, len(found), of))
                yield
        return [i[-1] for i in heapq.nlargest(limits.MAX_SLOWEST, found)]

    def _clients(self) -> Steps[list[ClientStatus]]:
        found = []
        for wire, accounts in self._gateway.accounts.items():
            for account in accounts:
                streams = [i.stream for i in account.members]
                yield
                found.append(self._client(wire, account, streams))
                yield
        found.sort(key=lambda i: (-i.behind_s, -i.unread_bytes, -i.events_registered, i.name))
        return found

    def _client(self, wire: str, account: Account, streams: Iterable[Stream[Any]]) -> ClientStatus:
        throttle = account.throttle
        return ClientStatus(
            wire=wire,
            name=account.name,
            connections=len(account.members),
            subscriptions=account.n_subscriptions,
            events_registered=account.n_registered,
            events_notified=account.n_notified,
            unread_bytes=max((i.unread_bytes for i in streams), default=0),
            behind_s=max((i.behind_s for i in streams), default=0.0),
            is_held=throttle is not None and throttle.is_holding,
            held_s=0.0 if throttle is None else throttle.held_s,
            quota=self._quota(account),
        )

    def _quota(self, account: Account) -> dict[str, QuotaUse]:
        spent = {} if account.throttle is None else account.throttle.spent
        used: dict[str, float] = {
            "max_connections": len(account.members),
            "max_subscriptions": account.n_subscriptions,
        }
        if self._gateway.backend is not None:
            used["max_event_types"] = self._gateway.backend.types_cost(account.types_owner)
        bounds = {"max_event_types": account.quota.n_event_types, **account.quota.bounds}
        return {
            name: QuotaUse(limit, used.get(name), spent.get(name), account.hits[name])
            for name, limit in bounds.items()
        }


async def _oldest(backend: Backend) -> str | None:
    params = QueryTimeseriesParams(order=Order.ASCENDING, max_results=1)
    try:
        async with asyncio.timeout(limits.OLDEST_TIMEOUT_S):
            result = await backend.query(params)
    except (TimeoutError, EventerBridgeError):
        return None
    return result.events[0].timestamp.to_iso() if result.events else None


def _cursors(cursors: Cursors) -> list[Node]:
    found = sorted(cursors, key=lambda i: (-i.lag_s, i.client, i.name))[: core_limits.MAX_CURSORS]
    names = "client", "name", "lag_events", "lag_s", "n_parked"
    return [
        {j: getattr(i, j) for j in names} | {"is_connected": i.holder is not None} for i in found
    ]


def _group_status(member: GroupMember, groups: Node) -> Node:
    [(name, node)] = groups.items()
    members = [{"name": i} | its for i, its in node["members"].items()]
    members.sort(key=lambda i: (-i["lag_s"], -i["lag_records"], -i["seen_s"]))
    active = None if member.state is None else member.state.active
    since = None if node["since_s"] is None else datetime.fromtimestamp(node["since_s"], UTC)
    return {
        **node,
        "name": name,
        "member": member.name,
        "active": active,
        "since": None if since is None else since.isoformat(timespec="seconds"),
        "members": members,
    }


# --- the audit trail ------------------------------------------------------------------------


class RegistrationsAudit:
    """Writes how many events each client registered into the audit trail, once a minute."""

    def __init__(
        self, accounts: Callable[[], Mapping[str, Iterable[Account]]], is_wanted: Callable[[], bool]
    ) -> None:
        self._accounts = accounts
        self._is_wanted = is_wanted
        self._counted: dict[tuple[str, str], int] = {}
        self._since_s = time.monotonic()

    async def run(self) -> None:
        """Write lines until it is cancelled."""
        while True:
            await asyncio.sleep(limits.AUDITED_REGISTRATIONS_S)
            self.write()

    def write(self) -> None:
        """Write what each client registered since the last time, some clients in a line."""
        now_s = time.monotonic()
        before, since_s = self._counted, self._since_s
        self._since_s = now_s
        self._counted = {
            (wire, account.name): account.n_registered
            for wire, accounts in self._accounts().items()
            for account in accounts
        }
        if not self._is_wanted():
            return
        by_wire: dict[str, list[tuple[str, int]]] = {}
        for (wire, name), count in self._counted.items():
            earlier = before.get((wire, name), 0)
            # a client that was configured anew begins anew
            if n_events := count - earlier if count >= earlier else count:
                by_wire.setdefault(wire, []).append((name, n_events))
        for wire, counts in by_wire.items():
            for first in range(0, len(counts), limits.AUDITED_ITEMS):
                events = dict(counts[first : first + limits.AUDITED_ITEMS])
                extra = {"wire": wire, "events": events, "seconds": round(now_s - since_s, 1)}
                audit.info("registered", extra=extra)
