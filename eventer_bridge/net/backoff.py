"""Login backoff: answers to wrong names or tokens are delayed.

Each address has a few free attempts; after them, its answers are spaced out in time, over all
its connections. A correct login is answered at once, even from that address.
"""

from collections import OrderedDict

from eventer_bridge.net import limits


class LoginBackoff:
    """When the next answer is due, for the addresses that failed most recently."""

    def __init__(self) -> None:
        # when the penalty of an address ends
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._settled_at)

    def failed(self, address: str, now: float) -> float:
        """A login failed.

        Args:
            address: of the client.
            now: ``time.monotonic()``.

        Returns:
            Seconds to delay the answer.
        """
        free_s = limits.FREE_LOGIN_FAILURES * limits.LOGIN_FAILURE_PERIOD_S
        penalty_s = (
            max(0.0, self._settled_at.pop(address, now) - now) + limits.LOGIN_FAILURE_PERIOD_S
        )
        # bounds the penalty that is left after many attempts
        penalty_s = min(penalty_s, free_s + limits.MAX_LOGIN_DELAY_S)
        self._settled_at[address] = now + penalty_s
        if len(self._settled_at) > limits.MAX_FAILED_ADDRESSES:
            self._settled_at.popitem(last=False)
        return max(0.0, penalty_s - free_s)
