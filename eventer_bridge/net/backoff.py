"""What a wrong name or token costs: the answer comes the later, the more there were.

Each address has a few mistakes free; after them, its answers keep a distance in time, however
many connections it asks on. Whoever is right is answered at once, also from that address.
"""

from collections import OrderedDict

from eventer_bridge import limits


class LoginBackoff:
    """Remembers, for the addresses that failed last, when the next answer is due."""

    def __init__(self) -> None:
        # when an address has nothing to make up for any more
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._settled_at)

    def failed(self, address: str, now: float) -> float:
        """A login failed.

        Args:
            address: whose.
            now: ``time.monotonic()``.

        Returns:
            Seconds that the answer is to wait.
        """
        free_s = limits.FREE_LOGIN_FAILURES * limits.LOGIN_FAILURE_PERIOD_S
        owed_s = max(0.0, self._settled_at.pop(address, now) - now) + limits.LOGIN_FAILURE_PERIOD_S
        # who asks on and on need not wait for all of it once it stops
        owed_s = min(owed_s, free_s + limits.MAX_LOGIN_DELAY_S)
        self._settled_at[address] = now + owed_s
        if len(self._settled_at) > limits.MAX_FAILED_ADDRESSES:
            self._settled_at.popitem(last=False)
        return max(0.0, owed_s - free_s)
