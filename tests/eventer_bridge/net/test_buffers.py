"""What all connections hold together, and who has to go."""

from eventer_bridge.net import limits
from eventer_bridge.net.buffers import Buffer, Buffers

UNIT = limits.COUNTED_BUFFER_BYTES


class Holders:
    def __init__(self, max_bytes: int) -> None:
        self.buffers = Buffers(max_bytes)
        self.closed: list[Buffer] = []

    def add(self, n_bytes: int) -> Buffer:
        buffer = Buffer(self.buffers)
        buffer.when_too_large(lambda: self.closed.append(buffer))
        buffer.set(n_bytes)
        return buffer


def test_the_largest_goes() -> None:
    holders = Holders(10 * UNIT)
    small, large = holders.add(2 * UNIT), holders.add(5 * UNIT)
    growing = holders.add(3 * UNIT)
    assert holders.closed == []
    growing.set(4 * UNIT)
    assert holders.closed == [large]
    growing.set(8 * UNIT)
    assert holders.closed == [large]
    growing.set(9 * UNIT)
    assert holders.closed == [large, growing]
    small.set(10 * UNIT)
    assert holders.closed == [large, growing]


def test_what_was_given_back_is_free() -> None:
    holders = Holders(10 * UNIT)
    first, second = holders.add(10 * UNIT), holders.add(0)
    first.set(UNIT - 1)
    second.set(10 * UNIT)
    second.close()
    third = holders.add(10 * UNIT)
    assert holders.closed == []
    third.set(10 * UNIT + 1)
    assert holders.closed == [third]


def test_who_has_to_go_holds_nothing_more() -> None:
    holders = Holders(10 * UNIT)
    gone = holders.add(11 * UNIT)
    gone.set(9 * UNIT)  # until the connection is lost
    assert gone.n_bytes == 0
    holders.add(10 * UNIT)
    assert holders.closed == [gone]


def test_a_little_is_not_counted() -> None:
    holders = Holders(10 * UNIT)
    for _ in range(20):
        holders.add(UNIT - 1)
    assert holders.closed == []
