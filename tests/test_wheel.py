"""Both wheels, in an empty virtual environment, away from the checkout.

Their dependencies are those of the development environment, by PYTHONPATH: ``.pth`` files are
not read from there, so that the checkout itself is not importable.
"""

import asyncio
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import mariner
from tests.support.peer import RawPeer, event, register_req
from tests.support.wheel import build_wheels
from tests.test_build import can_compile, check_wheel, made_in

CONF = """\
name: wheel
mariner: {host: 127.0.0.1, port: 0}
event_core: {server_id: 1, backend: {type: rocksdb, path: data}}
clients:
    - name: app
      token: secret
      subscriptions: []
      register_events: [{subscriptions: [["*"]]}]
"""


SHARED = ("mariner", "eventer_bridge")
PACKAGES = (*SHARED, "mariner_console", "certs/mariner_certs", "spark/mariner_spark")


def files_of(packages: Iterable[Path]) -> set[str]:
    """All files of packages, by their names in a wheel."""
    return {
        str(file.relative_to(package.parent))
        for package in packages
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def check_content(gateway: Path, client: Path) -> None:
    """Each file of the packages is in one of the wheels."""
    names, of_client = ({*zipfile.ZipFile(wheel).namelist()} for wheel in (gateway, client))
    assert names & of_client == set()
    files = files_of(map((gateway.parent / "source").joinpath, PACKAGES))
    not_installed = {"mariner/client/pyproject.toml", "mariner/client/README.md"}
    assert files - names - of_client == not_installed
    for schema in ("mariner.yaml", "gateway.yaml", "HatChatter.sbs", "HatEventer.sbs", "rsb.proto"):
        assert f"eventer_bridge/schemas/{schema}" in names
    assert not [i for i in names if i.startswith("tests/") or i.endswith((".pem", ".key"))]


async def serve_and_ask(python: Path, environment: dict[str, str], folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "mariner", "serve", "--conf", "gateway.yaml"),
        cwd=folder,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while b"listening: mariner" not in (line := await process.stderr.readline()):
            assert line, "it did not start"
        async with await RawPeer.init(int(line.rsplit(b":", 1)[1])) as peer:
            assert (await peer.request(register_req(1, event("a"))))["success"]
    finally:
        process.terminate()
        await process.stderr.read()
        code = await process.wait()
    assert code == 0


def test_the_wheels_work_by_themselves(tmp_path: Path) -> None:
    gateway, client = build_wheels(tmp_path)
    check_content(gateway, client)
    source = tmp_path / "source"
    assert made_in(source) == set()
    check_wheel(gateway, source, is_compiled=can_compile())
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    install = (*pip, "install", "--no-deps", "--no-index", "--quiet")
    subprocess.run([*install, gateway, client], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    [installed] = importlib.metadata.distributions(name="mariner-gateway", path=[str(packages)])
    assert f"mariner-client=={mariner.__version__}" in (installed.requires or ())

    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    (tmp_path / "gateway.yaml").write_text(CONF)

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    code = "import mariner, mariner_certs as certs; print(mariner.__file__, certs.__file__)"
    assert all(path.startswith(str(home)) for path in run(python, "-c", code).split())
    assert run(home / "bin" / "mariner", "--version").startswith("mariner, version ")
    assert run(home / "bin" / "mariner", "check", "--conf", "gateway.yaml") == "gateway.yaml: ok\n"
    run(home / "bin" / "mariner", "init", "made")
    made = tmp_path / "made" / "gateway.yaml"
    assert run(home / "bin" / "mariner", "check", "--conf", made) == f"{made}: ok\n"
    assert f"ExecStart={home}/bin/mariner serve" in (made.parent / "mariner.service").read_text()
    assert "Serve a page that shows gateways" in run(python, "-m", "mariner_console", "--help")
    asyncio.run(serve_and_ask(python, environment, tmp_path))

    subprocess.run([*pip, "uninstall", "--yes", "--quiet", "mariner-gateway"], check=True)
    of_client = {i for i in zipfile.ZipFile(client).namelist() if ".dist-info/" not in i}
    assert files_of(map(packages.joinpath, SHARED)) == of_client
