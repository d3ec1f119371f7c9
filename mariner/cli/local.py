"""Commands without a server or store: ``mariner token``, and ``completion``, which is click's."""

import os
import shlex
import sys
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from eventer_bridge import limits
from eventer_bridge.core import tokens
from mariner.cli import output
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, errors

_PROGRAM: Final = "mariner"
_VARIABLE: Final = "_MARINER_COMPLETE"
_SHELLS: Final = ("bash", "zsh", "fish")


@click.group()
def token() -> None:
    """Make tokens for clients; the configuration needs only their hashes."""


@token.command()
def new() -> None:
    """Make a random token: print it, and the line for the configuration.

    The first line is the token, for the client: it is stored nowhere. The second one is for the
    client's entry in the configuration of the gateway.
    """
    made = tokens.new()
    click.echo(f"{made}\ntoken: {tokens.sha256_text(made)}")


@token.command("hash")
def hash_command() -> None:
    """Print the line for the configuration of a token that you chose.

    The command asks for it, or reads it from standard input: one line. The hash is slow to compute,
    and so to guess; a random token (`mariner token new`) is quicker for clients, and better.

    Exit code 2: there is no token, or there are blanks around it.
    """
    place = "standard input"
    with errors():
        if sys.stdin.isatty():
            typed = click.prompt("Token", hide_input=True, confirmation_prompt=True, err=True)
            text = tokens.without_end(typed, place)
        else:
            line = sys.stdin.buffer.readline(limits.MAX_TOKEN_FILE_BYTES + 1)
            text = tokens.of_bytes(line, place)
    click.echo(f"token: {tokens.scrypt_text(text)}")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it where the shell finds it.")
@click.pass_context
def completion(context: click.Context, shell: str | None, install: bool) -> None:
    """Print or install shell completion, for bash (4.4 or newer), zsh or fish.

    SHELL is that of this session ($SHELL) by default. It is installed for this user; new shells
    have it. bash needs the package bash-completion.

    Exit code 0: printed or installed; 1: it cannot be written; 2: unknown shell.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in _SHELLS else None
    if kind is None:
        raise CommandError(f"SHELL: {name!r}: expected one of {', '.join(_SHELLS)}", EXIT_USAGE)
    script = kind(context.find_root().command, {}, _PROGRAM, _VARIABLE).source()
    if not install:
        output.write_text(script)
        return
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as e:
        raise CommandError(f"{path}: {e.strerror}", EXIT_FAILED) from e
    output.write_text(f"installed: {path}")
    if name == "zsh":
        line = f"fpath=({shlex.quote(str(path.parent))} $fpath); autoload -U compinit; compinit"
        output.write_text(f"~/.zshrc needs this line, if it is not there yet: {line}")


def _path(shell: str) -> Path:
    """Where a shell looks for completion of this user's commands."""
    data, conf = _folder("XDG_DATA_HOME", ".local/share"), _folder("XDG_CONFIG_HOME", ".config")
    return {
        "bash": data / "bash-completion" / "completions" / _PROGRAM,
        "zsh": data / "zsh" / "site-functions" / f"_{_PROGRAM}",
        "fish": conf / "fish" / "completions" / f"{_PROGRAM}.fish",
    }[shell]


def _folder(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / usual)
