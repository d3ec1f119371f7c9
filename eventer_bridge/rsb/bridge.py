"""The bridge between an RSB bus and the event core.

What comes by RSB on one of ``scopes_in`` is registered, what comes together as one session, or
else event by event, so that one that is refused costs the others nothing::

    bus ─▶ connection ─▶ relayed (server) ─▶ payloads ─▶ core.register

Events of type ``prefix`` + segments of a scope in ``scopes_out`` are sent to the bus, when
they are registered (not: when they are durable), while the server is OPERATIONAL: of two that
keep each other's events, the one that stands by is silent.

An event that came by RSB is not sent back to where it came from: neither what was registered
here, nor what comes by another way (a replicated server) and whose id was seen on this bus.

RSB has no answers, so nobody is told of a refused event: it is counted, and logged. While the
core is full, the connection that brings events is not read from. Nobody keeps what could not
be sent: RSB is a live bus.

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

from hat import aio

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.remembered import Remembered, type_bytes
from eventer_bridge.core.session import Session
from eventer_bridge.errors import (
    EventerBridgeError,
    InvalidEventError,
    LimitError,
    ModuleError,
    OutcomeUnknownError,
    refusal_of,
)
from eventer_bridge.excerpts import cut, quoted_type
from eventer_bridge.model import Event, EventType, RegisterEvent, SourceType, Status
from eventer_bridge.net import Admission
from eventer_bridge.net.stream import Pause
from eventer_bridge.rsb import codec, payloads, transport
from eventer_bridge.rsb.connection import Received, RsbConnection
from eventer_bridge.rsb.event import Informer, RsbEvent, RsbEventId, Scope
from eventer_bridge.rsb.introspection import RSB_SCOPE, Introspection, Participant
from eventer_bridge.rsb.stats import RsbStats
from eventer_bridge.rsb.transport import Bus, BusClient, BusServer
from eventer_bridge.slices import Steps, parts

mlog = logging.getLogger(__name__)


# refusals for which one event of several may be the reason
_OF_ONE_EVENT: Final = (InvalidEventError, LimitError, ModuleError)

TimesCb: TypeAlias = Callable[[RsbEvent], None]
"""Told of each event that was delivered, whose four times are known as far as they can be."""


class BridgeSettings(NamedTuple):
    """What the bridge does.

    Attributes:
        host: where the bus' server listens: this one, or the one to connect to.
        port: its TCP port.
        is_server: whether the bus' server is this one.
        scopes_in: what is registered.
        scopes_out: what is sent.
        prefix: what types of events begin with.
        name: what RSB's tools call this process.
        max_event_types: quota of all participants together (``type_budget``).
    """

    host: str
    port: int
    is_server: bool
    scopes_in: tuple[Scope, ...]
    scopes_out: tuple[Scope, ...]
    prefix: EventType
    name: str = "mariner"
    max_event_types: int = limits.MAX_CLIENT_EVENT_TYPES


async def create(
    core: EventCore,
    settings: BridgeSettings,
    *,
    admission: Admission | None = None,
    observe_times: TimesCb = lambda event: None,
) -> "Bridge":
    """Create a bridge, which goes on until it is closed.

    Args:
        core: stays the caller's to close, after the bridge.
        settings: see there. As a client, it connects (again) in the background.
        admission: of the process, for the connections of a server; None: one of its own.
        observe_times: see :data:`TimesCb`.

    Raises:
        OSError: the address cannot be listened on.
    """
    bridge = Bridge(core, settings, observe_times)
    try:
        await bridge._start(admission)
    except BaseException:
        await aio.uncancellable(bridge.async_close())
        raise
    return bridge


class Bridge(aio.Resource):
    """See the module. Made by :func:`create`.

    Attributes:
        stats: counts of what was done so far.
    """

    def __init__(self, core: EventCore, settings: BridgeSettings, observe_times: TimesCb) -> None:
        self.stats = RsbStats()
        self._core = core
        self._settings = settings
        self._observe_times = observe_times
        self._source = core.create_source(SourceType.CONNECTION)
        self._quota = TypeQuota("RSB", settings.max_event_types)
        self._informers = [Informer(scope) for scope in settings.scopes_out]
        self._routes: Remembered[EventType, _Route | None] = Remembered()
        self._seen: dict[RsbEventId, None] = {}
        participants = [Participant("informer", i.sender, i.scope) for i in self._informers]
        participants += [Participant("listener", uuid4(), scope) for scope in settings.scopes_in]
        self._introspection = Introspection(settings.name, tuple(participants), self._send)
        self._bus: Bus | None = None
        self._async_group = aio.Group()
        core.add_observer(self)
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the bridge's tasks."""
        return self._async_group

    @property
    def port(self) -> int | None:
        """TCP port that is listened on; None where we connect."""
        return self._bus.port if isinstance(self._bus, BusServer) else None

    @property
    def is_connected(self) -> bool:
        """Whether there is anybody else on the bus."""
        return self._bus is not None and self._bus.is_connected

    # --- core.Observer --------------------------------------------------------------------

    def on_session(self, session: Session, persisted: bool) -> None:
        """Send its events to the bus (``core.Observer``)."""
        if persisted or not self._informers or self._core.status is not Status.OPERATIONAL:
            return
        # of what came by RSB, what modules added
        came = session.requested if session.source == self._source else 0
        for event in session.events[came:]:
            if route := self._route_of(event.type):
                self._send_event(event, route)

    def on_large_session(self, session: Session, persisted: bool) -> Steps[None]:
        """As :meth:`on_session` (``core.PatientObserver``)."""
        if persisted or not self._informers or self._core.status is not Status.OPERATIONAL:
            return
        came = session.requested if session.source == self._source else 0
        for part in parts(len(session.events)):
            for event in session.events[max(part.start, came) : part.stop]:
                if route := self._route_of(event.type):
                    self._send_event(event, route)
            yield

    def on_status(self, status: Status) -> None:
        """Nothing: RSB does not know it (``core.Observer``)."""

    # --- from the bus ---------------------------------------------------------------------

    def _on_received(self, connection: RsbConnection, batch: Sequence[Received]) -> None:
        prefix = self._settings.prefix
        events = [payloads.to_register(event, prefix) for event in self._delivered(batch)]
        if not events:
            return
        self._register(events)
        core = self._core
        if core.is_full:
            connection.pause_reading(Pause.CORE_FULL)
            core.when_drained(lambda: connection.resume_reading(Pause.CORE_FULL))

    def _delivered(self, batch: Sequence[Received]) -> Iterator[RsbEvent]:
        """Those events that are to be registered."""
        for received in batch:
            event = received.event
            if RSB_SCOPE.includes(event.scope):
                self._introspection.on_event(event)
            elif any(scope.includes(event.scope) for scope in self._settings.scopes_in):
                if self._informers:
                    self._remember(event.event_id)
                event = event.delivered(received.time_us)
                self._observe_times(event)
                yield event

    def _register(self, events: Sequence[RegisterEvent]) -> None:
        try:
            session = self._core.register(self._source, events, self._quota)
        except EventerBridgeError as e:
            self._on_refused(events, e)
        else:
            session.committed.add_done_callback(functools.partial(self._on_committed, events))

    def _on_committed(
        self, events: Sequence[RegisterEvent], committed: asyncio.Future[None]
    ) -> None:
        error = committed.exception()
        if error is None:
            self.stats.events_registered += len(events)
        elif isinstance(error, OutcomeUnknownError):
            self.stats.outcome_unknown += 1
        else:
            self._on_refused(events, error)

    def _on_refused(self, events: Sequence[RegisterEvent], error: BaseException) -> None:
        if len(events) > 1 and isinstance(error, _OF_ONE_EVENT):
            for event in events:  # the others are not to suffer
                self._register([event])
            return
        kind = refusal_of(error)
        count = self.stats.rejected[kind] = self.stats.rejected[kind] + len(events)
        # the first time, and then ever more seldom: it may be every event
        level = logging.WARNING if count.bit_count() == 1 else logging.DEBUG
        event_type = quoted_type(events[0].type)
        extra = {"type": event_type, "reason": cut(str(error)), "count": count}
        mlog.log(level, "RSB event is not registered", extra=extra)

    # --- to the bus -----------------------------------------------------------------------

    def _route_of(self, event_type: EventType) -> "_Route | None":
        if event_type in self._routes.known:
            return self._routes.known[event_type]
        scope = payloads.scope_of(event_type, self._settings.prefix)
        route = None
        if scope is not None and not RSB_SCOPE.includes(scope):
            informers = (i for i in self._informers if i.scope.includes(scope))
            route = next((_Route(scope, informer) for informer in informers), None)
        # its scope has the same segments, or most of them
        self._routes.remember(event_type, route, 2 * type_bytes(event_type))
        return route

    def _send_event(self, event: Event, route: "_Route") -> None:
        if not self.is_connected:
            self.stats.count_unsent("nobody there")
            return
        try:
            rsb_event = payloads.from_event(event, *route)
            if rsb_event.event_id in self._seen:
                return
            self._remember(rsb_event.event_id)
            self._send(rsb_event)
        except InvalidEventError as e:
            self.stats.count_unsent("invalid")
            extra = {"scope": str(route.scope), "reason": str(e)[: limits.MAX_LOG_CHARACTERS]}
            mlog.warning("event is not sent by RSB", extra=extra)
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
            self._bus = BusClient(
                settings.host,
                settings.port,
                self._on_received,
                self.stats,
                self._introspection.say_hello,
            )
        # a bus that ends by itself takes the bridge with it
        self._async_group.spawn(aio.call_on_done, self._bus.wait_closing(), self.close)

    async def _stop(self) -> None:
        self._core.remove_observer(self)
        if self._bus is not None:
            self._introspection.say_bye()
            await self._bus.async_close()


class _Route(NamedTuple):
    """Where events of a type are sent to, and by whom."""

    scope: Scope
    informer: Informer
