"""The backend in memory: the contract, and answers equal to the naive ones."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from eventer_bridge.backends import memory
from eventer_bridge.backends.base import Backend
from tests.eventer_bridge.backends.contract_keeping import KeepingContract
from tests.eventer_bridge.backends.properties import Case, cases, check


class TestMemory(KeepingContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = memory.create()
        yield backend
        await backend.async_close()


@settings(max_examples=150, deadline=None)
@given(cases)
def test_answers_are_the_naive_ones(case: Case) -> None:
    async def run() -> None:
        async with memory.create() as backend:
            await check(backend, case)

    asyncio.run(run())
