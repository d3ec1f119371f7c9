"""What a subscriber hears: everything, once, in whole sessions, in the order of each server.

What is registered is a ``Ledger``'s, so each event tells how many its session has.
"""

import asyncio
from collections.abc import Iterable, Sequence

from eventer_bridge.model import Event, EventId
from tests.torture.ledger import OURS, ViolationError, entry_of


class Hearing:
    """See the module; ``name`` is what to call the subscriber."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._heard: dict[int, list[Event]] = {}
        self._violation: ViolationError | None = None
        self._changed = asyncio.Event()

    def hear(self, events: Sequence[Event]) -> None:
        """A notification came."""
        try:
            self._hear(events)
        except ViolationError as e:
            self._violation = self._violation or e
        self._changed.set()

    def _hear(self, events: Sequence[Event]) -> None:
        ours = [event for event in events if event.type[0] == OURS[0]]
        if not ours:
            return
        entries = [entry_of(event) for event in ours]
        if [i.position for i in entries] != list(range(entries[0].n_events)):
            raise ViolationError(f"{self._name} hears of a part of session {ours[0].id}")
        heard = self._heard.setdefault(ours[0].id.server, [])
        if heard and heard[-1].id >= ours[0].id:
            raise ViolationError(f"{self._name} hears of {ours[0].id} after {heard[-1].id}")
        heard.extend(ours)

    async def until(self, last: EventId) -> None:
        """Wait until this event, or a later one of its server, was heard of.

        Raises:
            ViolationError: a notification was no whole session, or should have come earlier.
        """
        while not (heard := self._heard.get(last.server)) or heard[-1].id < last:
            self._raise_violation()
            self._changed.clear()
            await self._changed.wait()

    def _raise_violation(self) -> None:
        if self._violation is not None:
            raise self._violation

    def check(self, server_id: int, stored: Iterable[Event]) -> None:
        """Compare with everything that is stored of a server.

        Raises:
            ViolationError: it is not the same, or as in :meth:`until`.
        """
        self._raise_violation()
        heard = self._heard.get(server_id, [])
        wanted = list(stored)
        if heard != wanted:
            missing = {i.id for i in wanted} - {i.id for i in heard}
            raise ViolationError(
                f"{self._name} heard of {len(heard)} events of server {server_id}, stored are"
                f" {len(wanted)}; missing: {sorted(missing)[:3]}"
            )
