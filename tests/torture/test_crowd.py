"""The crowd in small; whether memory is flat takes minutes to see (``make torture``)."""

import os
import random
import re
from pathlib import Path

import pytest

from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from tests.console.browsing import needs_browser
from tests.torture import crowd
from tests.torture.crowd_clients import CROWD, Active
from tests.torture.ledger import ViolationError
from tests.torture.report import no_progress


@needs_browser
async def test_everybody_hears_of_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "N_IDLE", 60)
    monkeypatch.setattr(crowd, "N_ACTIVE", 10)
    monkeypatch.setattr(crowd, "ROUND_S", 4.0)
    monkeypatch.setattr(crowd, "FILL_EVENTS", 1_000)
    monkeypatch.setattr(crowd, "MAX_GROWTH_BYTES", 1 << 30)
    outcome = await crowd.run(tmp_path, 1, random.Random(17), no_progress)
    assert re.match(
        r"60 idle and 10 active connections; \d+ events registered, \d+ notified, each once and"
        r" in order; \d+ statuses, \d+ looks at the console;"
        r" memory by fifths of the time: gateway [\d/]+ MB, console ",
        outcome,
    )


def _event(instance: int, position: int) -> Event:
    payload = JsonPayload.of({"position": position})
    return Event(EventId(1, 1, instance), (CROWD, "0", "1"), Timestamp(0, 0), None, payload)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (_event(2, 0), "active-0 hears of event 0 of active-1, not 1"),
        (_event(2, 2), "active-0 hears of event 2 of active-1, not 1"),
        (_event(1, 1), "after"),
    ],
    ids=["doubled", "lost", "out of order"],
)
def test_what_is_wrong_is_noticed(second: Event, text: str) -> None:
    active = Active(0, 4)
    active.hear([_event(1, 0)])
    with pytest.raises(ViolationError, match=text):
        active.hear([second])


def test_what_is_missing_in_the_end_is_noticed() -> None:
    active = Active(0, 2)
    active.hear([_event(1, 0)])
    active.check([0, 1])
    with pytest.raises(ViolationError, match="heard of"):
        active.check([0, 2])


def test_memory_that_grows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MAX_GROWTH_BYTES", 16 << 20)
    memory = crowd.FlatMemory({"tests": os.getpid()})
    for part in (0.1, 0.3, 0.5, 0.7):
        memory.sample(part)
    kept = b"x" * (100 << 20)
    memory.sample(0.9)
    with pytest.raises(ViolationError, match="memory is not flat: tests "):
        memory.check()
    del kept
