"""Keys sort as they were made, and no two makers make the same."""

import time

import pytest

from eventer_bridge import limits
from mariner.client.reconnecting import KeyMaker


def test_keys_sort_as_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = iter([5, 5, 3, 1 << 60])  # also where the clock stands still, or goes back
    monkeypatch.setattr(time, "time_ns", lambda: next(now_ns))
    make = KeyMaker()
    made = [make() for _ in range(4)]
    assert made == sorted({*made})
    assert {len(i) for i in made} == {24}
    assert len(made[0]) <= limits.MAX_REQUEST_KEY_CHARACTERS


def test_makers_make_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    assert len({KeyMaker()() for _ in range(100)}) == 100
