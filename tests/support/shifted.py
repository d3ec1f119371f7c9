"""The clock of this process, shifted while a test runs."""

import time

import pytest


class ShiftedClock:
    """Adds to the time of day; monotonic time goes on.

    Attributes:
        seconds: by how much.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        time_ns, seconds = time.time_ns, time.time
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + round(self.seconds * 1e9))
        monkeypatch.setattr(time, "time", lambda: seconds() + self.seconds)
