"""The time that passed here: measures age, whatever the clock of the machine does.

An event is as old as the time that the machine ran since it was registered: ``CLOCK_BOOTTIME``,
which the store keeps over restarts of the machine. The time that a machine was off does not count:
only its clock could tell, which may be wrong then.

Events have timestamps of the clock. So the *course* of the clock is noted: its reading after how
much time. It rises as time passes; where it does not (it jumped, or the machine was off), another
point is noted. :meth:`PassedTime.before` returns the least reading within a duration: no event that
was registered here since has a lesser timestamp. So a jump ahead makes nothing older, and events
from before a jump back are kept until the clock is there again, and the duration passed then.
Nothing is older than the clock says, either.
"""

import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from eventer_bridge import limits
from eventer_bridge.model import Timestamp

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_US: Final = 1_000_000


class _Point(NamedTuple):
    """Reading of the clock after some time, both in microseconds."""

    passed_us: int
    clock_us: int


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """The time that had passed at a moment since the machine was started, and the course."""

    boot_id: str
    boot_us: int
    passed_us: int
    course: Annotated[Sequence[_Point], msgspec.Meta(max_length=limits.MAX_COURSE_POINTS)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Kept).decode


class PassedTime:
    """See the module. Belongs to one thread, except what may be called on any.

    ``kept`` is what :meth:`encode` returned before (None: nothing), or ``ValueError`` is raised.
    """

    def __init__(self, kept: bytes | None = None) -> None:
        self._boot_id = _read_boot_id()
        self._before_boot_us = -boot_us()
        self._course: Sequence[_Point] = ()  # which rises
        self._is_noted = False
        if kept is not None:
            self.go_on(kept)

    def go_on(self, kept: bytes) -> None:
        """Go on from what another one kept, maybe on another machine; may raise ``ValueError``."""
        found = decode(kept)
        self._course, self._is_noted = found.course, False
        is_same = found.boot_id == self._boot_id != "" and found.boot_us <= boot_us()
        self._before_boot_us = found.passed_us - (found.boot_us if is_same else boot_us())

    def note(self, newest: Timestamp) -> None:
        """Note what the clock says; before that, nothing is old.

        ``newest``: the greatest timestamp of this server. Far behind it the clock is wrong, and
        nothing is registered by it (``core.clock``).
        """
        clock_us, newest_us, passed_us = _clock_us(), _to_us(newest), self._passed_us()
        self._is_noted = True
        if not self._course:  # the time before was not counted: as if the machine was off
            self._course = (_Point(passed_us, min(newest_us, clock_us)),)
        elif newest_us - clock_us > limits.MAX_CLOCK_AHEAD_S * _US:
            return
        if abs(clock_us - _after(self._course[-1], passed_us)) > limits.COURSE_TOLERANCE_S * _US:
            course = [i for i in self._course if i.clock_us < clock_us]  # it may say these again
            course.append(_Point(passed_us, clock_us))
            if len(course) > limits.MAX_COURSE_POINTS:
                del course[1]  # a jump ahead less: what was registered before is kept for longer
            self._course = course

    def now(self) -> Timestamp:
        """A moment to compare with :meth:`before` later; any thread."""
        return self.before(0) or Timestamp.now()

    def before(self, seconds: float | None) -> Timestamp | None:
        """The moment before which events are older than so many seconds; any thread.

        None: none is known to be; for seconds of None, older than anything, always.
        """
        if seconds is None or not self._is_noted:
            return None
        course, duration_us = self._course, round(seconds * _US)
        passed_us = self._passed_us() - duration_us
        n = bisect_right(course, passed_us, key=lambda i: i.passed_us)
        before_us = min(_after(course[max(n - 1, 0)], passed_us), _clock_us() - duration_us)
        if n < len(course):
            before_us = min(before_us, course[n].clock_us)
        return Timestamp(*divmod(before_us, _US))

    def encode(self) -> bytes:
        """Value for ``kept`` of another one."""
        now_us = boot_us()
        kept = _Kept(self._boot_id, now_us, self._before_boot_us + now_us, self._course)
        return _encode(kept)

    def _passed_us(self) -> int:
        return self._before_boot_us + boot_us()


def decode(kept: bytes) -> _Kept:
    """What was kept; raises ValueError."""
    try:
        found = _decode(kept)
    except msgspec.DecodeError as e:
        raise ValueError(f"not a course of time: {e}") from None
    if sorted(found.course) != [*found.course]:
        raise ValueError("not a course of time: not in order")
    return found


def boot_us() -> int:
    """Microseconds since the machine was started; any thread."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def _read_boot_id() -> str:
    """Name of this start of the machine, or empty."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _after(point: _Point, passed_us: int) -> int:
    """What the clock says after so much time, if it does not jump."""
    return point.clock_us + passed_us - point.passed_us


def _clock_us() -> int:
    return time.time_ns() // 1_000


def _to_us(timestamp: Timestamp) -> int:
    return timestamp.s * _US + timestamp.us
