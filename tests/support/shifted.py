"""The clocks of this process, shifted while a test runs."""

import time
from pathlib import Path

import pytest

from eventer_bridge.backends import passed_time


class ShiftedClock:
    """Adds to the time of day, and to the time that passes; ``time.monotonic`` goes on.

    Attributes:
        seconds: by how much the time of day is wrong.
        passed_s: how much more time passed, by all clocks.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = self.passed_s = self._on_s = 0.0
        self._monkeypatch = monkeypatch
        time_ns, seconds, of_clock = time.time_ns, time.time, time.clock_gettime_ns
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + round(self._ahead_s * 1e9))
        monkeypatch.setattr(time, "time", lambda: seconds() + self._ahead_s)
        monkeypatch.setattr(
            time,
            "clock_gettime_ns",
            lambda clock: of_clock(clock) + round((self.passed_s + self._on_s) * 1e9),
        )

    def start_machine(self, boot_id: Path) -> None:
        """As if the machine was started again, and was on for longer by now than before.

        Args:
            boot_id: a file for the name of this start.
        """
        self._monkeypatch.setattr(passed_time, "_BOOT_ID", boot_id)
        self._on_s += 1e6
        boot_id.write_text(f"start after {self._on_s} s\n")

    @property
    def _ahead_s(self) -> float:
        return self.seconds + self.passed_s
