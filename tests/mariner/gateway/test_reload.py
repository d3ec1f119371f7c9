"""Reloading a running gateway: what its clients notice, and what they must not."""

import asyncio
import contextlib
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits, tls
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError, EventerBridgeError, InitError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import RegisterEvent
from mariner.gateway import config_file
from mariner.gateway.gateway import Gateway, create
from mariner.gateway.reloading import Reloader
from tests.support.certificates import Certificates, issue_client, make_certificates, write_crl
from tests.support.inprocess import APP, metrics_of
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.support.schemas import LARGE, NUMBERS, checkers

TIMEOUT_S: Final = 10.0
QUERY: Final = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}
TIMESERIES: Final = {
    **QUERY,
    "query_type": "timeseries",
    "event_types": [["a"]],
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
}


class Running:
    """A gateway whose configuration is changed and reloaded."""

    def __init__(self, path: Path, gateway: Gateway) -> None:
        self.path = path
        self.gateway = gateway
        self.conf = json.loads(path.read_text())
        self.reloader = Reloader(path, gateway)

    @property
    def port(self) -> int:
        return self.gateway.mariner.port

    async def reload(self, **keys: Any) -> dict[str, list[str]]:
        """With these keys of the configuration changed."""
        self.conf.update(keys)
        self.path.write_text(json.dumps(self.conf))
        return await self.reloader.reload()

    async def closed(self, peer: RawPeer) -> None:
        """Wait until the gateway closes a connection."""
        async with asyncio.timeout(TIMEOUT_S):
            assert await peer.is_closed_by_server()

    async def answer(self, **properties: Any) -> str | None:
        """Why a login is declined; None: it is not."""
        async with await RawPeer.connect(self.port) as peer:
            peer.send({**INIT, **properties})
            response = await peer.receive()
            return None if response["success"] else response["error"]


@contextlib.asynccontextmanager
async def running(tmp_path: Path, **keys: Any) -> AsyncIterator[Running]:
    conf = {
        "name": "test",
        "mariner": {"host": "127.0.0.1", "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": [APP],
        "schemas": [],
        **keys,
    }
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps(conf))
    gateway = await create(config_file.load(path))
    try:
        yield Running(path, gateway)
    finally:
        await gateway.async_close()


def client(**properties: Any) -> dict[str, Any]:
    return {**APP, **properties}


async def registered(peer: RawPeer, *segments: str, value: Any = 1) -> str | None:
    """Why a registration is refused; None: it is not."""
    answer = await peer.request(register_req(1, event(*segments, value=value)))
    return None if answer["success"] else answer["error"]


async def found(peer: RawPeer) -> list[list[str]]:
    """Types of the latest events that it may see, without the gateway's own."""
    answer = await peer.request({**QUERY, "event_types": [["*"]]})
    return sorted(i["type"] for i in answer["events"] if i["type"][0] != "event")


# --- clients --------------------------------------------------------------------------------


