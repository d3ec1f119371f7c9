"""Who gets a slot, and whose slot is taken away."""

import asyncio
from collections.abc import Callable

import pytest

from eventer_bridge.net import limits
from eventer_bridge.net.admission import Admission, RefusedError, Slot
from eventer_bridge.net.quota import Bounds, Quota
from eventer_bridge.net.stats import ServerStats

FOREVER_S = 3600.0


class Peers:
    """Peers that connect; who they are is told by their addresses."""

    def __init__(self, bounds: Bounds) -> None:
        self.admission = Admission(bounds)
        self.stats = ServerStats()
        self.closed: list[Slot] = []

    async def enter(self, host: str, *, is_silent: bool = False) -> Slot:
        async with asyncio.timeout(60):
            slot = await self.admission.enter(host, f"{host}:1", self.stats, lambda: not is_silent)
        slot.when_taken(self._closer(slot))
        return slot

    def _closer(self, slot: Slot) -> Callable[[], None]:
        def close() -> None:
            self.closed.append(slot)
            slot.release()

        return close


@pytest.fixture(autouse=True)
def grace(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Nobody is old; a test may make all old."""

    def set_grace(seconds: float) -> None:
        monkeypatch.setattr(limits, "NEW_CONNECTION_GRACE_S", seconds)

    set_grace(FOREVER_S)
    return set_grace


async def test_the_address_that_has_most_makes_room_at_once() -> None:
    peers = Peers(Bounds(4, 4, 9, 9))
    many = [await peers.enter("192.0.2.1") for _ in range(3)]
    await peers.enter("192.0.2.2")
    await peers.enter("192.0.2.3")
    assert peers.closed == many[:1]
    assert peers.stats.connections == 4
    assert peers.stats.refused == {"place needed for another": 1}


async def test_who_has_most_is_refused_until_its_own_are_old(
    grace: Callable[[float], None],
) -> None:
    peers = Peers(Bounds(4, 4, 9, 9))
    many = [await peers.enter("192.0.2.1") for _ in range(4)]
    with pytest.raises(RefusedError):
        await peers.enter("192.0.2.1")
    grace(0)
    await peers.enter("192.0.2.1")
    assert peers.closed == many[:1]


async def test_who_came_alone_stays_while_others_have_more(
    grace: Callable[[float], None],
) -> None:
    grace(0)
    peers = Peers(Bounds(3, 3, 9, 9))
    await peers.enter("192.0.2.1")
    many = [await peers.enter("192.0.2.2") for _ in range(2)]
    await peers.enter("192.0.2.2")
    assert peers.closed == many[:1]


async def test_an_address_has_a_share_only(grace: Callable[[float], None]) -> None:
    peers = Peers(Bounds(4, 2, 9, 9))
    many = [await peers.enter("192.0.2.1") for _ in range(2)]
    with pytest.raises(RefusedError, match="of the address"):
        await peers.enter("192.0.2.1")
    grace(0)
    await peers.enter("192.0.2.1")
    assert peers.closed == many[:1]


@pytest.mark.parametrize("share", [3, 4])
async def test_silent_ones_of_an_address_go_first_and_at_once(share: int) -> None:
    peers = Peers(Bounds(3, share, 9, 9))
    if share > 3:  # another address has fewer
        await peers.enter("192.0.2.2")
    honest = [await peers.enter("192.0.2.1")]
    silent = await peers.enter("192.0.2.1", is_silent=True)
    if share == 3:
        honest.append(await peers.enter("192.0.2.1"))
        last = await peers.enter("192.0.2.1")
    else:
        last = await peers.enter("192.0.2.3")
    assert peers.closed == [silent]
    assert all(i.establish() for i in [*honest, last])


async def test_silent_ones_of_many_addresses_go_before_who_has_sent(
    grace: Callable[[float], None],
) -> None:
    grace(0)
    peers = Peers(Bounds(3, 3, 9, 9))
    honest = await peers.enter("192.0.2.1")
    silent = [await peers.enter(f"192.0.2.{i}", is_silent=True) for i in range(2, 100)]
    assert peers.closed == silent[:-2]
    assert honest.establish()


async def test_many_that_come_at_once_wait_for_their_turn() -> None:
    peers = Peers(Bounds(2, 2, 9, 9))
    first = await peers.enter("192.0.2.1")
    second = await peers.enter("192.0.2.2")
    third = asyncio.create_task(peers.enter("192.0.2.3"))
    await asyncio.sleep(0)
    assert first.establish()  # it got through, so there is room
    assert (await third).address == "192.0.2.3"
    fourth = asyncio.create_task(peers.enter("192.0.2.4"))
    await asyncio.sleep(0)
    second.release()
    await fourth
    assert not peers.closed


async def test_the_oldest_of_many_silent_addresses_makes_room(
    grace: Callable[[float], None],
) -> None:
    grace(0.2)
    peers = Peers(Bounds(3, 3, 9, 9))
    silent = [await peers.enter(f"192.0.2.{i}") for i in range(3)]
    await peers.enter("192.0.2.9")
    assert peers.closed == silent[:1]


async def test_known_ones_are_bounded_and_do_not_make_room() -> None:
    peers = Peers(Bounds(3, 3, 2, 1))
    known = await peers.enter("192.0.2.1")
    assert known.establish()
    of_same = await peers.enter("192.0.2.1")
    assert not of_same.establish()
    other = await peers.enter("192.0.2.2")
    assert other.establish()
    third = await peers.enter("192.0.2.3")
    assert not third.establish()
    known.release()
    known.release()  # once is enough
    assert third.establish()
    assert not of_same.establish()
    of_same.release()
    assert peers.stats.connections == 2
    # there is room for three new ones again, of whatever address
    for _ in range(3):
        await peers.enter("192.0.2.1")
    assert not peers.closed


async def test_a_wire_may_have_a_quota_of_its_own() -> None:
    peers = Peers(Bounds(9, 9, 3, 9))
    quota = Quota(2, 1)
    slots = [await peers.enter(f"192.0.2.{i}") for i in (1, 1, 2, 3)]
    assert [i.establish(quota) for i in slots] == [True, False, True, False]
    slots[0].release()
    assert slots[1].establish(quota)
    assert slots[3].establish()
    slots[1].release()
    slots[2].release()
    rest = [await peers.enter(f"192.0.2.{i}") for i in (4, 5)]
    assert [i.establish(quota) for i in rest] == [True, True]


async def test_what_the_process_refuses_takes_nothing_of_a_quota() -> None:
    peers = Peers(Bounds(9, 9, 1, 9))
    quota = Quota(1, 1)
    known = await peers.enter("192.0.2.1")
    assert known.establish()
    other = await peers.enter("192.0.2.2")
    assert not other.establish(quota)
    known.release()
    assert other.establish(quota)


async def test_who_lost_its_place_cannot_have_it_back(grace: Callable[[float], None]) -> None:
    grace(0)
    peers = Peers(Bounds(1, 1, 9, 9))
    slow = await peers.enter("192.0.2.1")
    await peers.enter("192.0.2.2")
    assert slow.was_taken
    assert not slow.establish()
    slow.release()
    assert peers.stats.connections == 1


async def test_who_guesses_has_its_place_until_the_answer_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FREE_LOGIN_FAILURES", 1)
    for name in ("LOGIN_FAILURE_PERIOD_S", "MAX_LOGIN_DELAY_S"):
        monkeypatch.setattr(limits, name, FOREVER_S)
    peers = Peers(Bounds(9, 1, 9, 9))
    slot = await peers.enter("192.0.2.1")
    assert slot.login_failed() == 0.0
    slot.release()
    slot = await peers.enter("192.0.2.1")
    assert 0 < slot.login_failed() <= FOREVER_S
    slot.release()
    assert peers.stats.connections == 0
    # to leave and come back is no quicker
    with pytest.raises(RefusedError):
        await peers.enter("192.0.2.1")
    monkeypatch.setattr(limits, "MAX_LOGIN_DELAY_S", 0.2)
    slot = await peers.enter("192.0.2.2")
    assert slot.login_failed() == 0.0
    assert 0 < slot.login_failed() <= 0.2
    slot.release()
    async with asyncio.timeout(60):
        while True:
            try:
                await peers.enter("192.0.2.2")
                break
            except RefusedError:
                await asyncio.sleep(0.01)
