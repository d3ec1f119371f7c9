"""What a server hands over of registrations that came together."""

from typing import Any

import pytest

from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.core.gathering import Gathered


def note_gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many registrations were handled together each time, from now on."""
    counts: list[int] = []
    gather, register = ClientRegistrations.gather, ClientRegistrations.register
    one_by_one: list[object] = []

    def note(self: ClientRegistrations[Any], requests: Gathered[Any]) -> None:
        if not one_by_one:
            counts.append(len(requests.requests))
        gather(self, requests)

    def note_one(self: ClientRegistrations[Any], *args: Any) -> None:
        one_by_one.append(args)
        try:
            register(self, *args)
        finally:
            one_by_one.pop()

    monkeypatch.setattr(ClientRegistrations, "gather", note)
    monkeypatch.setattr(ClientRegistrations, "register", note_one)
    return counts
