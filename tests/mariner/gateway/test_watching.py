"""``serve --watch``: files that change are taken on without being told."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import tls
from mariner import limits
from mariner.gateway import config, reloading
from mariner_certs import authority, files
from tests.mariner.gateway.reloaded import Running, client, running
from tests.support.gateway import gateway
from tests.support.inprocess import APP
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.support.waiting import until

NEW: Final = client(name="new")


FILES: Final = {"crt": "tls.pem", "key": "tls.key"}

n_looks = 0


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks all the time, and how often is counted."""
    look = reloading._look

    def counted(path: Path, wanted: config.GatewayConfig) -> dict[str, object]:
        global n_looks  # noqa: PLW0603
        n_looks += 1
        return look(path, wanted)

    monkeypatch.setattr(reloading, "_look", counted)
    monkeypatch.setattr(limits, "WATCH_PERIOD_S", 0.02)


@contextlib.asynccontextmanager
async def watched(tmp_path: Path, **keys: Any) -> AsyncIterator[Running]:
    async with running(tmp_path, **keys) as it:
        task = asyncio.ensure_future(reloading.watch(it.path, it.reloader))
        await until_looked(1)
        try:
            yield it
            assert not task.done()
        finally:
            task.cancel()


async def until_looked(count: int) -> None:
    """Wait until it began to look so many more times."""
    end = n_looks + count
    await until(lambda: n_looks >= end)


async def until_let_in(port: int, name: str) -> None:
    async with asyncio.timeout(60):
        while True:
            async with await RawPeer.connect(port) as peer:
                if (await peer.request({**INIT, "client_name": name}))["success"]:
                    return
            await asyncio.sleep(0.05)


class Volume:
    """A directory as Kubernetes mounts secrets: files are links through ``..data``, which is
    replaced by renaming."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._n_swaps = 0
        path.mkdir()

    def swap(self, contents: dict[str, bytes]) -> None:
        self._n_swaps += 1
        made = self.path / f"..{self._n_swaps}"
        made.mkdir()
        for name, data in contents.items():
            (made / name).write_bytes(data)
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(Path("..data") / name)
        new = self.path / "..data_tmp"
        new.symlink_to(made.name)
        new.replace(self.path / "..data")


def made_certificate(folder: Path) -> dict[str, bytes]:
    """Another one of the CA there, as Kubernetes names its files."""
    pair = authority.make_server(files.load_ca(folder), ("127.0.0.1",), 30)
    files.save(folder, "tls", pair, force=True)
    return {f"tls.{i}": (folder / name).read_bytes() for i, name in FILES.items()}


async def serial_of(port: int, folder: Path) -> str:
    context = tls.client_context(ca=folder / "ca.pem")
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    with contextlib.closing(writer):
        certificate: dict[str, Any] = writer.get_extra_info("ssl_object").getpeercert()
        return str(certificate["serialNumber"])


async def until_other_certificate(port: int, folder: Path, serial: str) -> None:
    async with asyncio.timeout(60):
        while await serial_of(port, folder) == serial:
            await asyncio.sleep(0.05)


async def test_a_secret_that_kubernetes_swaps(tmp_path: Path) -> None:
    files.save(tmp_path, "ca", authority.make_ca("test"), force=True)
    secret = Volume(tmp_path / "secret")
    secret.swap(made_certificate(tmp_path))
    own = {"cert": str(secret.path / "tls.crt"), "key": str(secret.path / "tls.key")}
    async with gateway(tmp_path, tls=own, arguments=["--watch"]) as it:
        serial = await serial_of(it.port, tmp_path)
        context = tls.client_context(ca=tmp_path / "ca.pem")
        async with await RawPeer.init(it.port, context) as peer:
            secret.swap(made_certificate(tmp_path))
            await until_other_certificate(it.port, tmp_path, serial)
            assert (await peer.request(register_req(1, event("a"))))["success"]


async def test_a_configuration_that_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with watched(tmp_path) as it:
        await until_looked(4)
        assert "configuration reloaded" not in caplog.messages
        new = tmp_path / "new.json"
        new.write_text(json.dumps({**it.conf, "clients": [APP, NEW]}))
        new.replace(it.path)
        await until_let_in(it.port, "new")
        await until_looked(4)
        assert caplog.messages.count("configuration reloaded") == 1


async def test_files_that_are_replaced_one_by_one(tmp_path: Path) -> None:
    files.save(tmp_path, "ca", authority.make_ca("test"), force=True)
    made_certificate(tmp_path)
    own = {"cert": str(tmp_path / "tls.pem"), "key": str(tmp_path / "tls.key")}
    async with watched(tmp_path, mariner={"host": "127.0.0.1", "port": 0, "tls": own}) as it:
        serial = await serial_of(it.port, tmp_path)
        key = (tmp_path / "tls.key").read_bytes()
        new = made_certificate(tmp_path)
        (tmp_path / "tls.key").write_bytes(key)  # the old one
        await until(lambda: not it.gateway.is_reloaded)
        assert await serial_of(it.port, tmp_path) == serial
        (tmp_path / "tls.key").write_bytes(new["tls.key"])
        await until_other_certificate(it.port, tmp_path, serial)
        assert it.gateway.is_reloaded


async def test_what_is_wrong_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with watched(tmp_path) as it:
        it.path.write_text("{")
        await until(lambda: not it.gateway.is_reloaded)
        await until_looked(6)
        assert caplog.messages.count("configuration not reloaded") == 1
        it.path.unlink()
        await until(lambda: caplog.messages.count("configuration not reloaded") == 2)
        it.path.write_text(json.dumps(it.conf))
        await until(lambda: it.gateway.is_reloaded)


async def test_a_file_that_comes_after_the_configuration_that_names_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with watched(tmp_path) as it:
        clients = [APP, client(name="new", token={"file": str(token)})]
        it.path.write_text(json.dumps({**it.conf, "clients": clients}))
        await until(lambda: not it.gateway.is_reloaded)
        await until_looked(4)
        token.write_text("secret")
        await until_let_in(it.port, "new")


def test_looking_waits_for_no_writer_of_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    listen = config.ListenConfig("127.0.0.1", 0, config.TlsConfig(fifo, fifo))
    found = reloading._look(fifo, config.GatewayConfig("gateway", listen, ()))
    assert "is a FIFO" in str(found["configuration"])
    assert found["mariner.tls.cert"] is None
