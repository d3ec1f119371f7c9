"""Events that tell of connections (000, "Communication").

For each client that connects or disconnects, one session with

* ``event/communication/connected`` or ``…/disconnected``, without payload (000);
* ``event/<server id>/eventer/<client name>`` with the JSON payload ``"CONNECTED"`` or
  ``"DISCONNECTED"``, which is what today's Hat components subscribe to.
"""

import logging

from eventer_bridge.engine import Engine
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import JsonPayload, RegisterEvent, Source

mlog = logging.getLogger(__name__)


def register_connection(
    engine: Engine, source: Source, client_name: str, *, is_connected: bool
) -> None:
    """Register that a client connected, or disconnected.

    While the server is not OPERATIONAL, or where the name cannot be part of an event type,
    there is nothing but a line in the log. On the event loop's thread.

    Args:
        engine: where to.
        source: the connection.
        client_name: as the client gave it.
        is_connected: whether it connected or disconnected.
    """
    state = "CONNECTED" if is_connected else "DISCONNECTED"
    named_type = ("event", str(engine.server_id), "eventer", client_name)
    try:
        engine.register(
            source,
            [
                RegisterEvent(("event", "communication", state.lower()), None, None),
                RegisterEvent(named_type, None, JsonPayload.of(state)),
            ],
        )
    except EventerBridgeError as e:
        mlog.debug(
            "connection event is not registered", extra={"client": client_name, "reason": str(e)}
        )
