"""Counts of what the RSB bridge did."""

from eventer_bridge.net.stats import ServerStats


class RsbStats(ServerStats):
    """As of any server, where a notification of the bus is a frame; and what only RSB has.

    Attributes:
        relayed: notifications sent on from one participant to another, per receiver.
        unsent: events for the bus that were not sent, by reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.relayed = 0
        self.unsent: dict[str, int] = {}

    def count_unsent(self, reason: str) -> None:
        """An event was not sent."""
        self.unsent[reason] = self.unsent.get(reason, 0) + 1
