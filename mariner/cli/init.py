"""``mariner init``: an installation in one directory, made of the files of ``deploy/``."""

import os
import pwd
import re
import socket
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import yaml

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.core import tokens
from eventer_bridge.resources import read_example
from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError
from mariner.cli.target import DIRECTORY, store_errors
from mariner_certs import authority, files
from mariner_certs.errors import CertificateError, InvalidNameError

CLIENT: Final = "operator"
"""The client that may do everything, and the user of the console."""

_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9_.@+/-]+")
"""What systemd and YAML take as it is."""

_HOMES: Final = tuple(map(Path, ("/home", "/root", "/run/user")))
"""What ``ProtectHome=yes`` hides."""

_UNITS: Final = ("mariner", "mariner-console")

_CONSOLE_URL: Final = "http://127.0.0.1:23081/"


class _Installation(NamedTuple):
    """Where it is, and who runs it; ``program`` is the command as systemd calls it."""

    folder: Path
    user: str
    program: str

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.folder, Path(self.program.split()[0])

    @property
    def token(self) -> Path:
        return self.folder / "secrets" / f"{CLIENT}.token"

    @property
    def password(self) -> Path:
        return self.folder / "secrets" / f"{CLIENT}.password"


@click.command()
@click.argument("folder", metavar="DIR", type=DIRECTORY)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Name or address of this machine for clients, for the certificate. Can be repeated."
    " Default: its host name.",
)
@click.option(
    "--user",
    metavar="USER",
    help="User that runs the gateway and the console. Default: who runs this, or `mariner` if that"
    " is root.",
)
def init(folder: Path, hosts: tuple[str, ...], user: str | None) -> None:
    """Make an installation in a new directory, and say what to do next.

    DIR gets gateway.yaml (TLS for everybody, a durable store, one client who may do everything) and
    console.yaml; a certificate authority and the certificate of the server in certs; random token
    and password in secrets; systemd units; and gateway-example.yaml, which shows what else can be
    configured. The gateway keeps its events in DIR/data. Nobody but the owner can read any of it;
    of token and password, the configuration has only hashes.

    Exit code 0: made; 1: there is something in DIR, or it cannot be written (nothing is left of it
    then); 2: wrong usage.
    """
    path = Path(os.path.abspath(folder))  # noqa: PTH100  # Path's keeps ".."
    installation = _Installation(path, user or _user(), _program())
    for named in installation.paths:
        if not _PLAIN_PATH.fullmatch(str(named)):
            text = f"{named}: expected a path of letters, digits and . _ - + @ only"
            raise CommandError(f"{text}: units of systemd name it", EXIT_USAGE)
    names = [*(hosts or [socket.gethostname()]), "localhost", "127.0.0.1", "::1"]
    try:
        ca = authority.make_ca("Mariner CA")
        server = authority.make_server(ca, [*dict.fromkeys(names)])
    except InvalidNameError as e:
        raise CommandError(f"--host: {e}", EXIT_USAGE) from e
    try:
        with store_errors(), directories.new_directory(path) as made:
            files.save(made / "certs", "ca", ca)
            files.save(made / "certs", "server", server)
            for name in ("secrets", "data"):
                (made / name).mkdir()
            for name, text in _texts(installation).items():
                (made / name).write_text(text, encoding="utf-8")
    except (CertificateError, OSError) as e:
        raise CommandError(f"{path}: cannot be written: {e}", EXIT_FAILED) from e
    output.write_text(_next(installation, f"{server.certificate.not_valid_after_utc:%Y-%m-%d}"))


def _user() -> str:
    return "mariner" if os.geteuid() == 0 else _runs_this()


def _runs_this() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container
        return str(os.geteuid())


def _program() -> str:
    """This program, as a unit calls it."""
    command = Path(sys.executable).with_name("mariner")
    return str(command) if command.exists() else f"{sys.executable} -P -m mariner"


def _texts(installation: _Installation) -> dict[str, str]:
    """The files by name; those of ``deploy/`` with what is different here."""
    token, password = tokens.new(), tokens.new()
    return {
        "gateway.yaml": _gateway(installation, token),
        "console.yaml": _console(installation, password),
        "gateway-example.yaml": read_example("gateway.yaml"),
        **{f"{name}.service": _unit(f"{name}.service", installation) for name in _UNITS},
        f"secrets/{installation.token.name}": f"{token}\n",
        f"secrets/{installation.password.name}": f"{password}\n",
    }


