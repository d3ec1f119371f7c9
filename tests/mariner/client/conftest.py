"""Servers that tests of the client share."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.mariner.client.servers import Server, running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["ours", "hat"])
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    async with running(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with running("ours", tmp_path_factory.mktemp("ours")) as server:
        yield server
