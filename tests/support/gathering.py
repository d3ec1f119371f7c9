"""What a server hands over of registrations that came together."""

from collections.abc import Sequence
from typing import Any

import pytest

from eventer_bridge.core.client_registrations import ClientRegistrations


def note_gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many registrations were handled together each time, from now on."""
    counts: list[int] = []
    gather = ClientRegistrations.gather

    def note(self: ClientRegistrations[Any], requests: Sequence[Any]) -> None:
        counts.append(len(requests))
        gather(self, requests)

    monkeypatch.setattr(ClientRegistrations, "gather", note)
    return counts
