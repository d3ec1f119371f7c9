"""An engine in memory, for each test that asks for one."""

from collections.abc import AsyncIterator

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.core import engine
from eventer_bridge.core.engine import Engine


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    backend = await rocksdb.create_temporary()
    yield backend
    await backend.async_close()


@pytest.fixture
async def core(backend: Backend) -> AsyncIterator[Engine]:
    core = await engine.create(backend, 7)
    yield core
    await core.async_close()
