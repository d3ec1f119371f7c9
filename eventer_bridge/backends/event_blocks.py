"""Events in natural order, in copy-on-write blocks.

A block that a snapshot may share is replaced, never changed, so snapshots are cheap, however many
events there are.
"""

import bisect
from collections.abc import Sequence
from typing import Final

from eventer_bridge.model import Event, EventId, Timestamp, natural_key

BLOCK_EVENTS: Final = 256
"""Maximum events of a block, which is copied when an event is inserted."""


class EventBlocks:
    """See the module. One thread at a time."""

    def __init__(self) -> None:
        self._blocks: list[list[Event]] = []  # none is empty; only the last one grows
        self._n_events = 0

    def __len__(self) -> int:
        return self._n_events

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self._blocks)

    def block(self, number: int) -> Sequence[Event]:
        """Events of a block."""
        return self._blocks[number]

    def snapshot(self) -> list[list[Event]]:
        """All current blocks, for any thread to read."""
        blocks = self._blocks[:]
        if blocks:
            blocks[-1] = blocks[-1][:]
        return blocks

    def add(self, event: Event) -> None:
        """Add an event."""
        blocks = self._blocks
        self._n_events += 1
        if not blocks or natural_key(blocks[-1][-1]) < natural_key(event):
            if blocks and len(blocks[-1]) < BLOCK_EVENTS:
                blocks[-1].append(event)
            else:
                blocks.append([event])
            return
        number = max(0, bisect.bisect(blocks, natural_key(event), key=_first_key) - 1)
        block = blocks[number][:]
        bisect.insort(block, event, key=natural_key)
        middle = len(block) // 2
        is_full = len(block) > BLOCK_EVENTS
        blocks[number : number + 1] = [block[:middle], block[middle:]] if is_full else [block]

    def replace(self, number: int, events: list[Event]) -> int:
        """Replace the events of a block by some of them; returns the number of the next block."""
        blocks = self._blocks
        self._n_events -= len(blocks[number]) - len(events)
        begin = number
        if number and len(blocks[number - 1]) + len(events) <= BLOCK_EVENTS:
            begin -= 1
            events = blocks[begin] + events
        blocks[begin : number + 1] = [events] if events else []
        return begin + bool(events)


def _first_key(block: Sequence[Event]) -> tuple[Timestamp, EventId]:
    return natural_key(block[0])
