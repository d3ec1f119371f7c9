"""``mariner init``: what it writes is private, checks, starts and speaks TLS."""

import re
import shlex
import shutil
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from click.testing import CliRunner, Result

from eventer_bridge import tls
from mariner.cli import init as module
from mariner.cli import main
from mariner.gateway import config_file
from mariner.gateway.counts import StatusReport
from mariner.gateway.gateway import create
from mariner_console import config as console_config
from tests.console.support import log_in
from tests.support import process as processes
from tests.support.peer import RawPeer, event, register_req
from tests.support.waiting import until

FILES = [
    "certs/ca.key",
    "certs/ca.pem",
    "certs/server.key",
    "certs/server.pem",
    "console.yaml",
    "gateway-example.yaml",
    "gateway.yaml",
    "mariner-console.service",
    "mariner.service",
    "secrets/operator.password",
    "secrets/operator.token",
]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(i) for i in arguments])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A new installation."""
    result = run("init", tmp_path / "m", "--host", "gateway.example", "--user", "events")
    assert result.exit_code == 0, result.output
    (tmp_path / "printed").write_text(result.stdout)
    return tmp_path / "m"


def test_it_is_private_and_says_what_to_do(made: Path) -> None:
    found = sorted(i for i in made.rglob("*") if i.is_file())
    assert [str(i.relative_to(made)) for i in found] == FILES
    of_secrets = [i for i in found if i.suffix != ".pem"]  # which everybody may see
    assert {stat.S_IMODE(i.stat().st_mode) for i in of_secrets} == {0o600}
    folders = [made, *(i for i in made.rglob("*") if i.is_dir())]
    assert {stat.S_IMODE(i.stat().st_mode) for i in folders} == {0o700}
    secrets = {(made / "secrets" / f"operator.{i}").read_text() for i in ("token", "password")}
    assert len(secrets) == 2
    others = "".join(i.read_text() for i in found if "secrets" not in i.parts)
    printed = (made.parent / "printed").read_text()
    assert not [i for i in secrets if i.strip() in others + printed]
    for line in (
        f"made {made}: gateway.yaml, console.yaml, certs, secrets, mariner.service, "
        "mariner-console.service",
        f"    mariner serve --conf {made}/gateway.yaml",
        f"    mariner ping --count 1 --tls-ca {made}/certs/ca.pem --name operator --token-file"
        f" {made}/secrets/operator.token",
        f"    useradd --system --no-create-home --home-dir {made} events",
        f"    chown -R events: {made}",
        f"    cp {made}/mariner.service {made}/mariner-console.service /etc/systemd/system/",
        "    systemctl enable --now mariner mariner-console",
    ):
        assert f"{line}\n" in printed
    checked = run("check", "--conf", made / "gateway.yaml")
    assert (checked.stdout, checked.stderr) == (f"{made}/gateway.yaml: ok\n", "")
    page = console_config.load(made / "console.yaml").listen
    assert f"is at http://{page.host}:{page.port}/: user operator" in printed


def test_nothing_is_overwritten(made: Path, tmp_path: Path) -> None:
    before = {i: i.read_bytes() for i in made.rglob("*") if i.is_file()}
    again = run("init", made)
    text = f"mariner: error: {made}: exists already, and is not empty\n"
    assert (again.exit_code, again.stderr, again.stdout) == (1, text, "")
    assert {i: i.read_bytes() for i in made.rglob("*") if i.is_file()} == before
    wrong = run("init", tmp_path / "a b")
    assert (wrong.exit_code, "letters, digits" in wrong.stderr) == (2, True)
    wrong = run("init", tmp_path / "n", "--host", "x:1")
    text = "mariner: error: --host: 'x:1': expected an IP address or a DNS name"
    assert (wrong.exit_code, wrong.stderr.startswith(text)) == (2, True)
    assert {i.name for i in tmp_path.iterdir()} == {"m", "printed"}


def test_the_units_are_for_this_directory_and_user(made: Path, tmp_path: Path) -> None:
    for name, command in ("mariner", "serve"), ("mariner-console", "console"):
        text = (made / f"{name}.service").read_text()
        assert "/opt/mariner" not in text
        assert "/etc/mariner" not in text
        assert "\nUser=events\n" in text
        assert "Group=" not in text
        assert f"\nWorkingDirectory={made}\n" in text
        assert f"mariner {command} --conf {made}/" in text
        assert "\nProtectHome=yes\n" in text
        assert "\nProtectSystem=strict\n" in text
    assert f"\nReadWritePaths={made}/data\n" in (made / "mariner.service").read_text()
    at_home = module._Installation(Path("/home/x/m"), "x", "/usr/bin/mariner")
    assert "\nProtectHome=read-only\n" in module._unit("mariner.service", at_home)
    if shutil.which("systemd-analyze"):
        units = [made / f"{name}.service" for name in module._UNITS]
        done = subprocess.run(
            ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
        )
        assert str(tmp_path) not in done.stderr


async def test_the_gateway_speaks_tls_and_the_console_sees_it(made: Path) -> None:
    """The console is started as its unit says, but for ports."""
    path, page = made / "gateway.yaml", made / "console.yaml"
    conf: dict[str, Any] = yaml.safe_load(path.read_text())
    assert (conf["mariner"]["host"], conf["mariner"]["port"]) == ("0.0.0.0", 23014)  # noqa: S104
    conf["mariner"]["port"] = conf["http"]["port"] = 0
    path.write_text(yaml.safe_dump(conf))
    token, password = (
        (made / "secrets" / f"operator.{i}").read_text().strip() for i in ("token", "password")
    )
    gateway = await create(config_file.load(path))
    try:
        StatusReport(gateway)
        context = tls.client_context(made / "certs" / "ca.pem")
        async with await RawPeer.init(
            gateway.mariner.port, context, client_name="operator", client_token=token
        ) as peer:
            assert (await peer.request(register_req(1, event("x"))))["success"]
        conf = yaml.safe_load(page.read_text())
        conf["gateways"][0]["port"], conf["listen"]["port"] = gateway.mariner.port, 0
        page.write_text(yaml.safe_dump(conf))
        unit = (made / "mariner-console.service").read_text()
        [command] = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
        _, *arguments = shlex.split(command)
        output = made.parent / "console.log"
        async with processes.child("mariner", *arguments, output=output) as process:
            url = await processes.wait_ready(process, output, partial(listening, output))
            async with aiohttp.ClientSession() as session:
                assert (await log_in(session, url, password="wrong"))[0] == 403
                assert (await log_in(session, url, password=password))[0] == 303
            await until(lambda: gateway.mariner.stats.clients == 1)  # the console
    finally:
        await gateway.async_close()


async def listening(output: Path) -> str | None:
    found = re.search(r"console: listening: (\S+)", processes.tail(output))
    return found and found[1]
