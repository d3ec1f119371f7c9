"""What deploy/ holds: example configurations load, unit and image are as they should be."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner
from hat import json as hat_json
from hat.monitor import common as hat_monitor

from mariner.cli import main
from mariner.gateway import config, config_file
from tests.support.gateway import gateway
from tests.support.peer import INIT, RawPeer

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


GATEWAYS = sorted({*DEPLOY.glob("*.yaml")} - {*DEPLOY.glob("*-console.yaml")})


@pytest.mark.parametrize("path", GATEWAYS, ids=lambda path: path.name)
def test_example_configurations_load(path: Path) -> None:
    assert config_file.load(path).clients


def with_comments(tmp_path: Path) -> Path:
    """The example, with what it has as comments."""
    lines = (DEPLOY / "gateway.yaml").read_text().splitlines()
    # where components have tokens of their own, there is none for all
    lines.remove("        token: change-me-hat")
    path = tmp_path / "gateway.yaml"
    path.write_text("\n".join(re.sub(r"^( *)#(?=\S| {2,}\S)", r"\1", line) for line in lines))
    return path


def test_what_the_example_has_as_comments_loads(tmp_path: Path) -> None:
    loaded = config_file.load(with_comments(tmp_path))
    assert loaded.log is not None
    assert loaded.event_core is not None
    [remote] = loaded.event_core.replication
    assert remote.tls is not None
    listener = loaded.event_core.eventer_server
    assert listener is not None
    assert listener.tls is not None
    assert listener.clients is not None


async def test_the_log_of_the_example_says_who_when_and_why(tmp_path: Path) -> None:
    log = config_file.load(with_comments(tmp_path)).log
    assert log is not None
    handler: Any = log["handlers"]["file"]
    assert (handler["maxBytes"], handler["backupCount"]) == (50_000_000, 9)
    handler |= {"filename": str(tmp_path / "example.log"), "maxBytes": 2_000, "backupCount": 2}
    async with gateway(tmp_path, backend="memory", log=log) as running:
        for _ in range(20):
            async with await RawPeer.connect(running.port) as peer:
                peer.send({**INIT, "client_name": "nobody"})
                assert not (await peer.receive())["success"]
    assert (tmp_path / "example.log").exists()
    assert (tmp_path / "example.log.2").exists()
    lines = [json.loads(i) for i in (tmp_path / "example.log.1").read_text().splitlines()]
    line = next(i for i in lines if i["message"] == "closing connection")
    assert line["level"] == "WARNING"
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert line["peer"].startswith("127.0.0.1:")
    assert line["client"] == "nobody"
    assert line["reason"]


def test_the_pair_fits_together() -> None:
    gateways = [config_file.load(DEPLOY / "pair" / f"gateway-{i}.yaml") for i in (1, 2)]
    cores = [i.event_core for i in gateways if i.event_core is not None]
    assert [i.server_id for i in cores] == [1, 2]
    assert cores[0].eventer_server is not None
    assert cores[1].eventer_server is not None
    assert cores[0].eventer_server.token == cores[1].eventer_server.token
    paths = [DEPLOY / "pair" / f"monitor-{i}.yaml" for i in (1, 2)]
    monitors: list[Any] = [hat_json.decode_file(path) for path in paths]
    validator = hat_json.DefaultSchemaValidator(hat_monitor.json_schema_repo)
    for monitor, core in zip(monitors, cores, strict=True):
        validator.validate("hat-monitor://server.yaml", monitor)
        assert core.monitor == config.MonitorConfig(
            monitor["server"]["host"], monitor["server"]["port"], "gateways"
        )
    [parent] = monitors[1]["slave"]["parents"]
    assert parent == {
        "host": cores[0].eventer_server.host,
        "port": monitors[0]["master"]["port"],
    }


def test_the_schema_of_the_example_does_what_it_says() -> None:
    [schema] = config_file.load(DEPLOY / "gateway.yaml").schemas
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert validator.is_valid({"value": 1.5, "unit": "W"})
    assert not validator.is_valid({"value": "1.5"})


def test_the_unit_is_hardened_and_calls_what_exists() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "mariner.service")
    service = unit["Service"]
    for key, value in (
        ("Type", "notify"),
        ("WatchdogSec", "30s"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2"),
        ("TimeoutStopSec", "30"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("PrivateTmp", "yes"),
        ("CapabilityBoundingSet", ""),
        ("SystemCallFilter", "@system-service"),
    ):
        assert service[key] == value
    assert service["User"] != "root"
    # it may write where the example does, also in what is a comment there
    example = (DEPLOY / "gateway.yaml").read_text()
    assert f"#control: /run/{service['RuntimeDirectory']}/" in example
    assert f"#    file: /var/log/{service['LogsDirectory']}/" in example
    for key in ("ExecStart", "ExecStartPre"):
        _, command, option, path = service[key].split()
        help_text = CliRunner().invoke(main, [command, "--help"]).output
        assert option in help_text
        assert path.startswith("/etc/mariner/")


def test_the_unit_that_forwards_calls_what_exists() -> None:
    text = (DEPLOY / "mariner-forward.service").read_text()
    [(command, buffer)] = re.findall(
        r"^ExecStart=\S+/mariner (\S+) --buffer (\S+)$", text, re.MULTILINE
    )
    assert command == "forward"
    [directory] = re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    assert buffer.startswith(f"/var/lib/{directory}/")
    assert text.count(f"--buffer {buffer} ") == 2  # in the comments
    help_text = CliRunner().invoke(main, [command, "--help"]).output
    variables = re.findall(r"^#   (MARINER_\w+)=", text, re.MULTILINE)
    assert len(variables) == 4
    assert all(re.search(rf"env\s+var:\s+{i}\b", help_text) for i in variables)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = [*DEPLOY.glob("*.service"), *DEPLOY.glob("*/*.service"), *DEPLOY.glob("*/*.timer")]
    copies = []
    for unit in units:
        # the program is not installed here: verify all but its path
        text = unit.read_text().replace("/opt/mariner/bin/mariner", "/bin/true")
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(text)
    assert len(copies) == 11
    done = subprocess.run(
        ["systemd-analyze", "verify", *copies], capture_output=True, text=True, check=False
    )
    assert str(tmp_path) not in done.stderr
    assert "Unknown" not in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize(
    "unit",
    [
        "mariner.service",
        "mariner-console.service",
        "mariner-forward.service",
        "backup/mariner-backup.service",
        "backup/mariner-restore-drill.service",
    ],
)
def test_systemd_finds_little_to_attack(unit: str) -> None:
    most = 20  # tenths of a point, of 100
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", DEPLOY / unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    assert "Overall exposure level" in done.stdout


def test_the_image_runs_as_a_user_and_has_a_health_check() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and line[0].isupper()]
    last = {name: value for name, *value in instructions}
    assert last["USER"] not in (["root"], ["0"])
    assert last["STOPSIGNAL"] == ["SIGTERM"]
    assert any(name == "HEALTHCHECK" for name, *_ in instructions)
    assert json.loads(last["CMD"][0])[0] == "serve"


def jobs_on_kubernetes() -> Iterator[list[str]]:
    """Arguments that Kubernetes gives to ``mariner``."""
    text = (DEPLOY / "spark" / "kubernetes.yaml").read_text()
    for document in yaml.safe_load_all(text):
        if document["kind"] == "CronJob":
            pod = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            [container] = pod["containers"]
            yield container["args"]


def jobs_of_systemd() -> Iterator[list[str]]:
    """Arguments that the services of timers give to ``mariner``."""
    for path in sorted(DEPLOY.glob("*/*.service")):
        for line in re.findall("^ExecStart=(.*)$", path.read_text(), re.MULTILINE):
            command = shlex.split(line)
            yield shlex.split(command[2])[2:] if command[0] == "/bin/sh" else command[1:]


def test_every_timer_has_its_service() -> None:
    names = {suffix: {i.stem for i in DEPLOY.glob(f"*/*.{suffix}")}
             for suffix in ("service", "timer")}  # fmt: skip
    assert names["service"] == names["timer"] == {
        *("mariner-lake", "mariner-lake-daily"),
        *("mariner-backup", "mariner-restore-drill"),
    }  # fmt: skip
    commands = [args[:2] for args in jobs_of_systemd()]
    assert commands == [
        *(["backup", "--conf"], ["restore", "--from"], ["store", "verify"], ["store", "info"]),
        *(["lake", "compact"], ["report", "--lake"], ["lake", "ingest"]),
    ]


@pytest.mark.parametrize("args", [*jobs_on_kubernetes(), *jobs_of_systemd()], ids=" ".join)
def test_commands_of_schedules_exist(args: list[str]) -> None:
    command: click.Command = main
    context = click.Context(command, info_name="mariner")
    while isinstance(command, click.Group):
        name, found, args = command.resolve_command(context, args)
        assert found is not None, name
        command = found
    command.make_parser(context).parse_args(list(args))  # an option that there is not is an error
