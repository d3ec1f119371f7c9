"""The log of a group in PostgreSQL.

Each change is one statement, which changes the row of the group under its lock, so that changes
are one after the other, and those of an earlier epoch are none. ``attempt`` does the same for what
one member sent before it called :meth:`settle`: it may still lie in the buffers of a server that
had stopped.

A record is there when its last part is, which comes in one statement with its position.
"""

import secrets
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import asyncpg
from typing_extensions import override

from eventer_bridge.group import limits, statements
from eventer_bridge.group.connection import PostgresqlConnection
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.log import CommitLog, FencedError, LogError, LogState, MemberState, Record
from eventer_bridge.group.primary import PostgresqlConnector
from eventer_bridge.resources import call_on_cancel


class PostgresqlLog(CommitLog):
    """See the module.

    Two connections at most: what waits for replication must not keep readers waiting.

    Args:
        config: the servers.
        name: of the group.
        timeout_s: most seconds that a call takes; one that removes or appends much: each statement.
        unreplicated: whether commits may be lost with the machine of the primary.
    """

    def __init__(
        self, config: PostgresqlConfig, name: str, timeout_s: float, *, unreplicated: bool = False
    ) -> None:
        self._name = name
        self._attempt = -1
        connector = PostgresqlConnector(config, timeout_s, unreplicated=unreplicated)
        self._writer = PostgresqlConnection(connector, timeout_s)
        self._reader = PostgresqlConnection(connector, timeout_s)
        self.async_group.spawn(call_on_cancel, self._disconnect)

    def _disconnect(self) -> None:
        self._writer.close()
        self._reader.close()

    @override
    async def state(self) -> LogState:
        return _state(await self._row())

    @override
    async def claim(self, seen: LogState, member: str, base: str) -> LogState:
        rows = await self._writer.change(
            statements.CLAIM, self._name, seen.epoch, seen.beat, member, base
        )
        if not rows:
            text = "another member has claimed an epoch, or shown that it is active"
            raise FencedError(f"group {self._name}: {text}")
        self._attempt = rows[0]["attempt"]
        return _state(rows[0])

    @override
    async def append(self, epoch: int, position: int, parts: Sequence[bytes]) -> None:
        *others, last = parts
        its = (self._name, epoch, self._attempt, position)
        n_bytes = sum(map(len, parts))
        for index, part in enumerate(others):
            if not await self._writer.change(statements.PART, *its, index, part):
                raise await self._refusal(epoch, position)
        if not await self._writer.change(statements.APPEND, *its, len(others), last, n_bytes):
            raise await self._refusal(epoch, position)

    @override
    async def beat(self, epoch: int, acknowledged: int) -> None:
        if not await self._writer.change(statements.BEAT, self._name, epoch, acknowledged):
            raise await self._refusal(epoch)

    @override
    async def settle(self, epoch: int) -> int:
        rows = await self._writer.change(statements.SETTLE, self._name, epoch)
        if not rows:
            raise await self._refusal(epoch)
        self._attempt = rows[0]["attempt"]
        position: int = rows[0]["position"]
        return position

    @override
    async def release(self, epoch: int) -> None:
        if not await self._writer.change(statements.RELEASE, self._name, epoch):
            raise await self._refusal(epoch)

    @override
    async def read(self, after: int, up_to: int, max_bytes: int) -> list[Record]:
        rows = await self._reader.fetch(
            statements.READ, self._name, after, up_to, max_bytes, limits.READ_RECORDS
        )
        records = []
        for (position, epoch, n_parts), its in groupby(rows, itemgetter(0, 1, 2)):
            parts = tuple(row["data"] for row in its)
            if len(parts) != n_parts:
                text = f"record {position} has {len(parts)} of its {n_parts} parts"
                raise LogError(f"group {self._name}: {text}")
            records.append(Record(position, epoch, parts))
        return records

    @override
    async def note_member(self, name: str, position: int) -> None:
        await self._reader.fetch(statements.NOTE_MEMBER, self._name, name, position)

    @override
    async def members(self) -> list[MemberState]:
        rows = await self._reader.fetch(statements.MEMBERS, self._name)
        return [
            MemberState(i["member"], i["position"], i["seen_s"], max(i["lag_s"] or 0.0, 0.0))
            for i in rows
        ]

    @override
    async def remove_member(self, name: str) -> bool:
        return bool(await self._reader.change(statements.REMOVE_MEMBER, self._name, name))

    @override
    async def trim(self, keep_s: float) -> int:
        n_removed = 0
        has_more = True
        while has_more:
            trimmed = await self._reader.change(
                statements.TRIM, self._name, keep_s, limits.ALONE_KEEP_S, limits.READ_RECORDS
            )
            has_more = bool(trimmed)
            while True:
                [row] = await self._reader.change(
                    statements.REMOVE_TRIMMED, self._name, limits.TRIM_RECORDS
                )
                n_removed += row["n_records"]
                if row["n_rows"] == 0:
                    break
        return n_removed

    async def _row(self) -> asyncpg.Record:
        cause = None
        try:
            rows = await self._reader.fetch(statements.STATE, self._name)
        except LogError as e:
            if not isinstance(e.__cause__, asyncpg.UndefinedTableError):
                raise
            rows, cause = (), e
        if not rows:
            where = f"PostgreSQL at {self._reader.place}"
            text = f"{where} has no group {self._name}: make it with `mariner group init`"
            raise LogError(text) from cause
        return rows[0]

    async def _refusal(self, epoch: int, position: int | None = None) -> LogError:
        """Why nothing was changed."""
        row = await self._row()
        where = f"group {self._name}"
        if row["epoch"] != epoch:
            active = row["active"] or "another member"
            return FencedError(f"{where}: {active} has claimed epoch {row['epoch']} since")
        if row["active"] is None:
            return FencedError(f"{where}: epoch {epoch} was released")
        if position is not None and row["position"] != position - 1:
            text = f"the log ends at {row['position']}, expected {position - 1}"
            return FencedError(f"{where}: {text}")
        # a call of settle that was given up has come to the server after all
        return LogError(f"{where}: an earlier attempt came late", is_unknown=True)


def _state(row: asyncpg.Record) -> LogState:
    return LogState(**{name: row[name] for name in LogState._fields})


async def create_group(
    config: PostgresqlConfig, name: str, server_id: int, timeout_s: float, *, unreplicated: bool
) -> str:
    """Make a group, and the tables if there are none; its id. ``LogError``: it exists already."""
    connector = PostgresqlConnector(config, timeout_s, unreplicated=unreplicated)
    connection = PostgresqlConnection(connector, timeout_s)
    try:
        [(has_tables,)] = await connection.fetch(statements.HAS_TABLES)
        if not has_tables:
            for statement in statements.TABLES:
                await connection.fetch(statement)
        group_id = secrets.token_hex(16)
        if not await connection.change(statements.CREATE, name, group_id, server_id):
            raise LogError(f"PostgreSQL at {connection.place} has a group {name} already")
        return group_id
    except LogError as e:
        if isinstance(e.__cause__, asyncpg.InsufficientPrivilegeError):
            advice = "an administrator can run what `mariner group init --print-sql` prints"
            raise LogError(f"{e}: {advice}") from e
        raise
    finally:
        connection.close()
