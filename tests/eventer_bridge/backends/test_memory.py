"""The backend in memory: the contract."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventer_bridge.backends import memory
from eventer_bridge.backends.base import Backend
from tests.eventer_bridge.backends.contract_keeping import KeepingContract


class TestMemory(KeepingContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = memory.create()
        yield backend
        await backend.async_close()
