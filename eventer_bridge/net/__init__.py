"""Connections of all wires: accepting, counting and bounding them.

Limits count from ``accept``, before TLS and names. A connection takes a :class:`Slot` of the
process' :class:`Admission`: one for new connections until ``init``, then one for known connections.
Silent peers therefore never keep out authenticated clients.
"""

from eventer_bridge.net.accepting import Acceptor, listen
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.quota import Bounds, Quota

__all__ = ["Acceptor", "Admission", "Bounds", "Quota", "Slot", "listen"]
