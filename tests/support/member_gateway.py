"""Gateways in the process of the test that are members of a group, on a real PostgreSQL."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from eventer_bridge.group import postgresql
from eventer_bridge.group.dsn import PostgresqlConfig
from mariner.gateway.gateway import Gateway
from tests.support.inprocess import running_gateway

TAKEOVER_S: Final = 1.0


async def make_group(dsn: str, name: str = "plant") -> None:
    """Make a group in a PostgreSQL."""
    await postgresql.create_group(PostgresqlConfig(dsn), name, 1, 10, unreplicated=False)


@contextlib.asynccontextmanager
async def member_gateway(
    folder: Path, dsn: str, member: str, name: str = "plant", **keys: Any
) -> AsyncIterator[Gateway]:
    """A gateway that is a member of a group, whose store is in a folder."""
    store = folder / member
    group = {
        "log": {"type": "postgresql", "dsn": dsn},
        "name": name,
        "member": member,
        "takeover_s": TAKEOVER_S,
    }
    backend = {"type": "rocksdb", "path": str(store)}
    core = {"server_id": 1, "backend": backend, "group": group}
    async with running_gateway(event_core=core, **keys) as gateway:
        yield gateway
