"""Events about connections (000, "Communication").

For each client that connects or disconnects, one session with

* ``event/communication/connected`` or ``…/disconnected``, without payload (000);
* ``event/<server id>/eventer/<client name>`` with the JSON payload ``"CONNECTED"`` or
  ``"DISCONNECTED"``, to which today's Hat components subscribe. It is omitted if the name cannot
  be part of an event type (``*``, or too long), or exceeds the number of names.

When the server ends, the end of its connections is registered before its own, which is the last
registration. A killed server registers neither.

Belongs to the event loop's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.errors import EventerBridgeError, InvalidEventError, LimitError
from eventer_bridge.model import JsonPayload, RegisterEvent, Source, cut

mlog = logging.getLogger(__name__)

RegisterCb: TypeAlias = Callable[[Source, Sequence[RegisterEvent], TypeQuota | None], object]
"""Registers events of a source as one session; raises branches of ``EventerBridgeError``."""


class Announcer:
    """See the module."""

    def __init__(self, server_id: int, register: RegisterCb) -> None:
        self._server_id = server_id
        self._register = register
        self._quota = TypeQuota("announced clients", limits.MAX_ANNOUNCED_NAMES)
        self._connected: dict[Source, str] = {}
        self._waiting: deque[tuple[Source, str, bool]] = deque()
        self._n_left = limits.TURN_ANNOUNCEMENTS
        self._is_ended = False

    def announce(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        """Queue the events of a connection for registration; see ``EventCore.announce``."""
        if self._is_ended:
            return
        if is_connected:
            self._connected[source] = client_name
        else:
            self._connected.pop(source, None)
        self._waiting.append((source, client_name, is_connected))
        self._register_some()

    async def settle(self) -> None:
        """Wait until all announcements are registered."""
        while self._waiting:
            self._next_turn()
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Register the end of every connection, and nothing afterwards."""
        while self._connected:
            source, client_name = self._connected.popitem()
            self.announce(source, client_name, is_connected=False)
        await self.settle()
        self._is_ended = True

    def _register_some(self) -> None:
        if self._waiting and self._n_left == limits.TURN_ANNOUNCEMENTS:
            asyncio.get_running_loop().call_soon(self._next_turn)
        while self._waiting and self._n_left:
            source, client_name, is_connected = self._waiting.popleft()
            self._n_left -= 1
            self._register_event(source, client_name, is_connected=is_connected)

    def _next_turn(self) -> None:
        self._n_left = limits.TURN_ANNOUNCEMENTS
        self._register_some()

    def _register_event(self, source: Source, client_name: str, *, is_connected: bool) -> None:
        state = "CONNECTED" if is_connected else "DISCONNECTED"
        named_type = ("event", str(self._server_id), "eventer", client_name)
        nameless = RegisterEvent(("event", "communication", state.lower()), None, None)
        named = RegisterEvent(named_type, None, JsonPayload.of(state))
        try:
            try:
                self._register(source, (nameless, named), self._quota)
            except (InvalidEventError, LimitError) as e:
                _log("name of a connection not announced", client_name, e)
                self._register(source, (nameless,), None)
        except EventerBridgeError as e:
            _log("connection not announced", client_name, e)


def _log(message: str, client_name: str, error: EventerBridgeError) -> None:
    mlog.debug(message, extra={"client": cut(client_name), "reason": cut(str(error))})
