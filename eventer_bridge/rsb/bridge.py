"""The bridge between an RSB bus and the event core.

RSB events on one of ``scopes_in`` are registered. Events that arrive together become one
session or, if that is refused, one session each, so that a bad event costs the others nothing::

    bus ─▶ connection ─▶ relayed (server) ─▶ payloads ─▶ core.register

Events of type ``prefix`` + segments of a scope in ``scopes_out`` are sent to the bus once
registered (durable or not) while the server is OPERATIONAL: of two servers that replicate each
other, the standby is silent.

RSB events are never sent back to the bus they came from: neither those registered here, nor
those that arrive another way (from a replicated server) and whose id was seen on this bus.

RSB has no answers: a refused event is counted and logged. While the core is full, connections
that bring events are not read from. Events that cannot be sent are dropped: RSB is a live bus.

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

from eventer_bridge import errors, model
from eventer_bridge import limits as core_limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore, Observer
from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.net.admission import Admission
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause
from eventer_bridge.packed import Batch
from eventer_bridge.resources import Resource, call_on_cancel, call_on_done, closed_on_error
from eventer_bridge.rsb import codec, limits, payloads, transport
from eventer_bridge.rsb.event import Informer, RsbEvent, RsbEventId, Scope
from eventer_bridge.rsb.introspection import RSB_SCOPE, Introspection, Participant
from eventer_bridge.slices import Steps, at_once, parts

mlog = logging.getLogger(__name__)


# refusals that a single event may cause
_OF_ONE_EVENT: Final = (errors.InvalidEventError, errors.LimitError, errors.ModuleError)

TimesCb: TypeAlias = Callable[[Scope, RsbEvent], None]
"""Called with each delivered event, which has as many of its four times as are known, and the scope
of ``scopes_in`` for which it was registered."""


class BridgeSettings(NamedTuple):
    """Settings of the bridge, to the bus at a TCP address, of which this process may be the server.

    Scopes to register, and to send; a prefix of event types; the name of this process in RSB's
    tools; and the quota of all participants together (``type_budget``).
    """

    host: str
    port: int
    is_server: bool
    scopes_in: tuple[Scope, ...]
    scopes_out: tuple[Scope, ...]
    prefix: model.EventType
    name: str = "mariner"
    max_event_types: int = core_limits.MAX_CLIENT_EVENT_TYPES


async def create(
    core: EventCore,
    settings: BridgeSettings,
    *,
    admission: Admission | None = None,
    observe_times: TimesCb = lambda listened, event: None,
) -> "Bridge":
    """Create a bridge, which runs until closed; a client reconnects in the background.

    The caller closes the core, after the bridge. ``admission``: the process' slots, for a server;
    None: its own. ``OSError``: listening on the address failed.
    """
    bridge = Bridge(core, settings, observe_times)
    async with closed_on_error(bridge):
        await bridge._start(admission)
    return bridge


class Bridge(Observer, Resource):
    """See the module. Created by :func:`create`. :attr:`max_event_types` may be changed."""

    def __init__(self, core: EventCore, settings: BridgeSettings, observe_times: TimesCb) -> None:
        self.stats = transport.RsbStats()
        self._core = core
        self._settings = settings
        self._observe_times = observe_times
        self._source = core.create_source(model.SourceType.CONNECTION)
        self.max_event_types = settings.max_event_types
        self._informers = [Informer(scope) for scope in settings.scopes_out]
        self._routes: BoundedCache[model.EventType, _Route | None] = BoundedCache()
        self._seen: dict[RsbEventId, None] = {}
        participants = [Participant("informer", i.sender, i.scope) for i in self._informers]
        participants += [Participant("listener", uuid4(), scope) for scope in settings.scopes_in]
        self._introspection = Introspection(settings.name, tuple(participants), self._send)
        self._bus: transport.Bus | None = None
        core.add_observer(self, persisted=False)
        self.async_group.spawn(call_on_cancel, self._stop)

    @property
    def port(self) -> int | None:
        """TCP port in use; None for a client."""
        return self._bus.port if isinstance(self._bus, transport.BusServer) else None

    @property
    def connections(self) -> frozenset[transport.RsbConnection]:
        """Connections that lead to the other participants."""
        return frozenset() if self._bus is None else self._bus.connections

    @property
    def is_connected(self) -> bool:
        """Whether there are other participants."""
        return self._bus is not None and self._bus.is_connected

    # --- core.Observer --------------------------------------------------------------------

    def on_session(self, session: Batch, persisted: bool) -> None:
        """Send its events to the bus, when it is registered (``core.Observer``)."""
        at_once(self.on_large_session(session, persisted))

    def on_large_session(self, session: Batch, persisted: bool) -> Steps[None]:
        """As :meth:`on_session` (``core.Observer``)."""
        if not self._informers or self._core.status is not model.Status.OPERATIONAL:
            return
        # of RSB events, only those added by modules
        came = session.requested if session.source == self._source else 0
        for part in parts(len(session.events)):
            for event in session.events[max(part.start, came) : part.stop]:
                if route := self._route_of(event.type):
                    self._send_event(event, route)
            yield

    def on_missed(self, session: Batch | None, persisted: bool, error: Exception) -> None:
        """Close the bus' connections, which may have missed it (``core.Observer``).

        Participants cannot get it any more; that they missed something, they see.
        """
        try:
            is_sent = session is None or any(map(self._route_of, session.types))
        except Exception:  # what failed before may fail again
            is_sent = True
        for connection in self.connections if is_sent and self._informers else ():
            detail = str(error) or repr(error)
            connection.close(CloseReason.INTERNAL_ERROR, detail=detail, level=logging.ERROR)

    # --- from the bus ---------------------------------------------------------------------

    def _on_received(
        self, connection: transport.RsbConnection, batch: Sequence[transport.Received]
    ) -> None:
        prefix = self._settings.prefix
        events = [payloads.to_register(event, prefix) for event in self._delivered(batch)]
        if not events:
            return
        core = self._core
        if core.is_full and connection.is_accepted:
            self._wait_for_room(connection, events)
            return
        self._register(connection, events, connection.take_bytes())
        if core.is_full and not connection.is_accepted:  # the bus, which there is one of
            connection.pause_reading(Pause.CORE_FULL)
            go_on = functools.partial(connection.resume_reading, Pause.CORE_FULL)
            core.wait_for_room(connection.owner, go_on)

    def _wait_for_room(
        self, connection: transport.RsbConnection, events: Sequence[model.RegisterEvent]
    ) -> None:
        """Register when the core is not full; nothing is read from the connection meanwhile."""
        core, owner, n_bytes = self._core, connection.owner, connection.take_bytes()

        def go_on() -> None:
            connection.forget = None
            connection.hold(-n_bytes)
            resume = functools.partial(connection.resume_reading, Pause.CORE_FULL)
            connection.slot.turns.wait(resume, owner)
            self._register(connection, events, n_bytes)

        def forget() -> None:
            core.wait_no_longer(owner, go_on)
            error = errors.ClosedError("the connection was closed while the core was full")
            self._on_refused(connection, events, error)

        connection.forget = forget
        connection.pause_reading(Pause.CORE_FULL)
        core.wait_for_room(owner, go_on)
        connection.hold(n_bytes)

    def _delivered(self, batch: Sequence[transport.Received]) -> Iterator[RsbEvent]:
        """The events to register."""
        for received in batch:
            event = received.event
            if RSB_SCOPE.includes(event.scope):
                self._introspection.on_event(event)
                continue
            scopes = self._settings.scopes_in
            listened = next((i for i in scopes if i.includes(event.scope)), None)
            if listened is not None:
                if self._informers:
                    self._remember(event.event_id)
                event = event.delivered(received.time_us)
                self._observe_times(listened, event)
                yield event

    def _register(
        self,
        connection: transport.RsbConnection,
        events: Sequence[model.RegisterEvent],
        n_bytes: int,
    ) -> None:
        """Register events that came as so many bytes, which are held until they are stored."""
        try:
            quota = TypeQuota("RSB", self.max_event_types)
            session = self._core.register(self._source, events, quota)
        except errors.EventerBridgeError as e:
            self._on_refused(connection, events, e)
        else:
            connection.hold(n_bytes)
            session.committed.add_done_callback(
                functools.partial(self._on_committed, connection, events, n_bytes)
            )

    def _on_committed(
        self,
        connection: transport.RsbConnection,
        events: Sequence[model.RegisterEvent],
        n_bytes: int,
        committed: asyncio.Future[None],
    ) -> None:
        connection.hold(-n_bytes)
        error = committed.exception()
        if error is None:
            self.stats.events_registered += len(events)
        elif isinstance(error, errors.OutcomeUnknownError):
            self.stats.outcome_unknown += 1
        else:
            self._on_refused(connection, events, error)

    def _on_refused(
        self,
        connection: transport.RsbConnection,
        events: Sequence[model.RegisterEvent],
        error: BaseException,
    ) -> None:
        if len(events) > 1 and isinstance(error, _OF_ONE_EVENT):
            for event in events:  # the others must not suffer
                self._register(connection, [event], 0)
            return
        kind = errors.refusal_of(error)
        count = self.stats.rejected[kind] = self.stats.rejected[kind] + len(events)
        # logged at a falling rate: it may be every event
        level = logging.WARNING if count.bit_count() == 1 else logging.DEBUG
        event_type = model.quoted_type(events[0].type)
        extra = {"type": event_type, "reason": model.cut(str(error)), "count": count}
        mlog.log(level, "RSB event not registered", extra=extra)

    # --- to the bus -----------------------------------------------------------------------

    def _route_of(self, event_type: model.EventType) -> "_Route | None":
        if event_type in self._routes.known:
            return self._routes.known[event_type]
        scope = payloads.scope_of(event_type, self._settings.prefix)
        route = None
        if scope is not None and not RSB_SCOPE.includes(scope):
            informers = (i for i in self._informers if i.scope.includes(scope))
            route = next((_Route(scope, informer) for informer in informers), None)
        # its scope has all or most of the segments
        self._routes.put(event_type, route, 2 * type_bytes(event_type))
        return route

    def _send_event(self, event: model.Event, route: "_Route") -> None:
        if not self.is_connected:
            self.stats.count_unsent("nobody there")
            return
        try:
            rsb_event = payloads.from_event(event, *route)
            if rsb_event.event_id in self._seen:
                return
            self._remember(rsb_event.event_id)
            self._send(rsb_event)
        except errors.InvalidEventError as e:
            self.stats.count_unsent("invalid")
            extra = {"scope": str(route.scope), "reason": str(e)[: core_limits.MAX_LOG_CHARACTERS]}
            mlog.warning("event not sent by RSB", extra=extra)
        else:
            self.stats.events_notified += 1

    def _send(self, event: RsbEvent) -> None:
        if self._bus is not None:
            self._bus.send(codec.encode(event.sent()))

    def _remember(self, event_id: RsbEventId) -> None:
        seen = self._seen
        seen[event_id] = None
        if len(seen) > limits.SEEN_EVENTS:
            del seen[next(iter(seen))]

    # --- life cycle -----------------------------------------------------------------------

    async def _start(self, admission: Admission | None) -> None:
        settings = self._settings
        if settings.is_server:
            self._bus = await transport.listen(
                settings.host, settings.port, self._on_received, self.stats, admission=admission
            )
        else:
            self._bus = transport.BusClient(
                settings.host,
                settings.port,
                self._on_received,
                self.stats,
                self._introspection.say_hello,
            )
        # a bus that closes by itself closes the bridge
        self.async_group.spawn(call_on_done, self._bus.wait_closing(), self.close)

    async def _stop(self) -> None:
        self._core.remove_observer(self)
        if self._bus is not None:
            self._introspection.say_bye()
            await self._bus.async_close()


class _Route(NamedTuple):
    """Scope and sender for events of a type."""

    scope: Scope
    informer: Informer
