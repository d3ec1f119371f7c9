"""The log in PostgreSQL: the contract, and servers and connections that fail."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from typing_extensions import override

from eventer_bridge.group import statements
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.log import CommitLog, FencedError, LogError, Record
from eventer_bridge.group.postgresql import PostgresqlLog, create_group
from tests.eventer_bridge.group.contract import SERVER_ID, CommitLogContract, append, claim
from tests.support.certificates import make_certificates
from tests.support.postgresql import Cluster
from tests.support.waiting import until

PATIENT_S: Final = 30.0
"""For what is to succeed, however busy the machine is."""

SHORT_S: Final = 0.5
"""For what is to fail."""


@pytest.fixture
def servers(postgresql: Cluster) -> Cluster:
    return postgresql


class TestPostgresqlLog(CommitLogContract):
    @pytest.fixture(autouse=True)
    def _config(self, postgresql: Cluster) -> None:
        self.servers = postgresql
        self.config = PostgresqlConfig(postgresql.dsn())

    @override
    async def create(self, name: str) -> str:
        return await create_group(self.config, name, SERVER_ID, PATIENT_S, unreplicated=False)

    @override
    def open(self, name: str, timeout_s: float = PATIENT_S) -> PostgresqlLog:
        return PostgresqlLog(self.config, name, timeout_s)

    @pytest.fixture
    async def owner(self) -> AsyncIterator[Any]:
        """A connection of the owner."""
        connection = await asyncpg.connect(
            self.servers.dsn(), target_session_attrs="read-write"
        )
        yield connection
        await connection.close()

    @pytest.fixture
    async def hasty(self, name: str, log: CommitLog) -> AsyncIterator[PostgresqlLog]:
        """The group's log, which waits for nothing for long; it is the active member's."""
        async with self.open(name, SHORT_S) as hasty:
            await claim(hasty)
            yield hasty

    async def _waiting(self, owner: Any) -> int:
        """The process that waits for a standby."""
        found: list[int] = []

        async def is_there() -> bool:
            rows = await owner.fetch("SELECT pid FROM pg_stat_activity WHERE wait_event='SyncRep'")
            found.extend(row["pid"] for row in rows)
            return bool(found)

        await until(is_there)
        return found[0]
