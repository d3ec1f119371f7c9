"""Events that tell of connections (000, "Communication").

For each client that connects or disconnects, one session with

* ``event/communication/connected`` or ``…/disconnected``, without payload (000);
* ``event/<server id>/eventer/<client name>`` with the JSON payload ``"CONNECTED"`` or
  ``"DISCONNECTED"``, which is what today's Hat components subscribe to.
"""

from eventer_bridge.model import JsonPayload, RegisterEvent


def announcement(
    server_id: int, client_name: str, *, is_connected: bool
) -> tuple[RegisterEvent, RegisterEvent]:
    """The events of a connection.

    Args:
        server_id: of this server.
        client_name: as the client gave it.
        is_connected: whether it connected or disconnected.
    """
    state = "CONNECTED" if is_connected else "DISCONNECTED"
    named_type = ("event", str(server_id), "eventer", client_name)
    return (
        RegisterEvent(("event", "communication", state.lower()), None, None),
        RegisterEvent(named_type, None, JsonPayload.of(state)),
    )