def _gateway(installation: _Installation, token: str) -> str:
    folder = installation.folder
    conf = yaml.safe_load(read_example("development.yaml"))
    certificate = {"cert": f"{folder}/certs/server.pem", "key": f"{folder}/certs/server.key"}
    conf["name"] = "gateway"
    conf["mariner"] |= {"host": "0.0.0.0", "tls": certificate}  # noqa: S104  # with TLS and tokens
    conf["event_core"]["backend"]["path"] = f"{folder}/data/events"
    conf["clients"][0] |= {"name": CLIENT, "token": tokens.sha256_text(token)}
    return _yaml("`mariner init` made this; gateway-example.yaml shows what else there is.", conf)


def _console(installation: _Installation, password: str) -> str:
    folder = installation.folder
    conf = yaml.safe_load(read_example("development-console.yaml"))
    conf["users"][0] |= {"name": CLIENT, "password": tokens.sha256_text(password)}
    conf["gateways"][0] |= {
        "name": "gateway",
        "tls": {"ca": f"{folder}/certs/ca.pem"},
        "client": CLIENT,
        "token": {"file": str(installation.token)},
        "control": f"{folder}/data/events/control.sock",
    }
    return _yaml("`mariner init` made this: a page for the gateway of gateway.yaml.", conf)


def _yaml(comment: str, conf: Any) -> str:
    return f"# {comment}\n{yaml.safe_dump(conf, sort_keys=False, default_flow_style=None)}"


def _unit(name: str, installation: _Installation) -> str:
    """A unit of ``deploy/`` for this user and directory; it may write its events there."""
    _, _, text = read_example(name).partition("[Unit]\n")  # before are comments: what to change
    text = text.replace("/opt/mariner/bin/mariner", installation.program)
    text = text.replace("/etc/mariner", str(installation.folder))
    lines = {
        "User": f"User={installation.user}\n",
        "Group": "",  # that of the user
        "WorkingDirectory": f"WorkingDirectory={installation.folder}\n",
        "StateDirectory": f"ReadWritePaths={installation.folder}/data\n",
        "StateDirectoryMode": "",
    }
    if any(Path(i).is_relative_to(j) for i in installation.paths for j in _HOMES):
        lines["ProtectHome"] = "ProtectHome=read-only\n"
    for key, line in lines.items():
        text = re.sub(rf"^{key}=.*\n", line, text, flags=re.MULTILINE)
    return f"# `mariner init` made this.\n[Unit]\n{text}"


def _next(installation: _Installation, last_day: str) -> str:
    """What to do next, for people."""
    at, user = installation.folder, installation.user
    units = [f"{name}.service" for name in _UNITS]
    account = []
    if user != _runs_this():
        account = [
            f"    useradd --system --no-create-home --home-dir {at} {user}",
            f"    chown -R {user}: {at}",
        ]
    lines = [
        f"made {at}: gateway.yaml, console.yaml, certs, secrets, {', '.join(units)}",
        "",
        "Try it:",
        f"    mariner serve --conf {at}/gateway.yaml",
        f"    mariner ping --count 1 --tls-ca {at}/certs/ca.pem --name {CLIENT} --token-file"
        f" {installation.token}",
        "",
        "Have systemd run it, as root:",
        *account,
        f"    cp {' '.join(f'{at}/{i}' for i in units)} /etc/systemd/system/",
        "    systemctl daemon-reload",
        f"    systemctl enable --now {' '.join(_UNITS)}",
        "",
        f"The console (it needs pip install 'mariner-gateway[console]') is at"
        f" {_CONSOLE_URL}: user {CLIENT}, password in {installation.password}.",
        "Each application gets a client in gateway.yaml (`mariner token new` makes its token, then"
        f" `mariner reload`) and a copy of {at}/certs/ca.pem.",
        f"Keep {at}/certs/ca.key secret. The server's certificate is valid until {last_day};"
        " `mariner certs server` makes the next one.",
    ]
    return "\n".join(lines)
