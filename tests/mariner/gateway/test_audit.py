"""What a gateway writes into its audit trail, and that no secret is in it."""

import asyncio
import json
import logging
import shutil
import ssl
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import tls
from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.restoring import ext_begin_history
from eventer_bridge.control import client as requests
from eventer_bridge.control.client import Addressee, Identity
from eventer_bridge.core import tokens
from eventer_bridge.core.quotas import Account
from eventer_bridge.errors import ConfigurationError, EventerBridgeError
from eventer_bridge.eventer import client as eventer
from mariner import limits
from mariner.gateway import config_check, config_file, cursor_requests
from mariner.gateway.counts import RegistrationsAudit
from mariner.gateway.logs.audit import AuditConfig
from tests.mariner.gateway.reloaded import client, running
from tests.mariner.gateway.test_cursors import cursors_of, reader
from tests.mariner.gateway.test_quotas import eventer_gateway
from tests.mariner.gateway.test_replay import serving
from tests.support.certificates import issue_client, make_certificates, write_crl
from tests.support.gateway import gateway
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import INIT, RawPeer, event, register_req

TIMEOUT_S: Final = 60.0


class Trail:
    """Lines of this process' audit trail."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "audit")
        self._caplog = caplog

    def of(self, action: str) -> list[dict[str, Any]]:
        """Fields of the lines about an action."""
        standard = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
        return [
            {name: value for name, value in vars(i).items() if name not in standard}
            for i in self._caplog.records
            if i.name == "audit" and i.msg == action
        ]

    async def until(self, action: str, n: int = 1) -> list[dict[str, Any]]:
        """Wait until there are so many of them."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.of(action)) < n:
                await asyncio.sleep(0.005)
        return self.of(action)


@pytest.fixture
def trail(caplog: pytest.LogCaptureFixture) -> Trail:
    return Trail(caplog)


async def test_who_comes_and_who_is_declined(tmp_path: Path, trail: Trail) -> None:
    several = [
        APP,
        client(name="expired", token={"value": "expired", "expires": "2020-01-01"}),
        client(name="one", quota={"max_connections": 0}),
    ]
    async with running(tmp_path, clients=several) as it:
        async with await RawPeer.init(it.port) as peer:
            host, port = peer.writer.get_extra_info("sockname")
            assert trail.of("connected") == [{"peer": f"{host}:{port}", "client": "app"}]
            assert trail.of("declined") == []
        answers = {
            await it.answer(client_token="guessed-7"),
            await it.answer(client_name="nobody"),
            await it.answer(client_name="expired", client_token="expired"),
        }
        assert answers == {"invalid client name or token"}  # they are not told apart
        assert "too many connections" in (await it.answer(client_name="one") or "")
        assert [(i["client"], i["reason"]) for i in trail.of("declined")] == [
            ("app", "invalid client name or token: wrong token"),
            ("nobody", "invalid client name or token: unknown name"),
            ("expired", "invalid client name or token: expired token"),
            ("one", "too many connections of this client (max_connections: 0)"),
        ]
        assert trail.of("quota") == [{"client": "one", "quota": "max_connections"}]
        await it.reload(clients=several[1:])
        assert await it.answer() == "invalid client name or token"
        assert trail.of("declined")[-1]["reason"] == "invalid client name or token: unknown name"


async def test_eventer_clients(tmp_path: Path, trail: Trail) -> None:
    async with eventer_gateway(tmp_path, server={"token": "hat"}) as (_, address):
        async with await eventer.connect(address, "gui", client_token="hat"):
            [line] = trail.of("connected")
            assert line["client"] == "gui"
        with pytest.raises(EventerBridgeError):
            await eventer.connect(address, "gui", client_token="guess")
        [line] = trail.of("declined")
        assert (line["client"], line["reason"]) == ("gui", "invalid client token: wrong token")


