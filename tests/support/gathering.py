"""What a server hands over of registrations that came together."""

from collections.abc import Sequence
from typing import Any

import pytest

from eventer_bridge.core.client_registrations import ClientRegistrations


def note_gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many registrations were handled together each time, from now on."""
    counts: list[int] = []
    gather = ClientRegistrations.gather

    def note(self: ClientRegistrations[Any], requests: Sequence[Any], n_events: int) -> None:
        assert n_events == sum(len(events) or 1 for _, events, _, _ in requests)
        counts.append(len(requests))
        gather(self, requests, n_events)

    monkeypatch.setattr(ClientRegistrations, "gather", note)
    return counts
