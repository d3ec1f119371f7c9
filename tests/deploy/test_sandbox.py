"""What systemd's unit forbids, the gateway does not need: its system calls are looked at."""

import asyncio
import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from eventer_bridge import tls
from tests.support.certificates import make_certificates
from tests.support.gateway import Gateway, gateway
from tests.support.inprocess import APP, metrics_text_of
from tests.support.peer import RawPeer, event, register_req
from tests.support.schemas import LARGE, NUMBERS

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
QUERY: Final = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["*"]],
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}


def can_trace() -> bool:
    """Whether system calls can be looked at here, and what systemd means by its groups of them."""
    if shutil.which("strace") is None or shutil.which("systemd-analyze") is None:
        return False
    command = ["strace", "-o", "/dev/null", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_trace(), reason="there is no strace or no systemd-analyze")


def calls_of(group: str) -> set[str]:
    """System calls of a group such as ``@system-service``."""
    command = ["systemd-analyze", "syscall-filter", group]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: set[str] = set()
    for line in map(str.strip, output.splitlines()[1:]):
        if line.startswith("@"):
            found |= calls_of(line)
        elif line and not line.startswith("#"):
            found.add(line)
    return found


def check(unit: str, trace: str, *writable: Path) -> None:
    """See that what was traced is what a unit allows."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(DEPLOY / unit)
    service = parser["Service"]
    used = set(re.findall(r"^\d+ +(\w+)\(", trace, re.MULTILINE))
    assert {"openat", "mmap"} <= used
    assert used <= calls_of(service["SystemCallFilter"])
    assert service["MemoryDenyWriteExecute"] == "yes"
    assert not re.findall(r"PROT_WRITE\|PROT_EXEC", trace)
    assert not re.findall(r"^.*mprotect\(.*PROT_EXEC.*$", trace, re.MULTILINE)
    families = set(re.findall(r"\bsocket\((\w+)", trace))
    assert families <= set(service["RestrictAddressFamilies"].split())
    assert service["ProtectSystem"] == "strict"
    # but for files without a name, by which `check` finds out whether one could be made
    opened = r'openat\(AT_FDCWD, "([^"]+)", (?![^)]*O_TMPFILE)[^)]*O_(?:WRONLY|RDWR|CREAT)'
    written = set(re.findall(opened, trace))
    written |= set(re.findall(r'(?:mkdir|rename|unlink)(?:at)?\([^"\n]*"([^"]+)"', trace))
    places = tuple(f"{i}/" for i in writable)
    assert [i for i in written if i.startswith(places)]
    # relative ones belong to a directory that is open; in /proc are names of threads, and sockets
    absolute = {i for i in written if i.startswith("/") and not i.startswith("/proc/self/")}
    # Python goes on where it cannot keep what it compiled
    others = {i for i in absolute if not i.startswith(places) and "/__pycache__/" not in i}
    assert others <= {*map(str, writable), "/dev/null"}


async def use(running: Gateway, ca: Path) -> None:
    """Have a gateway do what it can."""
    async with await RawPeer.init(running.port, tls.client_context(ca=ca)) as peer:
        for i in range(100):
            await peer.request(register_req(i, event("a", str(i))))
        assert (await peer.request(register_req(100, event("n", value=LARGE))))["success"]
        await peer.request(QUERY)
    assert "mariner_store_bytes" in await metrics_text_of(running.http_port)


async def run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0


async def test_gateway_and_backup(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    rules = [
        {"subscriptions": [["n"]], "schema_id": NUMBERS["$id"]},
        {"subscriptions": [["*"]]},
    ]
    trace, of_backup = tmp_path / "trace", tmp_path / "trace-of-backup"
    backups = tmp_path / "backups"
    conf = ("--conf", str(tmp_path / "gateway.json"))
    async with gateway(
        tmp_path,
        clients=[{**APP, "register_events": rules}],
        schemas=[NUMBERS],
        http=True,
        tls={"cert": str(made.server_cert), "key": str(made.server_key)},
        core={"eventer_server": {"host": "127.0.0.1", "port": 0}},
        arguments=["--watch"],
        wrapper=["strace", "-f", "-qq", "-o", str(trace)],
    ) as running:
        await use(running, made.ca)
        mariner = (sys.executable, "-m", "mariner")
        strace = ("strace", "-f", "-qq", "-o", str(of_backup))
        await run(*strace, *mariner, "backup", *conf, "--to", str(backups), "--keep", "1")
        await run(*mariner, "reload", *conf)
        [traced] = psutil.Process(running.pid).children()
        traced.terminate()
        await running.process.wait()
    check("mariner.service", trace.read_text(), tmp_path / "events")
    backup = "backup/mariner-backup.service"
    check(backup, of_backup.read_text(), tmp_path / "events", backups)