async def test_handshakes_and_revoked_certificates(tmp_path: Path, trail: Trail) -> None:
    certificates = make_certificates(tmp_path / "ca")
    folder = certificates.ca.parent
    revoked = issue_client(folder, "guest")
    write_crl(folder)
    server = {
        "cert": str(certificates.server_cert),
        "key": str(certificates.server_key),
        "client_ca": str(certificates.ca),
        "crl": str(folder / "crl.pem"),
    }
    guest = client(name="guest", token=None, certificate="guest")
    listener = {"host": "127.0.0.1", "port": 0, "tls": server}

    def context(name: str) -> ssl.SSLContext:
        return tls.client_context(certificates.ca, folder / f"{name}.pem", folder / f"{name}.key")

    async with running(tmp_path, clients=[guest], mariner=listener) as it:
        async with await RawPeer.init(
            it.port, context("guest"), client_name="guest", client_token=None
        ) as peer:
            write_crl(folder, revoked)
            await it.reload()
            await it.closed(peer)
        [line] = await trail.until("removed")
        assert line["client"] == "guest"
        assert "revoked" in line["reason"]
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await RawPeer.init(it.port, context("guest"), client_name="guest", client_token=None)
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        first, second = await trail.until("handshake failed", 2)
        assert first["reason"] == "the peer's certificate: certificate revoked"
        assert second["reason"] == "the peer speaks HTTP, not TLS"


async def test_reloads_with_their_difference(tmp_path: Path, trail: Trail) -> None:
    async with running(tmp_path) as it:
        many = [client(name=f"c{i}") for i in range(2 * limits.AUDITED_ITEMS + 1)]
        await it.reload(clients=[client(token=tokens.sha256_text("other"))], name="x")
        assert trail.of("reload") == [
            {"changed": ["clients[app].token"], "needs_restart": ["name"]}
        ]
        await it.reload(clients=many)
        changed = [key for line in trail.of("reload")[1:] for key in line["changed"]]
        assert changed == sorted(
            ["clients[app]: removed", *(f"clients[c{i}]: added" for i in range(len(many)))]
        )
        assert max(len(i["changed"]) for i in trail.of("reload")) == limits.AUDITED_ITEMS
        with pytest.raises(ConfigurationError):
            await it.reload(clients=[client(token=7)])
        [line] = trail.of("reload refused")
        assert "clients[0].token: ***: expected" in line["reason"]


async def test_backups_and_restores(tmp_path: Path, trail: Trail) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    async with running_gateway(path=store) as it:
        assert trail.of("restored") == []
        await asyncio.to_thread(control.checkpoint, store, copy)
        assert trail.of("backup") == [{"path": str(copy)}]
        before = it.backend.history_id  # type: ignore[union-attr]
    shutil.rmtree(store)
    restored = ext_begin_history(copy)
    for _ in range(2):  # it is told of once
        async with running_gateway(path=copy):
            assert trail.of("restored") == [{"history": restored.history_id, "before": before}]


async def test_what_operators_do_with_cursors(trail: Trail) -> None:
    async with serving(None) as it, reader(it):
        cursors, one = cursors_of(it), {"server": 1, "session": 2, "instance": 3}
        for do, ids in (("list", []), ("show", []), ("reset", [one]), ("drop", [])):
            request = {"do": do, "client": "app", "name": "c", "ids": ids}
            if do == "drop":  # as the console asks
                request["operator"] = "ann"
            await cursor_requests.answer(cursors, request)
        with pytest.raises(ConfigurationError, match=r"length <= 256 - at `\$.operator`"):
            await cursor_requests.answer(cursors, {"do": "list", "operator": "x" * 257})
    assert trail.of("cursor reset") == [{"client": "app", "cursor": "c", "ids": ["1/2/3"]}]
    dropped = {"client": "app", "cursor": "c", "ids": [], "operator": "ann"}
    assert trail.of("cursor drop") == [dropped]
    assert trail.of("cursor show") == []


