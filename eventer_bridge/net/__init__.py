"""What every listener does with connections, once: accept them, count them, bound them.

Limits count from ``accept``, before TLS and names. A connection takes a :class:`Place` of the
process' :class:`Admission`, first among those that are new (the handshake, no name yet), and
after ``init`` among those that are known; so nobody who stays silent keeps out those who can
say who they are.

* :mod:`~eventer_bridge.net.accepting`: :func:`listen`, which accepts for all wires.
* :mod:`~eventer_bridge.net.admission`: who gets a place, and whose place is taken away.
* :mod:`~eventer_bridge.net.backoff`: what a wrong name or token costs.
* :mod:`~eventer_bridge.net.buffers`: what connections hold for their peers, all together.
* :mod:`~eventer_bridge.net.descriptors`: how many connections the limit of open files allows.
"""

from eventer_bridge.net.accepting import Acceptor, listen
from eventer_bridge.net.admission import Admission, Place
from eventer_bridge.net.quota import Bounds, Quota

__all__ = ["Acceptor", "Admission", "Bounds", "Place", "Quota", "listen"]
