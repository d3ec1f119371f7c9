"""Counters of the RSB bridge."""

from eventer_bridge.net.stats import ServerStats


class RsbStats(ServerStats):
    """Counters of any server, with notifications of the bus as frames, and those of RSB.

    Attributes:
        relayed: notifications forwarded between participants, per receiver.
        unsent: events not sent to the bus, by reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.relayed = 0
        self.unsent: dict[str, int] = {}

    def count_unsent(self, reason: str) -> None:
        """Count an event that was not sent."""
        self.unsent[reason] = self.unsent.get(reason, 0) + 1
