"""The log in PostgreSQL: the contract, and servers and connections that fail."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from typing_extensions import override

from eventer_bridge import tls
from eventer_bridge.group import limits, statements
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.log import CommitLog, LogError, Record
from eventer_bridge.group.postgresql import PostgresqlLog, create_group
from eventer_bridge.group.primary import Primary
from tests.eventer_bridge.group.contract import SERVER_ID, CommitLogContract, append, claim
from tests.support.certificates import Certificates, make_certificates
from tests.support.machine import free_port
from tests.support.postgresql import Cluster
from tests.support.waiting import until

PATIENT_S: Final = 30.0
"""For what is to succeed, however busy the machine is."""

SHORT_S: Final = 0.5
"""For what is to fail."""


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
        connection = await asyncpg.connect(self.servers.primary.dsn())
        yield connection
        await connection.close()

    @pytest.fixture
    async def hasty(self, name: str, log: CommitLog) -> AsyncIterator[PostgresqlLog]:
        """The log of the active member, who is not patient; it has one record."""
        async with self.open(name, SHORT_S) as hasty:
            await claim(log)
            await log.append(1, 1, [b"1"])
            await hasty.settle(1)
            yield hasty

    @contextlib.contextmanager
    def no_standbys(self) -> Iterator[None]:
        """No standby answers."""
        standbys = [i for i in self.servers.nodes if i is not self.servers.primary]
        for node in standbys:
            node.pause()
        try:
            yield
        finally:
            for node in standbys:
                node.resume()

    # --- outcomes that are not known --------------------------------------------------------

    async def test_an_append_that_no_standby_has(
        self, hasty: PostgresqlLog, log: CommitLog
    ) -> None:
        with self.no_standbys():
            for attempt in (hasty.append(1, 2, [b"2"]), hasty.settle(1), hasty.beat(1, 1)):
                with pytest.raises(LogError, match=r":\d+/postgres: no answer") as caught:
                    await attempt
                assert caught.value.is_unknown
            assert (await log.state()).position == 1  # readers do not wait
        # by the patient one: whatever came before is done by then
        assert await log.settle(1) == 2
        assert await log.read(1, 9, 99) == [Record(2, 1, (b"2",))]

    @pytest.mark.parametrize("function", ["pg_terminate_backend", "pg_cancel_backend"])
    async def test_a_wait_for_standbys_that_is_given_up(
        self, function: str, log: CommitLog, owner: Any
    ) -> None:
        await claim(log)
        with self.no_standbys():
            appending = asyncio.create_task(log.append(1, 1, [b"1"]))
            pid = await _waiting(owner)
            await owner.execute(f"SELECT {function}({pid})")
            with pytest.raises(LogError) as caught:
                await appending
            assert caught.value.is_unknown
            # others may see it, but it could still be lost with the primary
            state = await log.state()
            assert (state.position, state.acknowledged) == (1, 0)
        assert await log.settle(1) == 1
        await log.append(1, 2, [b"2"])

    async def test_a_wait_for_standbys_that_a_setting_ended(
        self, log: CommitLog, owner: Any
    ) -> None:
        await claim(log)
        try:
            with self.no_standbys():
                appending = asyncio.create_task(log.append(1, 1, [b"1"]))
                await _waiting(owner)
                await asyncio.sleep(limits.SLOW_COMMIT_S)
                # as a cluster manager does that would rather lose what it has than wait
                configure = partial(self.servers.primary.configure, synchronous_standby_names="")
                await asyncio.to_thread(configure)
                text = "synchronous_standby_names is empty"
                with pytest.raises(LogError, match=text) as caught:
                    await appending
                assert caught.value.is_unknown
        finally:
            await asyncio.to_thread(self.servers.replicate, "ANY 1 (*)")

    async def test_a_slow_commit_whose_server_is_gone_then_is_not_a_failed_one(
        self, log: CommitLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await claim(log)
        await log.append(1, 1, [b"1"])
        assert isinstance(log, PostgresqlLog)
        monkeypatch.setattr(limits, "SLOW_COMMIT_S", -1.0)  # the clock of the loop is coarse
        monkeypatch.setattr(log._writer, "fetch", self._lost)
        with pytest.raises(LogError, match="lost") as caught:
            await log.append(1, 2, [b"2"])
        assert caught.value.is_unknown
        assert (await log.state()).position == 2

    async def test_a_connection_that_is_lost_as_soon_as_it_is_made(
        self, log: CommitLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(log, PostgresqlLog)
        connector = log._reader._connector
        connect = connector.connect

        async def lose(deadline_s: float) -> Primary:
            primary = await connect(deadline_s)
            primary.connection.terminate()
            return primary

        monkeypatch.setattr(connector, "connect", lose)
        with pytest.raises(LogError, match="connection is closed"):
            await log.state()

    @staticmethod
    async def _lost(_: str) -> None:
        raise LogError("lost")

    async def test_what_comes_late_comes_to_nothing(
        self, hasty: PostgresqlLog, log: CommitLog, owner: Any
    ) -> None:
        await hasty.append(1, 2, [b"2"])  # the next one is a single message
        assert hasty._writer._primary is not None
        pid = hasty._writer._primary.connection.get_server_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(LogError, match=r"no answer within 0\.5 s") as caught:
                await hasty.append(1, 3, [b"late"])
            assert caught.value.is_unknown
            assert await hasty.settle(1) == 2
        finally:
            os.kill(pid, signal.SIGCONT)
        its = "SELECT FROM pg_stat_activity WHERE pid = $1"

        async def is_gone() -> bool:
            return not await owner.fetch(its, pid)

        await until(is_gone)
        assert (await log.state()).position == 2
        await hasty.append(1, 3, [b"3"])
        assert await log.read(2, 9, 99) == [Record(3, 1, (b"3",))]

    async def test_a_settling_that_comes_late_is_settled(
        self, name: str, hasty: PostgresqlLog, log: CommitLog
    ) -> None:
        await log.settle(1)
        with pytest.raises(LogError, match="an earlier attempt came late") as caught:
            await hasty.append(1, 2, [b"2"])
        assert caught.value.is_unknown
        assert await hasty.settle(1) == 1
        await hasty.append(1, 2, [b"2"])

    async def test_parts_that_were_left_are_never_seen(
        self, name: str, hasty: PostgresqlLog, log: CommitLog, owner: Any
    ) -> None:
        async def leave(position: int) -> None:
            for part in range(3):  # and the last one never comes
                its = (name, 1, hasty._attempt, position, part, b"old")
                assert await hasty._writer.change(statements.PART, *its)

        async def count() -> int:
            its = "SELECT count(*) FROM mariner.records WHERE name = $1"
            found: int = await owner.fetchval(its, name)
            return found

        await leave(2)
        assert await log.read(0, 9, 99) == [Record(1, 1, (b"1",))]
        await hasty.append(1, 2, [b"new", b"er"])
        assert await log.read(1, 9, 99) == [Record(2, 1, (b"new", b"er"))]
        assert await count() == 1 + 3
        for leave_behind in (hasty.settle(1), claim(log, "b")):
            await leave(3)
            await leave_behind
            assert await count() == 1 + 3
        await log.append(2, 3, [b"3"])
        assert await log.read(2, 9, 99) == [Record(3, 2, (b"3",))]
        await log.beat(2, 3)
        assert await log.trim(0.0) == 3
        assert await count() == 0

    # --- servers --------------------------------------------------------------------------

    async def test_a_server_without_standbys_is_refused(
        self, name: str, hasty: PostgresqlLog, log: CommitLog
    ) -> None:
        await asyncio.to_thread(self.servers.replicate, "")
        try:
            text = r"synchronous_standby_names is empty.*: set it, as to 'ANY 1"
            with pytest.raises(LogError, match=text) as caught:
                await hasty.append(1, 2, [b"2"])  # it was connected before
            assert caught.value.is_unknown
            async with self.open(name) as new:
                with pytest.raises(LogError, match=text) as caught:
                    await new.state()
            alone = PostgresqlConfig(self.servers.primary.dsn())
            async with PostgresqlLog(alone, name, PATIENT_S, unreplicated=True) as new:
                await claim(new, "b")
                await append(new, 2, b"3")
        finally:
            await asyncio.to_thread(self.servers.replicate, "ANY 1 (*)")

    async def test_another_server_becomes_the_primary(
        self, name: str, log: CommitLog, other: CommitLog
    ) -> None:
        await claim(log)
        await append(log, 1, b"1", b"2")
        await other.state()
        old = self.servers.primary
        old.pause()  # it does not answer, but cuts no connection either
        async with self.open(name, SHORT_S) as hasty:
            text = "; at .*".join(["standby, or read-only", "standby, or read-only"])
            with pytest.raises(LogError, match=text) as caught:
                await hasty.state()
            assert f"127.0.0.1:{old.port}/postgres: no answer within 0.5 s" in str(caught.value)
            await asyncio.to_thread(self.servers.fail_over)
            await until(partial(_answers, hasty))
            assert await hasty.settle(1) == 2
            await hasty.append(1, 3, [b"3"])
            old.resume()  # it takes itself for the primary, though nobody follows it
            # a connection that nothing happened to is not used again either
            assert await other.settle(1) == 3
            assert (await other.state()).position == 3
            for _ in range(5):
                async with self.open(name) as new:  # which has not seen any
                    assert (await new.state()).position == 3
            self.servers.primary.pause()
            hasty._reader._disconnect()
            with pytest.raises(LogError, match="another server has taken over from it"):
                await hasty.state()
            self.servers.primary.resume()
            await asyncio.to_thread(old.rejoin, self.servers.primary)

    async def test_a_role_of_least_rights(self, name: str, log: CommitLog, owner: Any) -> None:
        for role in ("stranger", 'gate"way'):
            quoted = '"' + role.replace('"', '""') + '"'
            await owner.execute(f"DROP ROLE IF EXISTS {quoted}; CREATE ROLE {quoted} LOGIN")
        stranger = PostgresqlConfig(self.servers.dsn("stranger"))
        with pytest.raises(LogError, match=r"permission denied.*`mariner group init --print-sql`"):
            await create_group(stranger, name, SERVER_ID, PATIENT_S, unreplicated=False)
        async with PostgresqlLog(stranger, name, PATIENT_S) as its_log:
            with pytest.raises(LogError, match="permission denied for schema mariner"):
                await its_log.state()
        await owner.execute(statements.set_up('gate"way'))
        its = PostgresqlConfig(self.servers.dsn("gate%22way"))
        assert its.user == 'gate"way'
        other = f"{name} of least rights"
        await create_group(its, other, SERVER_ID, PATIENT_S, unreplicated=False)
        async with PostgresqlLog(its, other, PATIENT_S) as its_log:
            await claim(its_log)
            await its_log.append(1, 1, [b"part", b"last"])
            assert await its_log.settle(1) == 1
            await its_log.beat(1, 1)
            await its_log.note_member("a", 1)
            assert len(await its_log.read(0, 1, 9)) == len(await its_log.members()) == 1
            assert await its_log.trim(0.0) == 1
            assert await its_log.remove_member("a")
            await its_log.release(1)
        await owner.execute('DROP OWNED BY "gate""way"; DROP ROLE "gate""way", stranger')

    async def test_tls_and_a_password(
        self, name: str, log: CommitLog, owner: Any, tmp_path: Path
    ) -> None:
        made = make_certificates(tmp_path / "certs")
        primary, password = self.servers.primary, tmp_path / "password"
        await owner.execute("CREATE ROLE tls SUPERUSER LOGIN PASSWORD 'right'")
        primary.let_in("host all tls 127.0.0.1/32 scram-sha-256")
        trusted = f"sslmode=verify-full&sslrootcert={made.ca}"
        own = f"&sslcert={made.client_cert}&sslkey={made.client_key}"
        try:
            async with _behind_tls(made, primary.port) as port:
                for query, text, problem in (
                    (trusted, "right", "connection was closed"),
                    (
                        f"sslmode=verify-full&sslrootcert={made.client_cert}",
                        "right",
                        "TLS: the serv",
                    ),
                    (trusted + own, "wrong", "password authentication failed for user"),
                    (trusted + own, "right", "none"),
                ):
                    password.write_text(f"{text}\n")
                    dsn = f"postgresql://tls@127.0.0.1:{port}/postgres?{query}"
                    async with PostgresqlLog(PostgresqlConfig(dsn, password), name, 5.0) as its_log:
                        if problem == "none":
                            assert (await its_log.state()).epoch == 0
                        else:
                            with pytest.raises(LogError, match=f":{port}/postgres: {problem}"):
                                await its_log.state()
        finally:
            primary.let_in()
            await owner.execute("DROP ROLE tls")

    async def test_why_there_is_no_connection(self, tmp_path: Path) -> None:
        password = tmp_path / "password"
        password.write_text("secret of ours\n")
        port = free_port()
        config = PostgresqlConfig(f"postgresql://a:hidden@127.0.0.1:{port}/b", password)
        async with PostgresqlLog(config, "g", PATIENT_S) as log:
            with pytest.raises(LogError) as caught:
                await log.state()
            assert str(caught.value) == f"PostgreSQL at 127.0.0.1:{port}/b: connection refused"
            password.unlink()
            with pytest.raises(LogError, match=r"password_file: .*: No such file"):
                await log.state()
        assert "hidden" not in repr(config)

    async def test_a_connection_that_ends_between_two_steps_of_its_driver(
        self, log: CommitLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await log.state()
        prepare = asyncpg.Connection._get_statement

        async def prepare_and_end(connection: Any, *args: Any, **options: Any) -> Any:
            statement = await prepare(connection, *args, **options)
            connection.terminate()  # as when the time is over
            return statement

        with monkeypatch.context() as patched:
            patched.setattr(asyncpg.Connection, "_get_statement", prepare_and_end)
            with pytest.raises(LogError, match=r":\d+/postgres: "):
                await log.state()
        assert (await log.state()).position == 0

    async def test_closing_ends_what_waits(self, log: CommitLog, owner: Any) -> None:
        await claim(log)
        with self.no_standbys():
            settling = asyncio.create_task(log.settle(1))
            await _waiting(owner)
            await log.async_close()
            with pytest.raises(LogError):
                await settling
            with pytest.raises(LogError, match="closed"):
                await log.state()


async def _waiting(owner: Any) -> int:
    """The server process that waits for a standby."""
    found: list[int] = []

    async def is_there() -> bool:
        rows = await owner.fetch("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        found.extend(row["pid"] for row in rows)
        return bool(found)

    await until(is_there)
    return found[0]


async def _answers(log: CommitLog) -> bool:
    with contextlib.suppress(LogError):
        await log.state()
        return True
    return False


@contextlib.asynccontextmanager
async def _behind_tls(made: Certificates, port: int) -> AsyncIterator[int]:
    """A port that has TLS as PostgreSQL does: not all builds of it have TLS themselves."""
    context = tls.server_context(made.server_cert, made.server_key, made.ca)

    async def pipe(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                to.write(data)
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # SSLRequest
        writer.write(b"S")
        with contextlib.suppress(OSError):
            await writer.start_tls(context)
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pipe(reader, server_writer), pipe(server_reader, writer))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
