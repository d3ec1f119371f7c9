"""Connections of all wires: accepting, counting and bounding them.

Limits count from ``accept``, before TLS and names. A connection takes a :class:`Slot` of the
process' :class:`Admission`: a slot for new connections until ``init``, then one for known
connections. Silent peers therefore never keep out authenticated clients.

* :mod:`~eventer_bridge.net.accepting`: :func:`listen`, which accepts for all wires.
* :mod:`~eventer_bridge.net.admission`: which connection gets a slot, and which one loses it.
* :mod:`~eventer_bridge.net.backoff`: the delay after a wrong name or token.
* :mod:`~eventer_bridge.net.descriptors`: the connections that the limit of open files allows.
"""

from eventer_bridge.net.accepting import Acceptor, listen
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.quota import Bounds, Quota

__all__ = ["Acceptor", "Admission", "Bounds", "Quota", "Slot", "listen"]
