"""Active and standby: the engine works while the Monitor Server says so (package hat-monitor).

The Monitor Server knows the components of a group. By its algorithm BLESS_ONE it blesses one of
them at a time, the ready one with the lowest rank, and another one only after the previous one has
reported that it ended. The blessed one starts its engine, the others are STANDBY::

    connect ─▶ ready ─▶ blessed ─▶ others are STANDBY ─▶ engine.start()
       ▲         ▲         │                                  │
       │         └─────────┴── blessing withdrawn ◀───────────┤ engine.stop(), reported
       └────────────────────── connection lost ◀──────────────┘ engine.stop()

A server that could not register anything (its store cannot be written, its clock is wrong) is not
ready, so that another one is blessed; nor is one that could not be started, for longer each time.
Before it is ready, it catches up with what was registered meanwhile.

It passes the data of this server to all of its components, the same as hat-event's servers publish:
``hat.event.component`` finds the active server by it, and the servers of a group find each other.

Belongs to the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

import hat.monitor.component
from hat.drivers import net
from hat.monitor.component import Component
from typing_extensions import override

from eventer_bridge import chatter, errors, model
from eventer_bridge import limits as core_limits
from eventer_bridge.core.engine import Engine
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.connecting import connecting, keep_trying
from eventer_bridge.remote import group, limits
from eventer_bridge.remote.group import ServerGroup, server_data
from eventer_bridge.remote.replication import Replication
from eventer_bridge.resources import Resource, uncancellable

mlog = logging.getLogger(__name__)

_NOT_REACHABLE: Final = "monitor server is not reachable"
_LOST: Final = "connection to the monitor server is lost"
_OTHER_ACTIVE: Final = "another server of the group is active: waiting for it to stop"
_CATCHING_UP: Final = "it gets what the other servers of the group registered meanwhile"


class Member(NamedTuple):
    """This server, as the Monitor Server lists it: a component of a group, one of which is active.

    Eventer clients connect to ``address``, and must send ``token``, which the whole group has.
    """

    name: str
    group: str
    address: chatter.Address
    token: str | None

    @override
    def __repr__(self) -> str:
        return f"Member({self.name!r}, {self.group!r}, {self.address!r}, ***)"


class Monitor(Resource):
    """See the module. It connects to where the Monitor Server listens for components, and again.

    Closing it stops the engine, which it also starts, and then notifies the Monitor Server. The
    caller closes the engine afterwards. It closes by itself if the engine cannot be started for
    another reason than its store. Beside existing ``replications``, it replicates the other servers
    of the group. ``accepts_loss``: become active without events that others may have (``group``).
    """

    def __init__(
        self,
        engine: Engine,
        monitor: chatter.Address,
        member: Member,
        replications: Iterable[Replication] = (),
        *,
        accepts_loss: bool = False,
    ) -> None:
        self._engine = engine
        self._address = monitor
        self._member = member
        self._group = ServerGroup(engine, member.token, replications)
        self._accepts_loss = accepts_loss
        self._has_own_events = False
        self._failed_at_s = float("-inf")
        self._retry_s = 0.0
        self._activity: _Activity | None = None
        self._others_blessed = ""  # names of the other servers that are to be active
        self._standby_reason: str | None = None
        self._is_known = asyncio.Event()
        engine.waits_for = "the monitor server is not connected yet"
        self.async_group.spawn(self._run)

    @property
    def replications(self) -> list[Replication]:
        """Replications of the servers that the Monitor Server listed."""
        return self._group.replications

    async def _run(self) -> None:
        try:
            while True:
                await keep_trying(
                    self._be_component,
                    (OSError, errors.ConnectError),
                    mlog,
                    _NOT_REACHABLE,
                    {"address": str(self._address)},
                    on_failure=self._on_not_reachable,
                )
                self._engine.waits_for = f"{_LOST}: {self._address}"
                mlog.warning(_LOST, extra={"address": str(self._address)})
                await asyncio.sleep(net_limits.RECONNECT_MIN_S)
        finally:
            self.close()
            await uncancellable(self._group.async_close())

    def _on_not_reachable(self, reason: str) -> None:
        self._engine.waits_for = f"{_NOT_REACHABLE}: {reason}"

    async def _be_component(self) -> None:
        """Be a component of the Monitor Server until the connection is lost.

        Raises ``ConnectError`` or ``OSError`` if there is none, or it was closed without an answer.
        """
        self._is_known.clear()
        async with connecting(self._address, timeout_s=net_limits.CONNECT_TIMEOUT_S):
            component = await hat.monitor.component.connect(
                net.TcpAddress(self._address.host, self._address.port),
                self._member.name,
                self._member.group,
                self._create_activity,
                data=server_data(self._engine.server_id, self._member.address, self._member.token),
                state_cb=self._on_state,
                close_req_cb=self._on_close_request,
            )
        try:
            component.async_group.spawn(self._get_ready, component)
            component.async_group.spawn(self._watch_blessing, component)
            await component.wait_closing()
            if not self._is_known.is_set():
                raise errors.ConnectError(
                    f"{self._address}: closed without an answer: is it a monitor server?"
                )
        finally:
            # before the connection ends: no other may be blessed while this one is active
            await uncancellable(self._end_activity())
            await uncancellable(component.async_close())

    def _on_state(self, component: Component, state: hat.monitor.component.State) -> None:
        if state.info is not None:
            self._is_known.set()
        others = (i for i in state.components if i is not state.info)
        in_group = [i for i in others if i.group == self._member.group]
        self._group.update([i.data for i in in_group])
        blessed = [i.name for i in in_group if i.blessing_req.token is not None]
        self._others_blessed = model.cut(" and ".join(map(repr, blessed)))
        self._note_standby(component)

    def _note_standby(self, component: Component) -> None:
        """Tell why this server is STANDBY although it is ready: another one is active."""
        is_idle = self._activity is None or self._activity.is_closed
        if not (component.ready and is_idle):
            return
        reason = "the monitor server has not chosen a server of the group yet"
        if self._others_blessed:
            reason = f"the monitor server chose {self._others_blessed} to be active"
            if reason != self._standby_reason:
                mlog.info("this server does not become active", extra={"reason": reason})
        self._engine.waits_for = self._standby_reason = reason

    async def _get_ready(self, component: Component, wait_s: float = 0.0) -> None:
        """Let another active server go on, at least ``wait_s``, until this one has its events."""
        await self._is_known.wait()
        await self._let_others_go_on(wait_s)
        await self._had_fault()
        if self._has_own_events:
            await self._catch_up(limits.READY_CATCH_UP_S)
        else:
            await self._get_own_events()
        while await self._had_fault():  # meanwhile, nothing could be kept
            await self._catch_up(limits.READY_CATCH_UP_S)
        await component.set_ready(True)
        self._note_standby(component)

    async def _catch_up(self, timeout_s: float) -> None:
        self._engine.waits_for = _CATCHING_UP
        await self._group.catch_up(timeout_s)

    async def _watch_blessing(self, component: Component) -> None:
        """Connect again if a blessing that was withdrawn before it began is not given back.

        That happens when several Monitor Servers begin at the same time. The component keeps its
        token, and waits for the next one, which no other one gets meanwhile, either.
        """
        n_checks = 0
        while n_checks < limits.STALE_BLESSING_CHECKS:
            await asyncio.sleep(limits.BLESSING_PERIOD_S)
            info = component.state.info
            is_idle = self._activity is None or self._activity.is_closed
            is_withdrawn = info is not None and info.blessing_req.token is None
            is_kept = info is not None and info.blessing_res.token is not None
            n_checks = n_checks + 1 if is_idle and is_withdrawn and is_kept else 0
        mlog.warning("a blessing that was withdrawn was not given back: connecting again")
        component.close()

    async def _let_others_go_on(self, wait_s: float) -> None:
        """Wait, but not for long if there are no others."""
        until_s = asyncio.get_running_loop().time() + wait_s
        await asyncio.sleep(min(wait_s, core_limits.STORE_RETRY_PERIOD_S))
        while self._group.listed and asyncio.get_running_loop().time() < until_s:
            await self._group.wait_changed(until_s)

    async def _had_fault(self) -> bool:
        """Wait while something keeps the engine from registering; whether anything did."""
        engine, had_fault = self._engine, False
        while (fault := await engine.find_fault()) is not None:
            if not had_fault:
                mlog.warning("this server is not ready", extra={"reason": fault})
            engine.waits_for, had_fault = fault, True
            await asyncio.sleep(core_limits.STORE_RETRY_PERIOD_S)
        engine.waits_for = None
        return had_fault

    async def _get_own_events(self) -> None:
        """Have everything here that this server knew before, if it ran before."""
        engine = self._engine
        loop = asyncio.get_running_loop()
        timeout_s = limits.READY_CATCH_UP_S
        until_s = loop.time() + timeout_s
        extra = {"address": str(self._address)}
        regain = functools.partial(
            group.regain, engine, self._group, timeout_s, accepts_loss=self._accepts_loss
        )
        answered = await keep_trying(
            regain, errors.EventerBridgeError, mlog, "own events are not here", extra
        )
        if engine.is_whole or self._accepts_loss:
            await self._catch_up(max(0.0, until_s - loop.time()))
        else:  # queries would find little of what they registered
            engine.waits_for = f"it gets the events of servers {sorted(answered)} first"
            await self._group.catch_up_with(answered)
        await engine.note_whole()
        self._has_own_events = True

    def _create_activity(self, component: Component) -> "_Activity":
        self._standby_reason = None  # the next one is logged again
        on_failed = functools.partial(self._on_failed, component)
        self._activity = _Activity(self._engine, self._group, on_failed)
        if not self.is_open:
            self._activity.close()
        return self._activity

    async def _on_failed(self, component: Component, error: errors.EventerBridgeError) -> None:
        if not isinstance(
            error, (errors.NotOperationalError, errors.StorageError, errors.OutcomeUnknownError)
        ):
            self.close()
            return
        self._engine.waits_for = f"it could not be started: {error}"
        component.async_group.spawn(self._get_ready, component, self._next_retry_s())
        await component.set_ready(False)

    def _next_retry_s(self) -> float:
        """How long to wait after a failure: twice as long as after the one before."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._failed_at_s > 2 * limits.MAX_START_RETRY_S:  # it was active, or able to be
            self._retry_s = core_limits.STORE_RETRY_PERIOD_S / 2
        self._failed_at_s = now_s
        self._retry_s = min(2 * self._retry_s, limits.MAX_START_RETRY_S)
        return self._retry_s

    async def _on_close_request(self, component: Component) -> None:
        # the Monitor Server is ending, and waits a while for us
        await self._end_activity()

    async def _end_activity(self) -> None:
        if self._activity is not None:
            await self._activity.async_close()


class _Activity(Resource):
    """The time from a blessing to its end: the engine is started, and stopped when this is closed.

    ``on_failed`` is called with the reason if it cannot be started.
    """

    def __init__(
        self,
        engine: Engine,
        group: ServerGroup,
        on_failed: Callable[[errors.EventerBridgeError], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._group = group
        self._on_failed = on_failed
        self.async_group.spawn(self._run)

    async def _run(self) -> None:
        try:
            if self._group.is_other_active:
                self._engine.waits_for = _OTHER_ACTIVE
                mlog.warning(_OTHER_ACTIVE)
            await self._group.wait_others_standby()
            # its last events, too
            self._engine.waits_for = _CATCHING_UP
            await self._group.catch_up(limits.TAKE_OVER_CATCH_UP_S)
            if (fault := await self._engine.find_fault()) is not None:
                raise errors.NotOperationalError(fault)
            self._engine.waits_for = None
            # not cancelled half-way: stop() ends what start() began, in the store as well
            await uncancellable(self._engine.start())
            await self._engine.wait_closing()
        except errors.EventerBridgeError as e:
            mlog.error("engine cannot be started", extra={"reason": str(e)})
            await self._on_failed(e)
        finally:
            self.close()
            await uncancellable(self._engine.stop())
