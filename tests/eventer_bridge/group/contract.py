"""What ``group/log.py`` promises of every commit log; each one's test file subclasses this."""

import abc
import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import pytest

from eventer_bridge.group.log import CommitLog, FencedError, LogError, LogState, Record

SERVER_ID: Final = 7
KEEP_S: Final = 3600.0

_number = itertools.count()


async def claim(log: CommitLog, member: str = "a") -> LogState:
    """Become the active member."""
    return await log.claim(await log.state(), member, "")


async def append(log: CommitLog, epoch: int, *texts: bytes) -> None:
    """Append records of one part behind those that are there."""
    position = (await log.state()).position
    for text in texts:
        position += 1
        await log.append(epoch, position, [text])


class CommitLogContract(abc.ABC):
    """Each test has a group of its own, and two logs of it, as two members have them."""

    @abc.abstractmethod
    async def create(self, name: str) -> str:
        """Make a group of ``SERVER_ID``; its id."""

    @abc.abstractmethod
    def open(self, name: str) -> CommitLog:
        """A log of a group."""

    @pytest.fixture
    def name(self) -> str:
        return f"group {next(_number)}"

    @pytest.fixture
    async def log(self, name: str) -> AsyncIterator[CommitLog]:
        await self.create(name)
        async with self.open(name) as log:
            yield log

    @pytest.fixture
    async def other(self, name: str, log: CommitLog) -> AsyncIterator[CommitLog]:
        async with self.open(name) as other:
            yield other

    # --- the row of the group -------------------------------------------------------------

    async def test_a_new_group_has_nothing(self, name: str, log: CommitLog) -> None:
        state = await log.state()
        assert len(bytes.fromhex(state.group_id)) == 16
        assert state.since_s > 1.7e9
        assert state == LogState(
            state.group_id, SERVER_ID, 0, None, state.since_s, 0, 0, 0, 0, None
        )
        assert await log.read(0, 100, 1 << 20) == []
        assert await log.members() == []
        with pytest.raises(LogError, match=f"has a group {name} already"):
            await self.create(name)

    async def test_a_group_that_was_never_made(self) -> None:
        async with self.open("nobody's") as log:
            with pytest.raises(LogError, match=r"has no group nobody's: .* `mariner group init`"):
                await log.state()

    async def test_groups_know_nothing_of_each_other(self, log: CommitLog) -> None:
        name = f"group {next(_number)}"
        group_id = await self.create(name)
        async with self.open(name) as other:
            assert (await other.state()).group_id == group_id != (await log.state()).group_id
            await claim(log)
            await claim(other)
            await append(log, 1, b"1", b"2")
            await append(other, 1, b"3")
            await log.note_member("a", 2)
            await log.beat(1, 2)
            await log.trim(KEEP_S)
            assert await other.read(0, 9, 9) == [Record(1, 1, (b"3",))]
            assert await other.members() == []
            assert not await other.remove_member("a")
            await other.release(1)
            assert (await log.state()).active == "a"

    # --- records ----------------------------------------------------------------------------

    async def test_what_was_appended_can_be_read(self, log: CommitLog, other: CommitLog) -> None:
        await claim(log)
        large = bytes(range(256)) * 4096
        await log.append(1, 1, [b"one"])
        await log.append(1, 2, [b"", large, b"three"])
        await claim(other, "b")
        await other.append(2, 3, [b""])
        records = [
            Record(1, 1, (b"one",)),
            Record(2, 1, (b"", large, b"three")),
            Record(3, 2, (b"",)),
        ]
        assert await log.read(0, 3, 4 << 20) == records
        assert await other.read(1, 2, 0) == records[1:2]
        assert await log.read(3, 9, 1) == []

    async def test_an_answer_is_bounded_but_has_one(self, log: CommitLog) -> None:
        await claim(log)
        await append(log, 1, b"1" * 100, b"2" * 100, b"3" * 50, b"4")

        async def positions(after: int, max_bytes: int) -> list[int]:
            return [i.position for i in await log.read(after, 4, max_bytes)]

        assert await positions(0, 1) == [1]
        assert await positions(0, 199) == [1]
        assert await positions(0, 250) == [1, 2, 3]
        assert await positions(2, 51) == [3, 4]

    async def test_acknowledged_is_what_came_before_or_was_told(self, log: CommitLog) -> None:
        await claim(log)
        await append(log, 1, b"1", b"2")
        state = await log.state()
        assert (state.position, state.acknowledged) == (2, 1)
        await log.beat(1, 2)
        await log.beat(1, 1)  # late
        assert await log.state() == state._replace(acknowledged=2, beat=state.beat + 2)

    async def test_no_gap_and_nothing_twice(self, log: CommitLog) -> None:
        await claim(log)
        for position in (2, 0):
            with pytest.raises(FencedError, match="the log ends at 0"):
                await log.append(1, position, [b"part", b"last"])
        await log.append(1, 1, [b"first"])
        with pytest.raises(FencedError, match="the log ends at 1, expected 0"):
            await log.append(1, 1, [b"again"])
        assert await log.read(0, 9, 99) == [Record(1, 1, (b"first",))]

    # --- who is active ----------------------------------------------------------------------

    async def test_the_first_claim_says_what_it_began_with(
        self, log: CommitLog, other: CommitLog
    ) -> None:
        before = await log.state()
        first = await log.claim(before, "a", "history")
        assert first == before._replace(
            epoch=1, active="a", since_s=first.since_s, beat=1, base="history"
        )
        assert await other.state() == first
        second = await other.claim(first, "b", "another")
        assert (second.epoch, second.active, second.base) == (2, "b", "history")
        assert second.since_s >= first.since_s

    async def test_who_was_taken_over_from_changes_nothing(
        self, log: CommitLog, other: CommitLog
    ) -> None:
        await claim(log)
        await append(log, 1, b"1")
        state = await claim(other, "b")
        text = "b has claimed epoch 2"
        attempts: list[Coroutine[Any, Any, object]] = [
            log.append(1, 2, [b"2"]),
            log.append(1, 2, [b"part", b"last"]),
            log.beat(1, 1),
            log.settle(1),
            log.release(1),
        ]
        for attempt in attempts:
            with pytest.raises(FencedError, match=text):
                await attempt
        assert await log.state() == state
        assert await log.read(0, 9, 99) == [Record(1, 1, (b"1",))]

    async def test_of_two_that_claim_one_does(self, log: CommitLog, other: CommitLog) -> None:
        for epoch in range(1, 11):
            seen = await log.state()
            outcomes = await asyncio.gather(
                log.claim(seen, "a", ""), other.claim(seen, "b", ""), return_exceptions=True
            )
            [won] = [i for i in outcomes if isinstance(i, LogState)]
            [lost] = [i for i in outcomes if isinstance(i, FencedError)]
            assert won.epoch == epoch
            assert "another member has claimed an epoch" in str(lost)

    async def test_who_lives_is_not_taken_over_from(self, log: CommitLog, other: CommitLog) -> None:
        await claim(log)
        seen = await other.state()
        await log.beat(1, 0)
        with pytest.raises(FencedError, match="or shown that it is active"):
            await other.claim(seen, "b", "")
        assert (await log.state()).active == "a"

    async def test_a_claim_under_load_loses_and_doubles_nothing(
        self, log: CommitLog, other: CommitLog
    ) -> None:
        acknowledged: list[int] = []

        async def write() -> None:
            state = await claim(log)
            for position in itertools.count(state.position + 1):
                await log.append(state.epoch, position, [b"%d of a" % position, b"end"])
                acknowledged.append(position)

        writing = asyncio.create_task(write())
        try:
            while len(acknowledged) < 20:
                await asyncio.sleep(0)
            state = None
            while state is None:
                with contextlib.suppress(FencedError):
                    state = await claim(other, "b")
            await other.append(state.epoch, state.position + 1, [b"of b"])
            with pytest.raises(FencedError):
                await writing
        finally:
            writing.cancel()
        assert acknowledged == list(range(1, len(acknowledged) + 1))
        assert state.position - len(acknowledged) in {0, 1}  # one was under way
        assert await other.read(0, 1 << 40, 1 << 20) == [
            *(Record(i, 1, (b"%d of a" % i, b"end")) for i in range(1, state.position + 1)),
            Record(state.position + 1, 2, (b"of b",)),
        ]

    async def test_who_has_released_is_done(self, log: CommitLog, other: CommitLog) -> None:
        claimed = await claim(log)
        await log.release(1)
        seen = await other.state()
        assert (seen.active, seen.epoch) == (None, 1)
        assert seen.since_s > claimed.since_s
        for attempt in (log.append(1, 1, [b"1"]), log.beat(1, 0), log.release(1)):
            with pytest.raises(FencedError, match="epoch 1 was released"):
                await attempt
        assert (await other.claim(seen, "b", "")).epoch == 2

    async def test_settling_tells_where_the_log_ends(
        self, log: CommitLog, other: CommitLog
    ) -> None:
        state = await claim(log)
        await append(log, 1, b"1", b"2")
        assert await log.settle(1) == 2
        assert (await other.state()).beat == state.beat + 3
        await log.append(1, 3, [b"3"])
        # by another connection, as after a start
        assert await other.settle(1) == 3

    # --- members and trimming ---------------------------------------------------------------

    async def test_members_tell_of_themselves(self, log: CommitLog, other: CommitLog) -> None:
        await claim(log)
        await append(log, 1, b"1", b"2")
        await log.note_member("a", 1)
        await log.note_member("a", 2)
        await other.note_member("Z", 1)
        late, early = await log.members()
        assert (late.name, late.position, early.name, early.position) == ("Z", 1, "a", 2)
        assert 0 <= late.seen_s < early.seen_s
        assert late.lag_s > early.lag_s == 0
        assert await log.remove_member("Z")
        assert not await log.remove_member("Z")
        assert [i.name for i in await other.members()] == ["a"]

    async def test_what_all_have_is_removed(
        self, log: CommitLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await claim(log)
        await append(log, 1, b"1", b"2", b"3", b"4")
        assert await log.trim(float("inf")) == 0
        await log.note_member("a", 4)
        await log.note_member("b", 2)
        assert await log.trim(KEEP_S) == 2
        assert (await log.state()).trimmed == 2
        assert [i.position for i in await log.read(0, 9, 99)] == [3, 4]
        await log.remove_member("b")
        assert await log.trim(KEEP_S) == 0  # another one may come
        monkeypatch.setattr("eventer_bridge.group.limits.ALONE_KEEP_S", 0.0)
        assert await log.trim(KEEP_S) == 1  # the last one is not acknowledged yet
        await log.beat(1, 4)
        assert await log.trim(KEEP_S) == 1
        assert await log.read(0, 9, 99) == []
        await log.append(1, 5, [b"5"])
        assert (await log.state()).trimmed == 4

    async def test_what_is_old_is_removed(
        self, log: CommitLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventer_bridge.group.limits.TRIM_RECORDS", 2)
        monkeypatch.setattr("eventer_bridge.group.limits.READ_RECORDS", 3)
        await claim(log)
        await append(log, 1, *[b"x"] * 8)
        await log.note_member("away", 1)
        await log.beat(1, 7)
        assert await log.trim(0.0) == 7
        assert (await log.state()).trimmed == 7
        assert [i.position for i in await log.read(0, 9, 99)] == [8]
