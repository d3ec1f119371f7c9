"""The commit log of a group: what its members agree by.

It holds **records**, one for each commit of the active member, numbered without gaps (its
**position**), and one row that says who is active:

- **epoch**: rises with each claim. Whoever claimed an earlier one can append nothing any more.
- **beat**: rises with each append and each :meth:`CommitLog.beat` of the active member. Others
  claim the next epoch when it stands still.
- **position**: of the last record. A record that can be read may not be durable yet, and be lost
  with the machine that it was read from: others apply only what is **acknowledged**, which the
  active member says of the records before with each append and beat. What was there at a claim is
  durable when the claim is.

Every change of that row is durable on a quorum of the log's servers before the call returns. A call
that failed may have changed it all the same (``LogError.is_unknown``): :meth:`CommitLog.settle`
tells.

Every implementation passes one contract test suite. All methods are for the event loop's thread,
and raise ``LogError`` if the log cannot be asked, does not answer in time, or refuses. One append
is in flight at a time; any other call may come meanwhile.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

from eventer_bridge.errors import StorageError
from eventer_bridge.resources import Resource


class LogError(StorageError):
    """The log of a group cannot be used; the message says where and why.

    ``is_unknown``: what was asked for may have been done all the same.
    """

    def __init__(self, text: str, *, is_unknown: bool = False) -> None:
        super().__init__(text)
        self.is_unknown = is_unknown


class FencedError(LogError):
    """Another member claimed a later epoch: nothing was changed."""


class LogState(NamedTuple):
    """The row of the group.

    Attributes:
        group_id: of this group, and no other one that was ever made (32 hexadecimal digits).
        server_id: of all of its members.
        epoch: of the last claim; 0: nobody ever claimed one.
        active: name of the member that claimed it; None: it has released it.
        since_s: moment of the last claim or release, by the log's clock, in seconds since 1970.
        beat, position, acknowledged: see the module.
        trimmed: position of the last record that is no longer there; 0: all are.
        base: history of the store that the group began with; empty: with an empty one; None: it has
            not begun.
    """

    group_id: str
    server_id: int
    epoch: int
    active: str | None
    since_s: float
    beat: int
    position: int
    acknowledged: int
    trimmed: int
    base: str | None


class Record(NamedTuple):
    """A record of the log: who wrote it, and its parts, as they were appended."""

    position: int
    epoch: int
    parts: tuple[bytes, ...]


class MemberState(NamedTuple):
    """A member as it told of itself.

    Attributes:
        name: of the member.
        position: that it had applied.
        seen_s: seconds since it told.
        lag_s: age of the first record behind that position, in seconds; 0: there is none.
    """

    name: str
    position: int
    seen_s: float
    lag_s: float


class CommitLog(Resource, abc.ABC):
    """See the module. Closing it ends its connections, and whatever waits for them."""

    @abc.abstractmethod
    async def state(self) -> LogState:
        """The row of the group."""

    @abc.abstractmethod
    async def claim(self, seen: LogState, member: str, base: str) -> LogState:
        """Claim the epoch after ``seen``, and return the row then.

        ``base`` is kept if it is the first claim. Parts of a record that was never finished are
        removed. ``FencedError``: somebody claimed an epoch since ``seen`` was read, or the active
        member has shown that it is alive.
        """

    @abc.abstractmethod
    async def append(self, epoch: int, position: int, parts: Sequence[bytes]) -> None:
        """Append the record of this position, the next one.

        A record of several parts is there when the last one is, whole or not at all; the parts
        before it may be sent one after the other. ``FencedError``: of a later epoch, or the log
        does not end before this position.
        """

    @abc.abstractmethod
    async def beat(self, epoch: int, acknowledged: int) -> None:
        """Show that the active member is alive, and what of its records is acknowledged."""

    @abc.abstractmethod
    async def settle(self, epoch: int) -> int:
        """After an append whose outcome is not known: the position of the last record.

        Whatever was sent before has happened by then, or never will; what is there is durable.
        Also shows that the active member is alive.
        """

    @abc.abstractmethod
    async def release(self, epoch: int) -> None:
        """Say that this member is not active any more, so that another one can be at once."""

    @abc.abstractmethod
    async def read(self, after: int, up_to: int, max_bytes: int) -> list[Record]:
        """The records behind a position, up to another one.

        Always one, if there is one, and then more up to ``max_bytes`` altogether. Those that were
        trimmed are missing.
        """

    @abc.abstractmethod
    async def note_member(self, name: str, position: int) -> None:
        """Tell what a member has applied; makes it a member."""

    @abc.abstractmethod
    async def members(self) -> list[MemberState]:
        """All members, by name."""

    @abc.abstractmethod
    async def remove_member(self, name: str) -> bool:
        """Forget a member, for which the log is kept no longer; whether it was one."""

    @abc.abstractmethod
    async def trim(self, keep_s: float) -> int:
        """Remove records that all members have applied, or that are older; returns how many.

        Where there is only one member, others may be yet to come: what it has is removed later,
        when it is older than ``limits.ALONE_KEEP_S``.
        """
