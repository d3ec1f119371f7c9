"""Connecting to the primary of several PostgreSQL servers, if its commits are durable.

All hosts are tried at once: one that does not answer must not keep the others waiting. A server
that comes back after another one took over may still take itself for the primary; its timeline is
the lower one.
"""

import asyncio
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg

from eventer_bridge.errors import ConfigurationError
from eventer_bridge.group import limits
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.log import LogError
from eventer_bridge.group.statements import SETTINGS, TIMELINE
from eventer_bridge.net.connecting import refused

Connection: TypeAlias = Any
"""``asyncpg.Connection``, which has no types."""

_SESSION: Final = {
    "application_name": "mariner",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",  # would end a wait for replication, and leave its outcome open
}


class Primary(NamedTuple):
    """A connection to the primary; ``place`` is its host and database.

    ``timeline`` is 0 if there is no other host.
    """

    connection: Connection
    place: str
    timeline: int


class Connector:
    """Connects to the primary, again and again.

    Args:
        config: the servers.
        timeout_s: most seconds that connecting takes, and a statement that waits for another one.
        unreplicated: whether commits may be lost with the primary.
    """

    def __init__(self, config: PostgresqlConfig, timeout_s: float, *, unreplicated: bool) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._unreplicated = unreplicated
        self._timeline = 0  # the highest one ever seen

    async def connect(self) -> Primary:
        """A new connection; ``LogError``: none, with the reason of each host."""
        try:
            password = await asyncio.to_thread(self.config.password)
        except ConfigurationError as e:
            raise LogError(f"PostgreSQL at {self.config.place}: {e}") from None
        found: list[Primary] = []
        reasons: list[str] = []

        async def attempt(place: str, uri: str) -> None:
            try:
                found.append(await self._connect_to(place, uri, password))
            except LogError as e:
                reasons.append(str(e))

        best = None
        attempts = [
            asyncio.create_task(attempt(place, uri)) for place, uri in self.config.servers().items()
        ]
        try:
            pending = set(attempts)
            while pending and not found:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if pending:
                await asyncio.wait(pending, timeout=limits.OTHER_HOSTS_S)
            best = max(found, key=lambda i: i.timeline, default=None)
        finally:
            for task in attempts:
                task.cancel()
            for primary in found:
                if primary is not best:
                    primary.connection.terminate()
        if best is None:
            raise LogError("; ".join(reasons))
        self._timeline = best.timeline
        return best

    def check_standbys(self, row: asyncpg.Record, place: str, *, is_unknown: bool = False) -> None:
        """``LogError``: nobody but the primary has what it commits; see ``statements.STANDBYS``."""
        if not self._unreplicated and not row["standbys"].strip():
            raise LogError(
                f"PostgreSQL at {place}: synchronous_standby_names is empty, so what is committed"
                " can be lost with this server: set it, as to 'ANY 1 (*)', or accept that with"
                " unreplicated: true",
                is_unknown=is_unknown,
            )

    async def _connect_to(self, place: str, uri: str, password: str | None) -> Primary:
        """Connect to one server; ``LogError``: it cannot be the one."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await asyncpg.connect(
                    uri,
                    password=password,
                    target_session_attrs="read-write",
                    timeout=self._timeout_s,
                    server_settings={**_SESSION, "lock_timeout": f"{self._timeout_s * 1000:.0f}"},
                )
                try:
                    return await self._check(connection, place)
                except BaseException:
                    connection.terminate()
                    raise
        except TimeoutError:
            text = f"no connection within {self._timeout_s:g} s"
            raise LogError(f"PostgreSQL at {place}: {text}") from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as e:
            raise LogError(f"PostgreSQL at {place}: {reason_of(e)}") from e

    async def _check(self, connection: Connection, place: str) -> Primary:
        settings = await connection.fetchrow(SETTINGS)
        self.check_standbys(settings, place)
        if not self._unreplicated:
            for name in ("fsync", "full_page_writes"):
                if settings[name] != "on":
                    text = "what is committed can be lost with the power; set it to on"
                    raise LogError(f"PostgreSQL at {place}: {name} is {settings[name]}: {text}")
        timeline = 0
        if len(self.config.servers()) > 1:
            timeline = int(await connection.fetchval(TIMELINE), 16)
        if timeline < self._timeline:
            raise LogError(f"PostgreSQL at {place}: another server has taken over from it")
        return Primary(connection, place, timeline)


def reason_of(error: Exception) -> str:
    """Why it failed, in PostgreSQL's words if it told."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "a standby, or read-only"
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0])
    return refused(error, None) if isinstance(error, OSError) else str(error)
