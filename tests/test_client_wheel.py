"""The distribution ``mariner-client``: its wheel, in an empty environment, runs every program.

Its three dependencies are copied from the development environment, so that no network is needed.
"""

import asyncio
import contextlib
import functools
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
import venv
import zipfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from packaging.requirements import Requirement

import mariner
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway
from tests.support.shell import read_line
from tests.support.wheel import ROOT, build, copy_source

CLIENT: Final = {
    "name": "development",
    "token": "development",
    "subscriptions": [["*"]],
    "register_events": [{"subscriptions": [["*"]]}],
}

PAGE: Final = ROOT / "docs/python.md"

LOADED: Final = """\
import sys, mariner
for name in mariner.__all__:
    getattr(mariner, name)
files = {name: getattr(i, "__file__", None) or "" for name, i in sys.modules.items()}
print(*(name for name, file in files.items() if file.startswith(sys.prefix)))
"""

ERRORS: Final = """\
import sys, mariner
from mariner.wire import codec
ca, cert, other_key = sys.argv[1:]
for attempt in (
    lambda: codec.decode(b'{"msg_type": "status", "status": 5}'),
    lambda: mariner.tls.client_context(other_key),
    lambda: mariner.tls.client_context(ca, cert, other_key),
):
    try:
        attempt()
    except mariner.MarinerError as e:
        print(e)
"""


class Installed(NamedTuple):
    wheel: Path
    python: Path
    packages: Path