async def test_registrations_by_client(
    tmp_path: Path, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDITED_REGISTRATIONS_S", 0.05)
    both = [APP, client(name="other")]
    async with running(tmp_path, clients=both, audit={"registrations": True}) as it:
        async with await RawPeer.init(it.port) as peer, await RawPeer.init(it.port):
            for i in range(3):
                await peer.request(register_req(i, event("a"), event("b")))
            await trail.until("registered")
            monkeypatch.setattr(limits, "AUDITED_REGISTRATIONS_S", 60)
        lines = trail.of("registered")
        assert {name for i in lines for name in i["events"]} == {"app"}
        monkeypatch.setattr(limits, "AUDITED_REGISTRATIONS_S", 60)
    assert sum(i["events"]["app"] for i in trail.of("registered")) == 6  # the rest when it ends
    assert {i["wire"] for i in trail.of("registered")} == {"mariner"}


def test_a_client_that_is_configured_anew_is_counted_anew(trail: Trail) -> None:
    account = Account("app", "app")
    registrations = RegistrationsAudit(lambda: {"mariner": [account]}, lambda: True)
    for n_registered in (5, 2, 2):
        account.n_registered = n_registered
        registrations.write()
    assert [i["events"] for i in trail.of("registered")] == [{"app": 5}, {"app": 2}]


async def test_registrations_are_not_audited_unless_asked_for(tmp_path: Path, trail: Trail) -> None:
    async with running(tmp_path, audit={}) as it, await RawPeer.init(it.port) as peer:
        await peer.request(register_req(1, event("a")))
    assert trail.of("registered") == []


def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    conf = {
        "name": "x",
        "mariner": {"host": "", "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": [],
    }
    for path in (tmp_path, tmp_path / "no" / "audit"):
        found = config_file.parse({**conf, "audit": {"file": str(path)}}, "f")
        assert found.audit == AuditConfig(path)
        with pytest.raises(ConfigurationError, match=r"audit.file: .* in an existing directory$"):
            config_check.check(found)


# --- a process of its own -------------------------------------------------------------------


async def declined(port: int, n: int) -> None:
    for i in range(n):
        async with await RawPeer.connect(port) as peer:
            peer.send({**INIT, "client_token": f"hunter{i}"})
            assert not (await peer.receive())["success"]


async def test_a_file_for_a_process(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    n_declined = 8
    async with gateway(tmp_path, audit={"file": str(path), "registrations": True}) as it:
        async with await RawPeer.init(it.port) as peer:
            await peer.request(register_req(1, event("a")))
        await declined(it.port, n_declined)
        async with asyncio.timeout(TIMEOUT_S):
            while path.read_text().count("\n") < 2:
                await asyncio.sleep(0.01)
        moved = tmp_path / "moved.jsonl"
        path.rename(moved)
        conf = json.loads((tmp_path / "gateway.json").read_text())
        conf["quota"] = {"bytes_per_s": 9_999}
        (tmp_path / "gateway.json").write_text(json.dumps(conf))
        socket = tmp_path / "events" / "control.sock"
        to = Addressee(store=Identity.of(socket.parent))
        await asyncio.to_thread(
            requests.request, socket, "reload", None, dict, to=to, what="it", timeout_s=TIMEOUT_S
        )
        other = tmp_path / "other.jsonl"
        conf["audit"]["file"] = str(other)
        (tmp_path / "gateway.json").write_text(json.dumps(conf))
        await asyncio.to_thread(
            requests.request, socket, "reload", None, dict, to=to, what="it", timeout_s=TIMEOUT_S
        )
    before = [json.loads(line) for line in moved.read_text().splitlines()]
    assert [i["action"] for i in before] == ["connected", "declined"]
    after = [json.loads(line) for line in path.read_text().splitlines()]
    assert [i["action"] for i in after] == ["reload", "reload", "declined"]
    assert [i.get("changed") for i in after[:2]] == [["quota.bytes_per_s"], ["audit.file"]]
    assert after[2]["repeats"] == n_declined - 1
    first, second = [json.loads(line) for line in other.read_text().splitlines()]
    assert (first["action"], first["changed"]) == ("reload", ["audit.file"])
    assert (second["action"], second["events"]) == ("registered", {"app": 1})
    text = "".join(i.read_text() for i in (moved, path, other, it.stderr_path))
    assert "hunter" not in text
    assert "secret" not in text
    assert path.stat().st_mode & 0o777 == 0o600
