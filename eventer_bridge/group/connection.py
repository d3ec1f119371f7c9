"""A connection to the PostgreSQL that holds the log of a group.

It is made when it is needed, and anew after each failure. Every statement is a transaction of its
own, so that none is left open however this process ends, and has a deadline.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

import asyncpg

from eventer_bridge.group import limits
from eventer_bridge.group.log import LogError
from eventer_bridge.group.primary import ERRORS, PostgresqlConnector, Primary, error_at, reason_of
from eventer_bridge.group.statements import STANDBYS

Rows: TypeAlias = Sequence[asyncpg.Record]


class PostgresqlConnection:
    """See the module; for the event loop's thread, to be closed after use.

    Args:
        connector: to the primary.
        timeout_s: most seconds that a statement takes, with connecting and those before it.
    """

    def __init__(self, connector: PostgresqlConnector, timeout_s: float) -> None:
        self._connector = connector
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._primary: Primary | None = None
        self._connecting: asyncio.Task[Primary] | None = None
        self._is_closed = False
        self._warning: str | None = None  # of the statement that runs

    async def fetch(self, statement: str, *args: object) -> Rows:
        """Run a statement that changes nothing; ``LogError``: it failed."""
        return await self._in_turn(statement, args)

    async def change(self, statement: str, *args: object) -> Rows:
        """Run a statement that changes the log, and returns ``statements.STANDBYS`` if it did.

        ``LogError``: it failed, or nobody knows.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        rows = await self._in_turn(statement, args, changes=True)
        told = [*rows[:1]]
        if rows and loop.time() - began_s > limits.SLOW_COMMIT_S:
            # a cluster manager may have ended the wait: by a setting that came after the statement
            try:
                told += await self.fetch(f"SELECT {STANDBYS}")
            except LogError as e:  # but what was to be changed is
                raise LogError(str(e), is_unknown=True) from e
        for row in told:
            if problem := self._connector.problem_of(row):
                raise self._error(problem, is_unknown=True)
        return rows

    @property
    def place(self) -> str:
        """Where it leads to."""
        return self._connector.config.place if self._primary is None else self._primary.place

    def close(self) -> None:
        """End it, and what waits for it."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._disconnect()

    async def _in_turn(
        self, statement: str, args: Sequence[object], *, changes: bool = False
    ) -> Rows:
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._turn.acquire()
        except TimeoutError:
            raise self._error("the statement before has not ended") from None
        try:
            primary = await self._connected(deadline_s)
            return await self._run(primary, deadline_s, statement, args, changes)
        finally:
            self._turn.release()

    async def _connected(self, deadline_s: float) -> Primary:
        if self._is_closed:
            raise self._error("closed")
        if self._primary is not None and not self._primary.connection.is_closed():
            if self._primary.timeline == self._connector.timeline:
                return self._primary
            self._disconnect()  # another connection found a later primary
        self._primary = None
        self._connecting = asyncio.create_task(self._connector.connect(deadline_s))
        try:
            self._primary = await self._connecting
        except asyncio.CancelledError:
            if self._is_closed:
                raise self._error("closed") from None
            raise
        try:
            self._primary.connection.add_log_listener(self._on_message)
        except asyncpg.InterfaceError as e:  # it was lost as soon as it was made
            raise self._error(reason_of(e)) from e
        return self._primary

    async def _run(
        self,
        primary: Primary,
        deadline_s: float,
        statement: str,
        args: Sequence[object],
        changes: bool,
    ) -> Rows:
        connection = primary.connection
        self._warning = None
        loop = asyncio.get_running_loop()
        # asyncpg's own timeout would cancel the statement, and with it the wait for replication
        timer = loop.call_at(deadline_s, connection.terminate)
        try:
            rows: Rows = await connection.fetch(statement, *args)
        except Exception as e:
            # asyncpg raises anything where it is terminated between two of its steps
            if not (isinstance(e, ERRORS) or connection.is_closed()):
                self._disconnect()
                raise
            # an error that the server tells, and stays connected, has undone the statement
            is_unknown = changes and connection.is_closed()
            is_late = loop.time() >= deadline_s
            text = f"no answer within {self._timeout_s:g} s" if is_late else reason_of(e)
            self._disconnect()
            raise self._error(text, is_unknown=is_unknown) from e
        except BaseException:
            self._disconnect()
            raise
        finally:
            timer.cancel()
        if changes and self._warning is not None:
            # such as "canceling wait for synchronous replication": it is there, maybe only there
            raise self._error(self._warning, is_unknown=True)
        return rows

    def _on_message(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.severity_en == "WARNING":
            self._warning = message.message

    def _disconnect(self) -> None:
        if self._primary is not None:
            self._primary.connection.terminate()

    def _error(self, text: str, *, is_unknown: bool = False) -> LogError:
        return error_at({self.place: text}, is_unknown=is_unknown)
