"""A gateway for the commands of a file, and how they are run."""

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import CLIENTS
from tests.support.shell import Shell, shell_for

READER: Final = {
    "name": "reader",
    "token": "reads",
    "subscriptions": [["*"]],
    "register_events": [{"subscriptions": [["allowed", "*"]]}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    async with gateway(directory, clients=[*CLIENTS, READER]) as running:
        yield running


@pytest.fixture(scope="module")
def shell(server: Gateway) -> Shell:
    return shell_for("app", "secret", server.port)
