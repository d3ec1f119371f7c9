"""``mariner status`` and what it prints, of a gateway in a process of its own."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from mariner.cli.connections import render as render_connections
from mariner.cli.status import render
from mariner.cli.values import duration
from mariner.gateway.connection_requests import ConnectionInfo, ConnectionsAnswer
from mariner.gateway.status import (
    ClientStatus,
    ConnectionStatus,
    CursorStatus,
    GatewayStatus,
    GroupStatus,
    MemberStatus,
    QuotaUse,
    RemoteStatus,
    WireStatus,
)
from tests.support import forked
from tests.support.gateway import gateway
from tests.support.inprocess import APP
from tests.support.peer import RawPeer, event, register_req


async def run(*arguments: str) -> tuple[int, str, str]:
    """``mariner status``: exit code, output, errors."""
    process = await forked.start("mariner", "status", *arguments, environment=os.environ)
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


async def test_tables_and_json(tmp_path: Path) -> None:
    conf = "--conf", str(tmp_path / "gateway.json")
    clients = [{**APP, "quota": {"max_connections": 1}}]
    async with (
        gateway(tmp_path, clients=clients) as running,
        await RawPeer.init(running.port, cursor="c", persisted=True) as peer,
    ):
        assert (await peer.receive())["msg_type"] == "up_to_date"
        assert (await peer.request(register_req(1, event("a"))))["success"]
        code, text, errors = await run(*conf)
        assert (code, errors) == (0, "")
        code, line, _ = await run(*conf, "--json")
        assert code == 0
        code, connections, _ = await run(*conf, "--connections")
        assert code == 0
        host, port = peer.writer.get_extra_info("sockname")
        closing = await forked.start(
            *("mariner", "disconnect", *conf, f"{host}:{port}"), environment=os.environ
        )
        closed, _ = await closing.communicate()
        assert closed.decode() == f"closed: {host}:{port} (mariner) of client app\n"
        assert await peer.is_closed_by_server()
    assert re.match(r"gateway +gateway [\d.]+, OPERATIONAL, up [\d.]+ s, pid \d+\n", text)
    assert re.search(rf"\nstore +rocksdb {tmp_path}/events: \d+ events since 20", text)
    assert re.search(r"\n +\d types, [\d.]+ .?B, [\d.]+ .B free, \d+ .?.?.?.?.? to compact\n", text)
    assert re.search(r"\nmariner +1 +1 +0 +0 +1 +0 +0 +0\n", text)
    assert re.search(r"\napp +mariner +1 +0 +0 +max_connections 1/1\n", text)
    assert re.search(r"\nCURSOR +CLIENT +CONNECTED .*\nc +app +yes +\d+ ", text)
    header, row = connections.splitlines()
    assert header.split()[:5] == ["CLIENT", "WIRE", "ADDRESS", "CONNECTED", "TLS"]
    assert re.fullmatch(rf"app +mariner +{host}:{port} +[\d.]+ s +0 bytes +0 bytes .*", row)
    found = json.loads(line)
    [cursor] = found["cursors"]
    assert (cursor["client"], cursor["name"], cursor["is_connected"]) == ("app", "c", True)
    assert (cursor["n_parked"], {*cursor} >= {"lag_events", "lag_s"}) == (0, True)
    assert found["pid"] == running.pid
    [client] = found["clients"]
    assert client["events_registered"] == 1
    assert client["registered_per_s"] == 0
    assert client["quota"]["max_connections"]["used"] == 1


async def test_watching_until_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    async with gateway(tmp_path):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mariner", "status", "--conf", str(path)),
            *("--watch", "--json", "--interval", "0.1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        uptimes = [json.loads(await process.stdout.readline())["uptime_s"] for _ in range(3)]
        assert uptimes == sorted(set(uptimes))
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
        assert (process.returncode, stderr) == (130, b"")


async def test_errors_of_the_gateway_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    async with gateway(tmp_path):
        good = path.read_text()
        path.write_text(json.dumps({**json.loads(good), "name": 5}))
        reload = await forked.start(
            *("mariner", "reload", "--conf", str(path)), environment=os.environ
        )
        await reload.communicate()
        assert reload.returncode == 2
        path.write_text(good)
        code, text, _ = await run("--conf", str(path))
    assert code == 0
    assert "\nreload   failed: the configuration in use is not that of the file\n" in text
    assert re.search(r"\nlast errors\n20\S+ configuration not reloaded, reasons: \[", text)


async def test_without_a_gateway(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    async with gateway(tmp_path, backend="memory"):
        code, stdout, stderr = await run("--conf", str(path))
    assert (code, stdout) == (2, "")
    text = "control: missing, and there is no store that would have a socket"
    assert stderr == f"mariner: error: {path}: {text}\n"
    async with gateway(tmp_path):
        pass
    code, stdout, stderr = await run("--conf", str(path))
    assert (code, stdout) == (1, "")
    socket = tmp_path / "events" / "control.sock"
    assert stderr == (
        f"mariner: error: {socket}: the gateway cannot be reached: No such file or directory\n"
    )
    code, _, stderr = await run("--conf", str(tmp_path / "none.json"))
    assert (code, stderr) == (
        2,
        f"mariner: error: {tmp_path}/none.json: No such file or directory\n",
    )


def shown(status: GatewayStatus, width: int = 200) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(render(status))
    return captured.get()


STATUS = GatewayStatus(
    name="x",
    version="1",
    pid=1,
    status="STANDBY",
    not_ready="the disk is full",
    started="",
    uptime_s=200_000,
    store=None,
    wires={"mariner": WireStatus(1, 1, 1_234_567, 0, 2, 3)},
    clients=[
        ClientStatus(
            wire="mariner",
            name="[red]\x1b[2J[/red]",
            connections=1,
            subscriptions=0,
            events_registered=0,
            events_notified=0,
            unread_bytes=2_000_000,
            behind_s=75,
            is_held=True,
            held_s=3,
            quota={
                "events_per_s": QuotaUse(10, 9.7, 100, 0),
                "max_connections": QuotaUse(10, 1),
                "max_event_types": QuotaUse(10, 1, None, 4),
            },
        )
    ],
    clients_left_out=1_500,
    slowest=[ConnectionStatus("mariner", "\x07", "127.0.0.1:1", 2_000_000, 75)],
    cursors=[
        CursorStatus("app", "c\x1b[2J", 1_000, 75, is_connected=False, n_parked=2),
        CursorStatus("[b]app[/b]", "d", 0, 0, is_connected=True, n_parked=0),
    ],
    remotes=[
        RemoteStatus("a", is_connected=False, refused_events=0, is_synced=False, lag_s=2.5),
        RemoteStatus("b", is_connected=True, refused_events=0, is_synced=False),
        RemoteStatus("c", is_connected=True, refused_events=0, is_synced=True),
        RemoteStatus("d", is_connected=True, refused_events=1_000),
    ],
    group=GroupStatus(
        name="plant\x1b[2J",
        member="b",
        is_active=False,
        active="a",
        since="2026-11-26T17:00:00+00:00",
        epoch=1_007,
        position=1_000,
        acknowledged=13_001,
        log_records=50_000,
        lag_records=12_001,
        lag_s=75,
        silent_s=0.25,
        takeovers=1,
        members=[
            MemberStatus("b\x07", False, 1_000, 12_001, 75, 200),
            MemberStatus("a", True, 13_001, 0, 0, 0.5),
        ],
    ),
    modules=[],
    days_left={"mariner.tls.cert": 12.34},
    is_reloaded=True,
    errors=[{"time": "T", "level": "ERROR", "logger": "l", "message": "m\x1b[2J", "peer": "p"}],
)


def test_what_is_wrong_is_shown_and_cannot_control_the_terminal() -> None:
    text = shown(STATUS)
    assert "\x1b" not in text
    assert "\x07" not in text
    lines = [re.sub(" +", " ", i).strip() for i in text.splitlines()]
    assert lines[:8] == [
        "gateway x 1, STANDBY, up 2 d 7 h, pid 1",
        "not ready the disk is full",
        r"group plant\x1b[2J: this is member b; member a is active since 2026-11-26T17:00:00+00:00,"
        " epoch 1,007",
        "position 1,000 of 13,001, 1 min 15 s behind; records in its log: 50,000;"
        " its log changed 0.2 s ago",
        "certificate mariner.tls.cert: 12.3 days left",
        "",
        "MEMBER STATE POSITION RECORDS BEHIND BEHIND LAST SEEN",
        r"b\x07 follower 1,000 12,001 1 min 15 s 3 min 20 s ago",
    ]
    assert "a active 13,001 0 0.5 s ago" in lines
    quota = "held, events_per_s 10/10, max_event_types 1/10"
    assert rf"[red]\x1b[2J[/red] mariner 1 2.0 MB 1 min 15 s {quota}" in lines
    assert "and 1,500 more" in lines
    assert r"\x07 mariner 127.0.0.1:1 2.0 MB 1 min 15 s" in lines
    assert "mariner 1 1 1,234,567 0 3 2" in lines
    assert r"c\x1b[2J app no 1,000+ 1 min 15 s 2" in lines
    assert "d [b]app[/b] yes 0 0" in lines
    for line in ("a not connected 2.5 s 0", "b catching up 0", "c synced 0", "d connected 1,000"):
        assert line in lines
    assert lines[-1] == r"T m\x1b[2J, peer: p"
    assert "gateway" in shown(STATUS, width=40)


def test_a_group_of_which_little_is_known() -> None:
    new = GroupStatus("p", "b", False, None, None, None, 0, None, None, 0, 0, 9, 0, [])
    texts = shown(replace(STATUS, group=new))
    assert "p: this is member b; its log was not read yet" in texts
    assert "position 0; its log changed 9.0 s ago" in texts
    assert "MEMBER" not in texts
    told = replace(new, epoch=2, since="T")
    assert "no member is active since T, epoch 2" in shown(replace(STATUS, group=told))


def test_connections_are_shown_and_cannot_control_the_terminal() -> None:
    told = ConnectionInfo(
        wire="mariner",
        client="[b]\x1b[2J",
        peer="[::1]:5",
        since="2026-11-26T17:00:00+00:00",
        connected_s=75,
        tls="TLSv1.3",
        certificate="CN:\x07",
        certificate_until="2027-11-26T17:00:00+00:00",
        subscriptions=1_002,
        subscribed=["a/*", "\x1b"],
        received_bytes=5,
        sent_bytes=6,
        unread_bytes=2_000_000,
        buffered_bytes=3_000_000,
        behind_s=5,
        not_read=["it does not read"],
        sent_bytes_per_s=1_234.5,
    )
    console = Console(width=300, force_terminal=False)
    with console.capture() as captured:
        console.print(render_connections(ConnectionsAnswer(1, [told], 4_000)))
    lines = [re.sub(" +", " ", i).strip() for i in captured.get().splitlines()]
    assert lines == [
        "CLIENT WIRE ADDRESS CONNECTED TLS CERTIFICATE SUBSCRIBED"
        " IN/S OUT/S BUFFERED BEHIND NOT READ FROM",
        r"[b]\x1b[2J mariner [::1]:5 1 min 15 s TLSv1.3 CN:\x07 until 2027-11-26 a/*, \x1b, and"
        " 1,000 more 1.2 kB 3.0 MB 5.0 s it does not read",
        "and 4,000 more: less far behind, with less buffered, or older",
    ]


def test_durations() -> None:
    assert [duration(i) for i in (0.04, 9.96, 59, 61, 3_661, 90_000)] == [
        *("0.0 s", "10.0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"),
    ]
