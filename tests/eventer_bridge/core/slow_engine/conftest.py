"""An engine for whose backend few events are many."""

from collections.abc import AsyncIterator

import pytest

from eventer_bridge import limits
from eventer_bridge.core.engine import Engine
from tests.eventer_bridge.core.slow_engine.support import LARGE, SlowBackend, running


@pytest.fixture(autouse=True)
def few_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LARGE_SESSION_EVENTS", LARGE)
    monkeypatch.setattr(limits, "STEP_EVENTS", 4)
    monkeypatch.setattr(limits, "SLICE_S", 0.0)  # others get their turn after each step


@pytest.fixture
async def backend() -> AsyncIterator[SlowBackend]:
    async with await SlowBackend.create() as backend:
        yield backend


@pytest.fixture
async def core(backend: SlowBackend) -> AsyncIterator[Engine]:
    async with running(backend) as core:
        yield core