def copy_distribution(name: str, folder: Path) -> None:
    """Install a distribution of the development environment, and what it needs."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)
    for text in distribution.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            copy_distribution(needed.name, folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("client")
    wheel, _ = build(copy_source(folder / "source"), "wheel", "mariner_client")
    home = folder / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    subprocess.run([*install, "--no-deps", "--no-index", wheel], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    for text in tomllib.loads((ROOT / "mariner/client/pyproject.toml").read_text())["project"][
        "dependencies"
    ]:
        copy_distribution(Requirement(text).name, packages)
    return Installed(wheel, python, packages)


def run(python: Path, *arguments: str, cwd: Path = Path("/")) -> str:
    """Run Python where it sees nothing of the checkout."""
    command = [str(python), "-I", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout


def test_it_is_small(installed: Installed) -> None:
    check = (sys.executable, "-m", "pip", "--python", str(installed.python), "check")
    subprocess.run(check, check=True, capture_output=True)
    names = {i.stem.partition("-")[0] for i in installed.packages.glob("*.dist-info")}
    assert names == {"mariner_client", "msgspec", "tenacity", "typing_extensions"}
    files = [i for i in installed.packages.rglob("*") if i.is_file()]
    assert sum(i.stat().st_size for i in files if "__pycache__" not in i.parts) < 2e6


def test_it_has_what_it_imports_and_nothing_else(installed: Installed) -> None:
    assert installed.wheel.name.endswith("-py3-none-any.whl")
    archive = zipfile.ZipFile(installed.wheel)
    sources = {i for i in archive.namelist() if i.endswith(".py")}
    modules = {i.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for i in sources}
    loaded = set(run(installed.python, "-c", LOADED).split())
    others = {i.partition(".")[0] for i in loaded} - {"mariner", "eventer_bridge"}
    assert others <= {"msgspec", "tenacity", "typing_extensions"}
    assert {i for i in loaded if i.startswith(("mariner", "eventer_bridge"))} == modules
    assert {"mariner/py.typed", "eventer_bridge/py.typed"} <= {*archive.namelist()}
    read = [*map(ROOT.joinpath, sources), *(ROOT / "mariner/cli").glob("*.py"), PAGE]
    numbered = re.compile(r"(?<![\w,.])00[0-4](?![\d,])")  # of the specifications
    assert [i for i in read if numbered.search(i.read_text("utf-8"))] == []


def test_an_editable_install_is_the_checkout(tmp_path: Path) -> None:
    """A copy of a part of the packages would hide the rest of them."""
    source = copy_source(tmp_path / "source")
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel:editable")
    subprocess.run([*command, "-d", tmp_path], cwd=source / "mariner/client", check=True)
    [wheel] = tmp_path.glob("mariner_client-*.whl")
    archive = zipfile.ZipFile(wheel)
    assert [i for i in archive.namelist() if i.endswith(".py")] == []
    assert archive.read("_mariner_client.pth").decode() == str(source)


def test_errors_have_their_reason_without_schemas_and_cryptography(
    installed: Installed, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path)
    files = made.ca, made.client_cert, made.server_key
    assert run(installed.python, "-c", ERRORS, *map(str, files)).splitlines() == [
        "status: (root): Expected `str`, got `int` - at `$.status`",
        f"{made.server_key}: expected a certificate in PEM form",
        f"{made.server_key}: the private key does not match {made.client_cert}",
    ]


# --- the programs of the page ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(installed: Installed, code: str) -> AsyncIterator[Process]:
    """A program; Ctrl-C ends it, without a word more."""
    process = await asyncio.create_subprocess_exec(
        *(installed.python, "-Iu", "-c", code), stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        left, errors = await process.communicate()
        assert (process.returncode, left) == (-signal.SIGINT, b"")
        assert errors.rstrip().endswith(b"KeyboardInterrupt")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_the_programs_of_the_page(installed: Installed, tmp_path: Path) -> None:
    """The first one outlives a gateway that is killed, and goes on when it is run again."""
    code, *others = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len([i for i in code.splitlines() if i]) <= 12
    certificates = make_certificates(tmp_path)
    keys = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    serving = functools.partial(gateway, tmp_path, tls=keys, clients=[CLIENT])
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving())
        places = {"23014": str(first.port), "var/certs/ca.pem": os.fspath(certificates.ca)}
        code = replaced(code, places)
        connect = functools.partial(
            mariner.connect,
            *("127.0.0.1", first.port),
            client_name="development",
            client_token="development",
            ssl=mariner.tls.client_context(ca=certificates.ca),
        )
        async with running(installed, code) as program:
            assert (await read_line(program.stdout)).startswith("lamp/1 ")
            first.process.kill()
            await first.process.wait()
            await stack.enter_async_context(serving(port=first.port))
            async with await connect() as peer:
                await peer.register("lamp/3", 3)
            assert (await read_line(program.stdout)).startswith("lamp/3 ")
        async with running(installed, code) as program:
            line = await read_line(program.stdout)
            if line.startswith("lamp/3 "):  # it was ended before it could acknowledge it
                line = await read_line(program.stdout)
            assert line.startswith("lamp/1 ")
        joined = replaced(as_coroutine("\n".join(others)), places)
        await asyncio.to_thread(run, installed.python, "-c", joined, cwd=tmp_path)
        async with await connect() as peer:
            found = [i.type[1] async for i in peer.query_all(mariner.timeseries("lamp/*"))]
        assert sorted(found) == ["1", "1", "1", "1", "1", "3"]


def as_coroutine(code: str) -> str:
    """A program of what is written for inside a coroutine, and comes to an end."""
    code = replaced(
        code,
        {
            '("gateway-1", "gateway-2")': '("127.0.0.1",)',
            'client_name="app", client_token=token': "**access",
            "...": "break",
            "await batch.ack()": "await batch.ack(); break",
        },
    )
    body = textwrap.indent(code, "    ")
    return (
        "import asyncio\n\naccess = {'client_name': 'development', 'client_token': 'development'}\n"
        f"\nasync def example():\n{body}\n"
        "        await buffered.drain()\n\nasyncio.run(example())\n"
    )


def replaced(code: str, texts: dict[str, str]) -> str:
    for old, new in texts.items():
        assert old in code, old
        code = code.replace(old, new)
    return code
