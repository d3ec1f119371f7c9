"""Reloading a running gateway: certificates, and configurations that are wrong."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import tls
from eventer_bridge.errors import ConfigurationError
from tests.mariner.gateway.reloaded import Running, client, registered, running
from tests.support.certificates import Certificates, issue_client, make_certificates, write_crl
from tests.support.inprocess import APP, metrics_of
from tests.support.peer import INIT, RawPeer


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


# --- certificates ---------------------------------------------------------------------------


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


# --- all or nothing -------------------------------------------------------------------------


@pytest.mark.usefixtures("logging_restored")  # a broken log replaces it
@pytest.mark.parametrize(
    "change", [broken(i) for i in (_no_name, _no_file, _bad_schema, _bad_restart, _bad_log)]
)
async def test_a_wrong_configuration_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[dict[str, Any]], None]
) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        before, access = it.gateway.config, it.gateway.access
        conf = json.loads(it.path.read_text())
        conf["clients"].append(client(name="new"))
        change(conf)
        with pytest.raises(ConfigurationError) as caught:
            await it.reload(**conf) if "name" in conf else await _reload(it, conf)
        assert it.gateway.config is before
        assert it.gateway.access is access
        assert await it.answer(client_name="new") == "invalid client name or token"
        assert await registered(peer, "a") is None
    if change is not _bad_log:  # which replaces the handlers of the test, too
        [line] = [i for i in caplog.records if i.message == "configuration not reloaded"]
        assert line.__dict__["reasons"] == str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("gateway.yaml", "[" * 100_000, "nested more than 100 deep"),
        ("gateway.json", '{"name": "a", "name": "b"}', "name: the key is there twice"),
        ("gateway.yaml", None, "is a FIFO, expected a regular file"),
    ],
)
async def test_a_hostile_file_changes_nothing(
    tmp_path: Path, name: str, text: str | None, problem: str
) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        path = tmp_path / "hostile" / name
        path.parent.mkdir()
        if text is None:
            os.mkfifo(path)
        else:
            path.write_text(text)
        it.reloader._path = path
        with pytest.raises(ConfigurationError, match=problem):
            await it.reloader.reload()
        assert await registered(peer, "a") is None


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
