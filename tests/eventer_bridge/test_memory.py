"""What all holders have together, and who has to give up what it has."""

import functools

import pytest

from eventer_bridge import limits
from eventer_bridge.memory import MemoryAccount, MemoryShare

UNIT = limits.UNCOUNTED_BYTES


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more becomes free than has to."""
    monkeypatch.setattr(limits, "SHED_SHARE", 1 << 40)


class Holders:
    def __init__(self, max_bytes: int) -> None:
        self.account = MemoryAccount(max_bytes)
        self.lost: list[MemoryShare] = []

    def add(self, n_bytes: int, owner: str) -> MemoryShare:
        share = MemoryShare(self.account, owner)
        share.when_lost(lambda: self.lost.append(share))
        share.set(n_bytes)
        return share


def test_the_largest_goes() -> None:
    holders = Holders(10 * UNIT)
    small, large = holders.add(2 * UNIT, "a"), holders.add(5 * UNIT, "a")
    growing = holders.add(3 * UNIT, "a")
    assert holders.lost == []
    growing.set(4 * UNIT)
    assert holders.lost == [large]
    growing.set(8 * UNIT)
    assert holders.lost == [large]
    growing.set(9 * UNIT)
    assert holders.lost == [large, growing]
    small.set(10 * UNIT)
    assert holders.lost == [large, growing]


def test_it_is_one_of_who_has_most() -> None:
    holders = Holders(20 * UNIT)
    large = holders.add(9 * UNIT, "large")
    several = [holders.add(2 * UNIT, "several") for _ in range(5)]
    several[3].set(3 * UNIT)
    assert holders.lost == []
    large.set(10 * UNIT)
    assert holders.lost == [several[3]]
    assert holders.account.n_bytes == 18 * UNIT


def test_what_changes_hands_counts_for_its_new_owner() -> None:
    holders = Holders(10 * UNIT)
    moved, other = holders.add(4 * UNIT, "address"), holders.add(3 * UNIT, "address")
    moved.move("client")
    assert moved.n_bytes == 4 * UNIT
    assert holders.account.n_bytes == 7 * UNIT
    third = holders.add(4 * UNIT, "third")  # "address" has 3, both others 4
    assert holders.lost == [moved]
    third.set(8 * UNIT)
    assert holders.lost == [moved, third]
    assert other.n_bytes == 3 * UNIT


def test_what_was_given_back_is_free() -> None:
    holders = Holders(10 * UNIT)
    first, second = holders.add(10 * UNIT, "a"), holders.add(0, "b")
    first.set(UNIT - 1)
    second.set(10 * UNIT)
    second.close()
    third = holders.add(10 * UNIT, "c")
    assert holders.lost == []
    third.set(10 * UNIT + 1)
    assert holders.lost == [third]
    assert holders.account.n_bytes == 0


def test_who_has_to_go_holds_nothing_more() -> None:
    holders = Holders(10 * UNIT)
    gone = holders.add(11 * UNIT, "a")
    gone.set(9 * UNIT)  # until the connection is lost
    assert gone.n_bytes == 0
    holders.add(10 * UNIT, "b")
    assert holders.lost == [gone]


def test_some_more_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHED_SHARE", 4)
    holders = Holders(40 * UNIT)
    small = [holders.add((i + 1) * UNIT, "a") for i in range(8)]
    assert holders.lost == []
    small[0].set(6 * UNIT)
    assert holders.lost == [small[7], small[6]]
    assert holders.account.n_bytes <= 30 * UNIT


def test_a_little_is_not_counted() -> None:
    holders = Holders(10 * UNIT)
    for _ in range(20):
        holders.add(UNIT - 1, "a")
    assert holders.lost == []
    assert holders.account.n_bytes == 0


def test_much_is_lost_at_once() -> None:
    account = MemoryAccount(100_000_000)
    lost: list[int] = []
    for number in range(9_000):
        share = MemoryShare(account, "many")
        share.when_lost(functools.partial(lost.append, number))
        share.set(11_000 + number % 100)
    MemoryShare(account, "one").set(16_000_000)
    assert 1_200 < len(lost) < 1_600
    assert account.n_bytes <= account.max_bytes
