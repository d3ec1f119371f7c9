"""Connecting to the primary of several PostgreSQL servers, if its commits are durable.

All hosts are tried at once: one that does not answer must not keep the others waiting. A server
that comes back after another one took over may still take itself for the primary; its timeline is
the lower one.
"""

import asyncio
from collections.abc import Mapping
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

ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""What asyncpg raises."""


class Primary(NamedTuple):
    """A connection to the primary; ``place`` is its host and database.

    ``timeline`` is 0 where commits may be unreplicated.
    """

    connection: Connection
    place: str
    timeline: int


class PostgresqlConnector:
    """Connects to the primary, again and again.

    Args:
        config: the servers.
        timeout_s: most seconds that a statement takes, with connecting.
        unreplicated: whether commits may be lost with the primary.

    Attributes:
        timeline: the highest one that it has seen.
    """

    def __init__(self, config: PostgresqlConfig, timeout_s: float, *, unreplicated: bool) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._unreplicated = unreplicated
        self.timeline = 0

    async def connect(self, deadline_s: float) -> Primary:
        """A new connection; ``LogError``: none by then, with the reason of each host."""
        loop = asyncio.get_running_loop()
        try:
            password = await asyncio.to_thread(self.config.password)
        except ConfigurationError as e:
            raise error_at({self.config.place: f"password_file: {e}"}) from None
        except RuntimeError as e:  # no more threads
            raise error_at({self.config.place: str(e)}) from None
        found: list[Primary] = []
        reasons = dict.fromkeys(self.config.servers(), f"no answer within {self._timeout_s:g} s")

        async def attempt(place: str, uri: str) -> None:
            try:
                found.append(await self._connect_to(place, uri, password))
            except (*ERRORS, ValueError, _RefusedError) as e:  # ValueError: of the URI
                reasons[place] = reason_of(e)

        best = None
        attempts = {loop.create_task(attempt(*i)) for i in self.config.servers().items()}
        try:
            pending = attempts
            while pending and not found and (left_s := deadline_s - loop.time()) > 0:
                _, pending = await asyncio.wait(
                    pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
            if pending and found:
                await asyncio.wait(pending, timeout=limits.OTHER_HOSTS_S)
            best = max(found, key=lambda i: i.timeline, default=None)
        finally:
            for task in attempts:
                task.cancel()
            for primary in found:
                if primary is not best:
                    primary.connection.terminate()
        if best is None:
            raise error_at(reasons)
        self.timeline = max(self.timeline, best.timeline)
        return best

    def problem_of(self, row: asyncpg.Record) -> str | None:
        """Why what was committed can be lost with the primary; see ``statements.STANDBYS``."""
        if self._unreplicated or row["standbys"].strip():
            return None
        return (
            "synchronous_standby_names is empty, so what is committed can be lost with this"
            " server: set it, as to 'ANY 1 (*)', or accept that with unreplicated: true"
        )

    async def _connect_to(self, place: str, uri: str, password: str | None) -> Primary:
        """Connect to one server."""
        connection = await asyncpg.connect(
            uri,
            password=password,
            target_session_attrs="read-write",
            server_settings={**_SESSION, "lock_timeout": f"{self._timeout_s * 1000:.0f}"},
        )
        try:
            settings = await connection.fetchrow(SETTINGS)
            if problem := self.problem_of(settings):
                raise _RefusedError(problem)
            for name in ("fsync", "full_page_writes"):
                if settings[name] != "on" and not self._unreplicated:
                    text = "what is committed can be lost with the power: set it to on"
                    raise _RefusedError(f"{name} is {settings[name]}, so {text}")
            timeline = 0
            if not self._unreplicated:  # such a service may not tell
                timeline = int(await connection.fetchval(TIMELINE), 16)
            if timeline < self.timeline:
                raise _RefusedError("another server has taken over from it")
            return Primary(connection, place, timeline)
        except BaseException:
            connection.terminate()
            raise


def error_at(reasons: Mapping[str, str], *, is_unknown: bool = False) -> LogError:
    """The error of one place, or of several."""
    text = "; at ".join(f"{place}: {reason}" for place, reason in reasons.items())
    return LogError(f"PostgreSQL at {text}", is_unknown=is_unknown)


class _RefusedError(Exception):
    """Why a server is not used."""


def reason_of(error: Exception) -> str:
    """Why it failed, in PostgreSQL's words if it told."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "a standby, or read-only"
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0])
    return refused(error, None) if isinstance(error, OSError) else str(error)
