"""Every bound of the RSB bus."""

from typing import Final

MAX_NOTIFICATION_BYTES: Final = 16 << 20
"""Size of a notification: an image of a camera, not a film."""

MAX_NOTIFICATION_ITEMS: Final = 1_024
"""Causes, user times or user infos of one event. Each is an object in memory, and a notification
could have a million."""

MAX_RSB_CONNECTIONS: Final = 1_024
"""Participants' connections to the bus; every event is relayed to all of them."""

RSB_SHARE: Final = 4
"""Divisor for RSB's share of the process' known connections if the limit of open files allows fewer
than usual: a quarter. RSB has no names, so strangers count as known."""

MAX_RSB_CONNECTIONS_PER_ADDRESS: Final = 512
"""The same per address, so that none can take the whole bus."""

RSB_TURN_EVENTS: Final = 64
"""Events of one connection in a turn, about 1.5 ms."""

RSB_TURN_FRAMES: Final = 1_024
"""Maximum frames that these cause for other participants, at 1.5 us each; answers to requests add
as many again."""

RSB_TURN_BYTES: Final = 512 << 10
"""Bytes of these events that end the turn: registering 1 MB takes 30 ms."""

RSB_TURN_RELAYED_BYTES: Final = 8 << 20
"""The same for bytes relayed to others, at about 0.3 ms per MB."""

SEEN_EVENTS: Final = 65_536
"""Events of the bus whose ids are kept, so that one that returns another way (from a replicated
server) is not sent there again: 3 s at 20,000 events/s, about 10 MB."""
