"""Request keys of our clients."""

import secrets
import time


class KeyMaker:
    """Makes request keys that sort as they were made, which servers find to be new without a look.

    A key is the time in nanoseconds (more than that where several come at one time, or the clock
    went back), and random digits of this maker.
    """

    def __init__(self) -> None:
        self._last_ns = 0
        self._suffix = secrets.token_hex(4)

    def __call__(self) -> str:
        """A new key, of 24 characters."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return f"{self._last_ns:016x}{self._suffix}"
