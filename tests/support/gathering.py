"""What a server hands over of registrations that came together."""

import pytest

from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.packed import Batch


def note_gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many registrations were handled together each time, from now on."""
    counts: list[int] = []
    gather, register = ClientRegistrations.gather, ClientRegistrations.register
    one_by_one: list[object] = []

    def note(self: ClientRegistrations, batches: list[Batch]) -> None:
        if not one_by_one:
            counts.append(len(batches))
        gather(self, batches)

    def note_one(self: ClientRegistrations, batch: Batch) -> None:
        one_by_one.append(batch)
        try:
            register(self, batch)
        finally:
            one_by_one.pop()

    monkeypatch.setattr(ClientRegistrations, "gather", note)
    monkeypatch.setattr(ClientRegistrations, "register", note_one)
    return counts
