"""Collects the status of a gateway (``status``) when an operator asks for it, and only then.

Belongs to the event loop's thread. Clients are counted in slices: there may be thousands.
"""

import asyncio
import heapq
import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from eventer_bridge import limits as core_limits
from eventer_bridge import slices
from eventer_bridge.backends.base import Backend
from eventer_bridge.core.cursors import Cursors
from eventer_bridge.core.quotas import Account
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import Order, QueryTimeseriesParams
from eventer_bridge.net.stream import Stream
from eventer_bridge.remote.replication import Replication
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.gateway import logs
from mariner.gateway.config import RocksDbConfig
from mariner.gateway.gateway import Gateway
from mariner.gateway.metrics import RemoteServer
from mariner.gateway.status import (
    ClientStatus,
    ConnectionStatus,
    CursorStatus,
    GatewayStatus,
    QuotaUse,
    RemoteStatus,
    StoreStatus,
    WireStatus,
)
from mariner.gateway.wire_metrics import Wire
from mariner.version import __version__


class StatusReport:
    """Answers the request ``status``; see the module.

    Args:
        gateway: what runs.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started = datetime.now(UTC)
        self._started_s = time.monotonic()
        for control in gateway.controls:
            control.handle("status", self._on_request, is_for_any=True)

    async def collect(self) -> GatewayStatus:
        """The status now."""
        gateway = self._gateway
        not_ready = None
        try:
            await gateway.core.check_ready()
        except EventerBridgeError as e:
            not_ready = str(e)
        store = None if gateway.backend is None else await self._store(gateway.backend)
        slowest = await slices.run(self._slowest())
        clients = await slices.run(self._clients())
        core = gateway.config.event_core
        now = datetime.now(UTC)
        return GatewayStatus(
            name=gateway.config.name,
            version=__version__,
            pid=os.getpid(),
            status=gateway.core.status.name,
            not_ready=not_ready,
            started=self._started.isoformat(timespec="seconds"),
            uptime_s=time.monotonic() - self._started_s,
            store=store,
            wires={name: _wire(i) for name, i in gateway.wires.items() if i.has_clients},
            clients=clients[: limits.MAX_STATUS_CLIENTS],
            clients_left_out=max(0, len(clients) - limits.MAX_STATUS_CLIENTS),
            slowest=slowest,
            cursors=[] if gateway.core.cursors is None else _cursors(gateway.core.cursors),
            remotes=[_remote(i) for i in gateway.remote_servers],
            modules=[] if core is None else [str(i["module"]) for i in core.modules],
            days_left={
                key: round((moment - now).total_seconds() / 86_400, 2)
                for key, moment in gateway.expiries.items()
            },
            is_reloaded=gateway.is_reloaded,
            errors=logs.last_errors(),
        )

    async def _store(self, backend: Backend) -> StoreStatus:
        core = self._gateway.config.event_core
        assert core is not None
        conf, stats, load = core.backend, backend.stats(), backend.query_load
        return StoreStatus(
            backend=type(conf).__struct_config__.tag,  # type: ignore[arg-type]
            path=str(conf.path) if isinstance(conf, RocksDbConfig) else None,
            history=backend.history_id,
            events=stats.events,
            event_types=stats.event_types,
            size_bytes=stats.size_bytes,
            free_bytes=stats.free_bytes,
            compaction_bytes=stats.compaction_bytes,
            since_commit_s=stats.since_commit_s,
            oldest=await _oldest(backend),
            pending_events=self._gateway.core.pending_events,
            queries_running=load.running,
            queries_waiting=load.waiting,
        )

    def _slowest(self) -> Steps[list[ConnectionStatus]]:
        found: list[tuple[float, int, int, ConnectionStatus]] = []
        for number, (wire, stream) in enumerate(self._connections()):
            if unread_bytes := stream.unread_bytes:
                behind_s = stream.behind_s
                status = ConnectionStatus(wire, stream.client, stream.peer, unread_bytes, behind_s)
                found.append((behind_s, unread_bytes, number, status))
            yield
        return [i[-1] for i in heapq.nlargest(limits.MAX_SLOWEST, found)]

    def _connections(self) -> Iterator[tuple[str, Stream[Any]]]:
        for name, wire in self._gateway.wires.items():
            for stream in wire.connections():
                yield name, stream

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

    async def _on_request(self, argument: Any) -> GatewayStatus:
        return await self.collect()


async def _oldest(backend: Backend) -> str | None:
    params = QueryTimeseriesParams(order=Order.ASCENDING, max_results=1)
    try:
        async with asyncio.timeout(limits.OLDEST_TIMEOUT_S):
            result = await backend.query(params)
    except (TimeoutError, EventerBridgeError):
        return None
    return result.events[0].timestamp.to_iso() if result.events else None


def _wire(wire: Wire) -> WireStatus:
    stats = wire.stats
    return WireStatus(
        connections=stats.connections,
        clients=stats.clients,
        events_registered=stats.events_registered,
        events_notified=stats.events_notified,
        declined=stats.declined,
        rejected=sum(stats.rejected.values()),
    )


def _cursors(cursors: Cursors) -> list[CursorStatus]:
    found = [
        CursorStatus(
            client=i.client,
            name=i.name,
            lag_events=i.lag_events,
            lag_s=i.lag_s,
            is_connected=i.holder is not None,
            n_parked=i.n_parked,
        )
        for i in cursors
    ]
    found.sort(key=lambda i: (-i.lag_s, i.client, i.name))
    return found[: core_limits.MAX_CURSORS]


def _remote(remote: RemoteServer) -> RemoteStatus:
    if not isinstance(remote, Replication):
        return RemoteStatus(remote.name, remote.is_connected, remote.refused_events)
    return RemoteStatus(
        remote.name,
        remote.is_connected,
        remote.refused_events,
        is_synced=remote.is_synced,
        lag_s=remote.lag_s,
        lag_events=remote.lag_events,
    )