async def test_what_did_not_change_is_not_touched(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        schemas = it.gateway._access.schemas
        assert await it.reload() == {"changed": [], "needs_restart": []}
        assert await registered(peer, "a") is None
        assert it.gateway._access.schemas is schemas


async def test_clients_come_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        both = [APP, client(name="new", token=tokens.sha256_text("n"))]
        assert (await it.reload(clients=both))["changed"] == ["clients[new]: added"]
        assert await it.answer(client_name="new", client_token="n") is None
        assert await registered(peer, "a") is None
        assert (await it.reload(clients=both[1:]))["changed"] == ["clients[app]: removed"]
        await it.closed(peer)
        # as if it had never been there
        assert await it.answer() == "invalid client name or token"
        assert await it.answer(client_name="nobody") == "invalid client name or token"
        assert it.gateway.mariner.stats.closed["removed from the configuration"] == 1
    [line] = [i for i in caplog.records if getattr(i, "detail", "") == "the client"]
    assert line.__dict__["reason"] == "removed from the configuration"


async def test_a_token_replaces_another(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as old:
        hashed = tokens.sha256_text("secret")
        several = [{"value": hashed}, {"value": tokens.sha256_text("new")}]
        report = await it.reload(clients=[client(token=several)])
        assert report["changed"] == ["clients[app].token"]
        async with await RawPeer.init(it.port, client_token="new") as new:
            assert await registered(old, "a") is None  # its token is still there, as a hash
            several[0]["expires"] = "2020-01-01"
            await it.reload(clients=[client(token=several)])
            assert await it.answer() == "invalid client name or token"
            assert await registered(old, "a") is None  # it had logged in before
            await it.reload(clients=[client(token=several[1])])
            await it.closed(old)
            assert await registered(new, "a") is None


async def test_a_token_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    async with running(tmp_path, clients=[client(token={"file": str(file)})]) as it:
        assert await it.answer() is None
        file.write_text("new")
        assert (await it.reload())["changed"] == ["clients[app].token"]
        assert await it.answer(client_token="new") is None
        assert await it.answer() is not None


async def test_new_rights_of_registrations_and_queries(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        assert await registered(peer, "a") is None
        assert await registered(peer, "b") is None
        assert await found(peer) == [["a"], ["b"]]
        less = client(subscriptions=[["a"]], register_events=[{"subscriptions": [["b"]]}])
        report = await it.reload(clients=[less])
        assert report["changed"] == ["clients[app].register_events", "clients[app].subscriptions"]
        assert "no right to register 'a'" in (await registered(peer, "a") or "")
        assert await registered(peer, "b") is None
        assert await found(peer) == [["a"]]
        await it.reload(clients=[APP])
        assert await registered(peer, "a") is None
        assert await found(peer) == [["a"], ["b"]]


async def test_new_rights_of_notifications(tmp_path: Path) -> None:
    async with (
        running(tmp_path, clients=[APP, client(name="source")]) as it,
        await RawPeer.init(it.port, subscriptions=[["a", "*"], ["b"]]) as peer,
        await RawPeer.init(it.port, client_name="source") as source,
    ):

        async def heard() -> list[list[str]]:
            """What comes of an event of each type, up to the answer to a ping."""
            for i, name in enumerate(("a", "b", "c")):
                await source.request(register_req(i, event(name)))
            peer.send({"msg_type": "ping_req", "ping_id": 1})
            types = []
            while (message := await peer.receive())["msg_type"] == "events":
                types += [i["type"] for i in message["events"]]
            return types

        assert await heard() == [["a"], ["b"]]
        for subscriptions, expected in (
            ([["a"]], [["a"]]),
            ([["c"]], []),
            ([["b"], ["c"]], [["b"]]),
            ([], []),
            ([["*"]], [["a"], ["b"]]),  # what it asked for at first
        ):
            changed = client(subscriptions=subscriptions)
            await it.reload(clients=[changed, client(name="source")])
            assert await heard() == expected


async def test_an_answer_that_is_under_way_has_the_new_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        for name in ("a", "b"):
            await registered(peer, name)
        query, reached, go_on = it.gateway.core.query, asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> Any:
            result = await query(*arguments)
            reached.set()
            await go_on.wait()
            return result

        monkeypatch.setattr(it.gateway.core, "query", held)
        asked = asyncio.create_task(found(peer))
        await reached.wait()
        await it.reload(clients=[client(subscriptions=[["b"]])])
        go_on.set()
        assert await asked == [["b"]]


async def test_a_login_that_is_under_way_is_of_the_new_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tokens.scrypt_text("secret")
    async with running(tmp_path, clients=[client(token=chosen)]) as it:
        checks = it.gateway._checks
        find, reached, go_on = checks.find, asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> Any:
            index = await find(*arguments)
            reached.set()
            await go_on.wait()
            return index

        monkeypatch.setattr(checks, "find", held)
        asked = asyncio.create_task(it.answer())
        await reached.wait()
        await it.reload(clients=[client(token=tokens.scrypt_text("another"))])
        go_on.set()
        assert await asked == "invalid client name or token"
        # and who may still log in has the new rights
        await it.reload(clients=[client(token=chosen)])
        reached.clear()
        go_on.clear()
        logging_in = asyncio.create_task(RawPeer.init(it.port))
        await reached.wait()
        await it.reload(clients=[client(token=chosen, register_events=[])])
        go_on.set()
        async with await logging_in as peer:
            assert "no right to register 'a'" in (await registered(peer, "a") or "")


async def test_schemas_and_quotas(tmp_path: Path) -> None:
    numbers = [{"subscriptions": [["*"]], "schema_id": NUMBERS["$id"]}]
    checked = client(register_events=numbers)
    async with (
        running(tmp_path, clients=[checked], schemas=[NUMBERS]) as it,
        await RawPeer.init(it.port) as peer,
    ):
        assert await registered(peer, "a", value=LARGE) is None  # by a process of its own
        assert "not of type" in (await registered(peer, "a", value=["x"]) or "")
        texts = {**NUMBERS, "items": {"type": "string"}}
        assert (await it.reload(schemas=[texts]))["changed"] == ["schemas"]
        assert await registered(peer, "a", value=["x"]) is None
        assert "not of type" in (await registered(peer, "a", value=LARGE) or "")
        await it.reload(clients=[client(quota={"max_event_types": 0})])
        assert await registered(peer, "a") is None
        assert "max_event_types: 0" in (await registered(peer, "another") or "")


async def test_large_payloads_are_checked_by_a_process_from_then_on(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        assert await registered(peer, "a", value=LARGE) is None
        assert checkers() == []
        numbers = [{"subscriptions": [["*"]], "schema_id": NUMBERS["$id"]}]
        await it.reload(clients=[client(register_events=numbers)], schemas=[NUMBERS])
        assert await registered(peer, "a", value=LARGE) is None
        assert len(checkers()) == 1
        await it.reload(clients=[APP], schemas=[])
        assert checkers() == []


async def test_large_registrations_are_answered_while_schemas_are_replaced(tmp_path: Path) -> None:
    numbers = [{"subscriptions": [["*"]], "schema_id": NUMBERS["$id"]}]
    clients = [client(register_events=numbers)]
    async with (
        running(tmp_path, clients=clients, schemas=[NUMBERS]) as it,
        await RawPeer.init(it.port) as peer,
    ):
        answers: list[str | None] = []

        async def register() -> None:
            while len(answers) < 5:
                answers.append(await registered(peer, "a", value=LARGE))

        registering = asyncio.create_task(register())
        for number in range(4):
            while len(answers) <= number:
                await asyncio.sleep(0.001)
            await it.reload(schemas=[{**NUMBERS, "description": str(number)}])
        await registering
        assert answers == [None] * 5


# --- certificates ---------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certs")


def listener(folder: Path, **files: str) -> dict[str, Any]:
    names = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem", **files}
    keys = {key: str(folder / name) for key, name in names.items()}
    return {"host": "127.0.0.1", "port": 0, "tls": keys}


async def serial(port: int, context: ssl.SSLContext) -> str:
    """Serial number of the server's certificate."""
    async with await RawPeer.connect(port, context) as peer:
        certificate = peer.writer.get_extra_info("peercert")
    return str(certificate["serialNumber"])


async def test_certificates_swapped_as_kubernetes_does(tmp_path: Path) -> None:
    """Files are links into ``..data``, itself a link that is replaced."""
    versions = [make_certificates(tmp_path / f"..{i}") for i in range(2)]
    (tmp_path / "..data").symlink_to("..0")
    for name in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    contexts = [tls.client_context(i.ca, i.client_cert, i.client_key) for i in versions]
    async with (
        running(tmp_path, mariner=listener(tmp_path)) as it,
        await RawPeer.init(it.port, contexts[0]) as old,
    ):
        before = await serial(it.port, contexts[0])
        (tmp_path / "..next").symlink_to("..1")
        (tmp_path / "..next").rename(tmp_path / "..data")
        changed = (await it.reload())["changed"]
        assert changed == [f"mariner.tls.{i}" for i in ("cert", "client_ca", "key")]
        assert await serial(it.port, contexts[1]) != before
        with pytest.raises(ssl.SSLError):
            await serial(it.port, contexts[0])
        assert await registered(old, "a") is None
        # and half of a pair does not come into use
        (tmp_path / "server.key").unlink()
        (tmp_path / "server.key").symlink_to("..0/server.key")
        with pytest.raises(ConfigurationError, match=r"server\.key: the private key does not"):
            await it.reload()
        await serial(it.port, contexts[1])


@pytest.mark.parametrize("read", [("server.pem", 1), ("ca.pem", 1), ("ca.pem", 2)])
async def test_files_that_are_replaced_while_they_are_read(
    tmp_path: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch, read: tuple[str, int]
) -> None:
    """At the first or second time that one of them is read; the second is the last."""
    other = make_certificates(tmp_path / "other")
    reads = tls._read
    done: list[str] = []

    def swapping(path: Path) -> bytes:
        data = reads(path)
        done.append(path.name)
        if (path.name, done.count(path.name)) == read:
            for name in ("server.pem", "server.key", "ca.pem"):
                os.replace(other.ca.parent / name, made.ca.parent / name)  # noqa: PTH105
        return data

    async with running(tmp_path, mariner=listener(made.ca.parent)) as it:
        monkeypatch.setattr(tls, "_read", swapping)
        assert "mariner.tls.cert" in (await it.reload())["changed"]
        context = tls.client_context(made.ca, other.client_cert, other.client_key)
        await serial(it.port, context)


async def test_a_revoked_client_is_closed_and_not_let_in(
    tmp_path: Path, made: Certificates
) -> None:
    folder = made.ca.parent
    bad = issue_client(folder, "bad")
    issue_client(folder, "good")
    good_context, bad_context = (
        tls.client_context(made.ca, folder / f"{name}.pem", folder / f"{name}.key")
        for name in ("good", "bad")
    )
    write_crl(folder)
    async with (
        running(tmp_path, mariner=listener(folder, crl="crl.pem")) as it,
        await RawPeer.init(it.port, good_context) as good,
        await RawPeer.init(it.port, bad_context) as peer,
        await RawPeer.connect(it.port, bad_context) as late,
    ):
        await asyncio.sleep(0)
        write_crl(folder, bad)
        assert (await it.reload())["changed"] == ["mariner.tls.crl"]
        await it.closed(peer)
        assert await registered(good, "a") is None
        # one whose handshake was before
        assert (await late.request(INIT))["error"] == "invalid client name or token"
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await RawPeer.init(it.port, bad_context)


# --- all or nothing -------------------------------------------------------------------------


def broken(change: Callable[[dict[str, Any]], None]) -> Any:
    return pytest.param(change, id=change.__name__)


def _no_name(conf: dict[str, Any]) -> None:
    del conf["name"]


def _no_file(conf: dict[str, Any]) -> None:
    conf["clients"][0]["token"] = {"file": "/none"}


def _bad_schema(conf: dict[str, Any]) -> None:
    conf["schemas"] = [{"$id": "a:b", "$ref": "a:nothing"}]


def _bad_restart(conf: dict[str, Any]) -> None:
    """What the running gateway does not take on, but the next start would."""
    server = {"host": "127.0.0.1", "port": 0, "tls": {"cert": "/none", "key": "/none"}}
    conf["event_core"]["eventer_server"] = server


def _bad_log(conf: dict[str, Any]) -> None:
    conf["log"] = {"version": 1, "root": {"handlers": ["none"]}}


@pytest.mark.parametrize(
    "change", [broken(i) for i in (_no_name, _no_file, _bad_schema, _bad_restart, _bad_log)]
)
async def test_a_wrong_configuration_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[dict[str, Any]], None]
) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        before, access = it.gateway.config, it.gateway._access
        conf = json.loads(it.path.read_text())
        conf["clients"].append(client(name="new"))
        change(conf)
        with pytest.raises(ConfigurationError) as caught:
            await it.reload(**conf) if "name" in conf else await _reload(it, conf)
        assert it.gateway.config is before
        assert it.gateway._access is access
        assert await it.answer(client_name="new") == "invalid client name or token"
        assert await registered(peer, "a") is None
    if change is not _bad_log:  # which replaces the handlers of the test, too
        [line] = [i for i in caplog.records if i.message == "configuration not reloaded"]
        assert line.__dict__["reasons"] == str(caught.value).splitlines()


async def _reload(it: Running, conf: dict[str, Any]) -> None:
    it.path.write_text(json.dumps(conf))
    await it.reloader.reload()


async def test_a_reload_that_failed_can_be_alerted_on(tmp_path: Path) -> None:
    name = "mariner_config_last_reload_successful"
    async with running(tmp_path, http={"host": "127.0.0.1", "port": 0}) as it:
        assert await metrics_of(it.gateway, name) == {"": 1}
        with pytest.raises(ConfigurationError):
            await it.reload(clients=5)
        assert await metrics_of(it.gateway, name) == {"": 0}
        await it.reload(clients=[APP])
        assert await metrics_of(it.gateway, name) == {"": 1}


async def test_what_takes_a_restart_is_named_and_the_rest_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as it:
        core = {"server_id": 2, "backend": {"type": "memory"}}
        report = await it.reload(event_core=core, clients=[APP, client(name="new")])
        expected = {"changed": ["clients[new]: added"], "needs_restart": ["event_core.server_id"]}
        assert report == expected
        assert await it.answer(client_name="new") is None
        [line] = [i for i in caplog.records if i.message == "configuration reloaded"]
        assert {key: line.__dict__[key] for key in expected} == expected
        # and named again, for as long as it takes
        assert (await it.reload())["needs_restart"] == ["event_core.server_id"]


# --- the other wire, retention --------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
async def test_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    store: dict[str, Any] = {"type": backend}
    if backend == "rocksdb":
        store["path"] = str(tmp_path / "store")

    def core(*rules: dict[str, Any]) -> dict[str, Any]:
        return {"server_id": 1, "backend": {**store, "retention": [*rules]}}

    async with running(tmp_path, event_core=core()) as it, await RawPeer.init(it.port) as peer:

        async def kept(n_expected: int) -> None:
            """Wait until so many events are kept."""
            async with asyncio.timeout(TIMEOUT_S):
                while len((await peer.request(TIMESERIES))["events"]) != n_expected:
                    await asyncio.sleep(0.01)

        async def register(n: int) -> None:
            for _ in range(n):
                assert await registered(peer, "a") is None

        await register(20)
        rule = {"subscriptions": [["a"]], "max_entries": 10}
        await it.reload(event_core=core(rule))
        await kept(10)
        await register(5)
        await kept(10)
        await it.reload(event_core=core({**rule, "max_entries": 4}))
        await kept(4)
        await it.reload(event_core=core())
        await register(20)
        await kept(24)


async def test_retention_is_replaced_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is registered at that moment is counted once, or less than the rest would be kept."""
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    store = {"type": "rocksdb", "path": str(tmp_path / "store")}

    def core(max_entries: int) -> dict[str, Any]:
        rule = {"subscriptions": [["a"]], "max_entries": max_entries}
        return {"server_id": 1, "backend": {**store, "retention": [rule]}}

    async with (
        running(tmp_path, event_core=core(10**6)) as it,
        await RawPeer.init(it.port) as peer,
    ):
        n_sent, is_over = 0, False

        async def register() -> None:
            nonlocal n_sent
            while not is_over:
                for _ in range(50):
                    peer.send(register_req(n_sent, event("a")))
                    n_sent += 1
                for _ in range(50):
                    assert (await peer.receive())["success"]

        registering = asyncio.create_task(register())
        for number in range(10):
            await it.reload(event_core=core(10**6 + number))
        is_over = True
        await registering
        [share] = it.gateway._backend._retention._shares.all  # type: ignore[union-attr]
        async with asyncio.timeout(TIMEOUT_S):
            while not share.is_known:
                await asyncio.sleep(0.01)
        assert share.n_events == n_sent


# --- other wires and servers ----------------------------------------------------------------


def with_eventer(**keys: Any) -> dict[str, Any]:
    server = {"host": "127.0.0.1", "port": 0, **keys}
    return {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": server}


async def test_eventer_clients(tmp_path: Path) -> None:
    async with running(tmp_path, event_core=with_eventer(token="t")) as it:
        assert it.gateway.eventer_server is not None
        address = it.gateway.eventer_server.address

        async def connect(name: str, token: str) -> eventer.EventerClient:
            return await eventer.connect(address, name, client_token=token)

        everything = await connect("made up", "t")
        several = ["t", tokens.sha256_text("u")]
        report = await it.reload(event_core=with_eventer(token=several))
        assert report["changed"] == ["event_core.eventer_server.token"]
        await (await connect("another", "u")).async_close()
        assert await everything.register([RegisterEvent(("a",), None, None)]) is not None
        # from one token for all to clients of their own
        gui = {"name": "gui", "token": "t", "subscriptions": [["a"]], "register_events": []}
        await it.reload(event_core=with_eventer(clients=[gui]))
        async with asyncio.timeout(TIMEOUT_S):
            await everything.wait_closed()
        with pytest.raises(InitError):
            await connect("made up", "t")
        limited = await connect("gui", "t")
        with pytest.raises(EventerBridgeError):
            await limited.register([RegisterEvent(("a",), None, None)])
        may_register = [{"subscriptions": [["a"]]}]
        await it.reload(event_core=with_eventer(clients=[{**gui, "register_events": may_register}]))
        assert await limited.register([RegisterEvent(("a",), None, None)]) is not None
        await limited.async_close()


async def test_a_remote_server_gets_the_new_token_on_the_next_connection(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    async with running(tmp_path / "remote", event_core=with_eventer(token="old")) as remote:
        assert remote.gateway.eventer_server is not None
        port = remote.gateway.eventer_server.address.port
        server = {"server_id": 1, "host": "127.0.0.1", "port": port, "token": "old"}
        backend = {"type": "memory"}
        core = {"server_id": 2, "backend": backend, "replication": [server]}
        async with running(tmp_path, event_core=core) as it:
            stats = remote.gateway.eventer_server.stats

            async def until_connected(n_removed: int) -> None:
                """Wait until it is connected again, after so many connections were closed."""
                [replication] = it.gateway._replications
                async with asyncio.timeout(TIMEOUT_S):
                    while not (
                        stats.closed["removed from the configuration"] == n_removed
                        and stats.clients
                        and replication.is_connected
                    ):
                        await asyncio.sleep(0.01)

            await until_connected(0)
            core["replication"] = [{**server, "token": "new"}]
            report = await it.reload(event_core=core)
            assert report["changed"] == ["event_core.replication[0].token"]
            await remote.reload(event_core=with_eventer(token="new"))  # closes the connection
            await until_connected(1)
