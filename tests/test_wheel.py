"""The wheel, in an empty virtual environment, away from the checkout.

Its dependencies are those of the development environment, by PYTHONPATH: ``.pth`` files are
not read from there, so that the checkout itself is not importable.
"""

import asyncio
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from tests.support.peer import RawPeer, event, register_req
from tests.support.wheel import build, copy_source
from tests.test_build import can_compile, check_wheel, made_in, warnings

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


def check_content(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for package in (
        "mariner",
        "eventer_bridge",
        "mariner_certs",
        "mariner_console",
        "mariner_spark",
    ):
        assert f"{package}/py.typed" in names
    for schema in ("mariner.yaml", "gateway.yaml", "HatChatter.sbs", "HatEventer.sbs", "rsb.proto"):
        assert f"eventer_bridge/schemas/{schema}" in names
    assert {"mariner_console/login.html", "mariner_console/page/page.css"} <= {*names}
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


def test_the_wheel_works_by_itself(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    wheel, output = build(source, "wheel")
    check_content(wheel)
    is_compiled = can_compile()
    assert bool(warnings(output)) is not is_compiled
    check_wheel(wheel, is_compiled=is_compiled)
    assert made_in(source) == set()
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run([*install, "--no-index", "--quiet", str(wheel)], check=True)

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
